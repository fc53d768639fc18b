"""The order of slots within a rank: whatever stays on its rank keeps its slot, so that only what must move moves."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts


def aligned(
    facts: PoolFacts,
    base: NDArray[np.int32],
    target: NDArray[np.int32],
    shares: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """The same experts on the same ranks in an order that moves least: int32 [layers, slots] and float64 or None, reordered.

    Afterwards the slots that change are those that the rank's new experts need, or give up: the number of arrivals is the
    lower bound, the sum over ranks of the experts in the target that the rank does not hold.
    """
    places = np.tile(np.arange(facts.slots), (facts.layers, 1))
    for layer in range(facts.layers):
        if not np.array_equal(base[layer], target[layer]):
            order = _Order(base[layer].tolist(), target[layer].tolist(), facts.slots_per_rank)
            places[layer] = order.places()
    rows = np.take_along_axis(target, places, axis=1)
    return rows, None if shares is None else np.take_along_axis(shares, places, axis=1)


def newcomers(facts: PoolFacts, base: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Slots whose new expert their rank does not hold: int32 [layers, slots] twice -> bool [layers, slots].

    Their number is the fewest experts that must cross between ranks.
    """
    held = np.zeros((facts.layers, facts.ranks, facts.experts + 1), dtype=np.bool_)
    layers = np.arange(facts.layers)[:, None]
    ranks = np.arange(facts.slots) // facts.slots_per_rank
    held[layers, ranks, base] = True
    return np.asarray((target >= 0) & ~held[layers, ranks, target], dtype=np.bool_)


class _Order:
    """One row: who stays keeps the slot, who comes takes an empty one, or that of an expert that goes the other way.

    Experts of which no copy stays go from rank to rank. Their ways are cut into walks that visit no rank twice; on every rank
    of a walk the one that comes takes the slot of the one that goes on. So a ring, which must be moved at once, brings no
    rank more than one expert.
    """

    def __init__(self, base: list[int], target: list[int], width: int) -> None:
        self._base, self._width = base, width
        self._taken: dict[int, int] = {}
        self._coming: list[dict[int, list[int]]] = [{} for _ in range(0, len(base), width)]
        for place, expert in enumerate(target):
            self._coming[place // width].setdefault(expert, []).append(place)

    def places(self) -> list[int]:
        """For each slot, the place in the target whose expert it is to hold."""
        safe: set[int] = set()
        for slot, expert in enumerate(self._base):
            if expert >= 0 and self._take(slot, expert):
                safe.add(expert)
        for slot, expert in enumerate(self._base):
            newcomer = self._newcomer(slot, safe)
            if expert < 0 and newcomer >= 0:
                self._take(slot, newcomer)
                safe.add(newcomer)
        for slot, expert in self._exchanges(safe):
            self._take(slot, expert)
        for slot in range(len(self._base)):
            if slot not in self._taken:
                self._take(slot, self._newcomer(slot, ()))
        return [self._taken[slot] for slot in range(len(self._base))]

    def _take(self, slot: int, expert: int) -> bool:
        coming = self._coming[slot // self._width]
        if expert not in coming or slot in self._taken:
            return False
        self._taken[slot] = coming[expert].pop(0)
        if not coming[expert]:
            del coming[expert]
        return True

    def _newcomer(self, slot: int, safe: Collection[int]) -> int:
        """The next expert for a slot: one that has no other copy yet, then any, then none."""
        coming = self._coming[slot // self._width]
        return min(coming, key=lambda expert: (expert < 0, expert in safe, expert), default=-1)

    def _exchanges(self, safe: set[int]) -> Iterator[tuple[int, int]]:
        """Pairs (slot, expert that comes there) of all walks."""
        ways: list[list[tuple[int, int]]] = [
            [] for _ in self._coming
        ]  # by rank: (slot that is left, rank of arrival)
        arrival = {e: rank for rank, coming in enumerate(self._coming) for e in coming}
        for slot, expert in enumerate(self._base):
            if slot not in self._taken and expert not in safe and expert in arrival:
                ways[slot // self._width].append((slot, arrival.pop(expert)))
        for start in range(len(ways)):
            while ways[start]:
                for walk in _walks(ways, start, self._width):
                    yield from ((following, self._base[slot]) for (slot, _), (following, _) in pairwise(walk))


def _walks(ways: list[list[tuple[int, int]]], start: int, width: int) -> Iterator[list[tuple[int, int]]]:
    """Go on from a rank as long as there is a way; rings, with their first way once more at the end, then what is left."""
    walk: list[tuple[int, int]] = []
    rank = start
    while ways[rank]:
        walk.append(ways[rank].pop(0))
        rank = walk[-1][1]
        seen = [slot // width for slot, _ in walk]
        if rank in seen:
            ring = walk[seen.index(rank) :]
            del walk[seen.index(rank) :]
            yield [*ring, ring[0]]
    yield walk
