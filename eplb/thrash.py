"""Experts that would come back: which ranks they left lately, and what of a plan sends them there again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Places = tuple[tuple[int, int, int], ...]
"""(layer position, rank, expert), in that order and sorted."""

UNDOING = 0.5
"""A plan that takes back at least this share of the last plan's moves undoes it."""


def arrivals(base: NDArray[np.int32], target: NDArray[np.int32], slots_per_rank: int) -> Places:
    """Experts that come to a rank which does not hold them, from one map to another, int32 [layers, slots] each."""
    found: list[tuple[int, int, int]] = []
    for layer in np.flatnonzero((base != target).any(axis=1)).tolist():
        before, after = base[layer].reshape(-1, slots_per_rank), target[layer].reshape(-1, slots_per_rank)
        for rank in np.flatnonzero((before != after).any(axis=1)).tolist():
            fresh = set(after[rank].tolist()) - set(before[rank].tolist()) - {-1}
            found.extend((layer, rank, expert) for expert in sorted(fresh))
    return tuple(found)


def departures(base: NDArray[np.int32], target: NDArray[np.int32], slots_per_rank: int) -> Places:
    """Experts that a rank holds before and not after."""
    return arrivals(target, base, slots_per_rank)


def without_returns(
    base: NDArray[np.int32],
    target: NDArray[np.int32],
    left: Iterable[tuple[int, int, int]],
    slots_per_rank: int,
) -> tuple[NDArray[np.int32], tuple[int, ...]]:
    """The target with every layer as it was that would bring an expert back to a rank in ``left``; and those layers.

    Layers do not depend on each other, so one that stays as it is spoils no other.
    """
    barred = frozenset(left)
    back = sorted({place[0] for place in arrivals(base, target, slots_per_rank) if place in barred})
    kept = target.copy()
    kept[back] = base[back]
    return kept, tuple(back)


def share_undone(coming: Places, left: Places) -> float:
    """Share of the departures of an earlier plan that come back: 0 to 1; 0 where nothing left."""
    if not left:
        return 0.0
    return len(frozenset(coming) & frozenset(left)) / len(left)


def busiest_moves(coming: Places) -> int:
    """Sum over layers of the most experts that come to one rank: layers move one after the other, ranks at the same time."""
    most: dict[int, int] = {}
    counts: dict[tuple[int, int], int] = {}
    for layer, rank, _ in coming:
        counts[layer, rank] = counts.get((layer, rank), 0) + 1
        most[layer] = max(most.get(layer, 0), counts[layer, rank])
    return sum(most.values())
