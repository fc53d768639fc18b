"""Which experts the same tokens select."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def merged_sets(
    sets: NDArray[np.int16], experts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Merge equal sets of one layer, int16 [samples, top_k].

    Returns the distinct sets, int64 [sets, top_k], each in rising order with ``experts`` (one past the last) for no pick;
    how many tokens each stands for, int64 [sets]; and the set of every token, int64 [samples], -1 = a token without picks.
    """
    ordered = np.sort(np.where(sets < 0, experts, sets).astype(np.int64), axis=1)
    picked = np.flatnonzero(ordered[:, 0] < experts)
    _, first, number, counts = np.unique(
        _keys(ordered[picked], experts + 1), return_index=True, return_inverse=True, return_counts=True
    )
    of_token = np.full(len(sets), -1, dtype=np.int64)
    of_token[picked] = number
    return ordered[picked[first]], counts.astype(np.int64), of_token


def _keys(sets: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    """One number for each set, equal for equal sets and rising with them, int64 [samples]."""
    keys = np.zeros(len(sets), dtype=np.int64)
    most = 1
    for place in range(sets.shape[1]):
        if most * base > np.iinfo(np.int64).max:
            _, keys = np.unique(keys, return_inverse=True)
            most = len(keys)
        keys = keys * base + sets[:, place]
        most *= base
    return keys


def coactivation(sets: NDArray[np.int16], experts: int) -> NDArray[np.int64]:
    """Tokens that select both experts of a pair, int64 [experts, experts], symmetric, zeros on the diagonal.

    ``sets``: int16 [samples, top_k] of one layer, -1 = no pick. The weights of the co-activation graph (field.md 2.11).
    """
    distinct, counts, _ = merged_sets(sets, experts)
    pairs = np.zeros((experts + 1, experts + 1), dtype=np.int64)
    for one in range(distinct.shape[1]):
        for two in range(one + 1, distinct.shape[1]):
            np.add.at(pairs, (distinct[:, one], distinct[:, two]), counts)
    pairs = (pairs + pairs.T)[:-1, :-1]
    np.fill_diagonal(pairs, 0)
    return pairs
