"""Which experts the same tokens select, and how many nodes their tokens touch."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 4096
"""Sets that are counted at a time, which bounds the memory."""


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


class Touched:
    """The nodes that every token set touches when each expert has one home, and what a change of home would bring.

    All figures are exact integers on the hypergraph objective: sum over tokens of (nodes touched - 1), field.md 2.11.
    ``home``: int64 [experts + 1], node of each expert; the last entry, for no pick, is ``nodes``.
    """

    __slots__ = (
        "_alone",
        "_counts",
        "_moved",
        "_sets",
        "_tokens",
        "_with",
        "experts",
        "home",
        "nodes",
        "objective",
    )

    def __init__(
        self, sets: NDArray[np.int64], tokens: NDArray[np.int64], home: NDArray[np.int64], nodes: int
    ) -> None:
        """Count from merged sets (see ``merged_sets``) and homes, int64 [experts] in 0..nodes-1."""
        self.experts, self.nodes = len(home), nodes
        self.home = np.append(home, nodes)
        self._sets, self._tokens = sets, tokens
        self._counts = np.zeros((len(sets), nodes + 1), dtype=np.int64)
        rows = np.arange(len(sets))
        for place in range(sets.shape[1]):
            np.add.at(self._counts, (rows, self.home[sets[:, place]]), 1)
        order = np.argsort(sets, axis=None, kind="stable")
        ends = np.searchsorted(sets.ravel()[order], np.arange(self.experts + 1))
        self._with = [order[a:b] // sets.shape[1] for a, b in pairwise(ends.tolist())]
        self._moved = np.zeros((self.experts + 1, nodes), dtype=np.int64)
        self._alone = np.zeros((self.experts + 1, self.experts + 1), dtype=np.int64)
        for first in range(0, len(sets), CHUNK):
            self._add(rows[first : first + CHUNK], 1)
        touched = (self._counts[:, :nodes] > 0).sum(axis=1)
        self.objective = int(((touched - 1) * tokens).sum())

    @property
    def move(self) -> NDArray[np.int64]:
        """Rise of the objective when an expert moves to a node, int64 [experts, nodes], 0 at its home."""
        return self._moved[:-1]

    def swaps(self) -> NDArray[np.int64]:
        """Rise of the objective when two experts change homes, int64 [experts, experts], exact between different homes.

        The two single moves overlap only in tokens with both experts, which a swap leaves as they are: their part is
        taken back.
        """
        home = self.home[:-1]
        gone = self.move[:, home] + self._alone[:-1, :-1]
        return gone + gone.T

    def settle(self, moves: list[tuple[int, int]]) -> None:
        """Move experts to nodes, pairs (expert, node)."""
        rows = np.unique(np.concatenate([self._with[expert] for expert, _ in moves]))
        nodes = self.nodes
        before = (self._counts[rows, :nodes] > 0).sum(axis=1)
        self._add(rows, -1)
        for expert, node in moves:
            mine = self._with[expert]
            self._counts[mine, self.home[expert]] -= 1
            self._counts[mine, node] += 1
            self.home[expert] = node
        self._add(rows, 1)
        after = (self._counts[rows, :nodes] > 0).sum(axis=1)
        self.objective += int(((after - before) * self._tokens[rows]).sum())

    def _add(self, rows: NDArray[np.int64], sign: int) -> None:
        """Add the part of some sets to the tables, or take it away."""
        sets, tokens, counts = self._sets[rows], self._tokens[rows] * sign, self._counts[rows]
        alone = np.take_along_axis(counts, self.home[sets], axis=1) == 1
        fresh = counts[:, : self.nodes] == 0
        ids = sets[:, :, None] * self.nodes + np.arange(self.nodes)
        rise = (fresh[:, None, :].astype(np.int64) - alone[:, :, None]) * tokens[:, None, None]
        # Leaving home and coming back is no move: the entry of the home itself stays 0.
        stay = self.home[sets][:, :, None] == np.arange(self.nodes)
        _scatter(self._moved, ids, np.where(stay, 0, rise))
        pairs = sets[:, :, None] * (self.experts + 1) + sets[:, None, :]
        _scatter(self._alone, pairs, np.broadcast_to((alone * tokens[:, None])[:, :, None], pairs.shape))


def _scatter(table: NDArray[np.int64], places: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """Add integers at flat places; float64 sums of tokens below 2**53 are exact."""
    summed = np.bincount(places.ravel(), values.ravel(), minlength=table.size)
    table += summed.reshape(table.shape).astype(np.int64)
