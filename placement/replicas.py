"""How many copies every expert gets."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def replica_counts(
    loads: NDArray[np.float64], capacity: NDArray[np.int64], least: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Choose copies that minimise the largest load of one copy, with no expert twice on a rank.

    ``loads``: float64 [experts] >= 0. ``capacity``: int64 [ranks], distinct experts a rank can hold. ``least``: int64
    [experts], copies to begin with, which must fit; None = one of each.
    Returns int64 [experts], at least ``least``, summing to the capacity. One copy after the other goes to the expert with
    the largest load per copy (ties: fewest copies, then lowest id); this greedy is optimal because the counts that fit
    without twins form a polymatroid. Needs ``sum(capacity) >= experts``.
    """
    experts, ranks = len(loads), len(capacity)
    counts = np.ones(experts, dtype=np.int64) if least is None else least.copy()
    spare = int(capacity.sum() - counts.sum())
    room = None if (capacity == capacity[0]).all() else _room(capacity, experts)
    units = (loads / counts).tolist()
    queue = [
        (-unit, copies, expert)
        for expert, (unit, copies) in enumerate(zip(units, counts.tolist(), strict=True))
    ]
    heapq.heapify(queue)
    while spare > 0 and queue:
        _, copies, expert = heapq.heappop(queue)
        if copies >= ranks or (room is not None and not _fits(counts, expert, room)):
            continue
        counts[expert] = copies + 1
        heapq.heappush(queue, (-float(loads[expert]) / (copies + 1), copies + 1, expert))
        spare -= 1
    return counts


def _room(capacity: NDArray[np.int64], experts: int) -> NDArray[np.int64]:
    """Copies that the k experts with most copies can have at most, int64 [experts] for k = 1, 2, ..."""
    room: NDArray[np.int64] = np.minimum(capacity[None, :], np.arange(1, experts + 1)[:, None]).sum(axis=1)
    return room


def _fits(counts: NDArray[np.int64], expert: int, room: NDArray[np.int64]) -> bool:
    """Whether one more copy of ``expert`` still fits uneven ranks (Gale-Ryser: every k largest counts fit k per rank)."""
    grown = counts.copy()
    grown[expert] += 1
    return bool((np.cumsum(-np.sort(-grown)) <= room).all())


def least_largest_copy(
    loads: NDArray[np.float64], slots: int, most_copies: int, enough: float = 0.0
) -> NDArray[np.float64]:
    """Smallest possible largest load of one copy in every instance, float64 [instances].

    ``loads``: float64 [instances, experts]. No placement of ``slots`` slots that shares evenly can have a rank below it.
    Values at or below ``enough`` are not driven further down.
    """
    counts = np.ones(loads.shape, dtype=np.int64)
    each = np.arange(len(loads))
    unit = loads.copy()
    for _ in range(slots - loads.shape[1]):
        hottest = unit.argmax(axis=1)
        grow = (counts[each, hottest] < most_copies) & (unit[each, hottest] > enough)
        if not grow.any():
            break
        rows, cols = each[grow], hottest[grow]
        counts[rows, cols] += 1
        unit[rows, cols] = loads[rows, cols] / counts[rows, cols]
    result: NDArray[np.float64] = unit.max(axis=1)
    return result
