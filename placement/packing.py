"""Put copies on ranks: heaviest first, no expert twice on a rank, slot counts exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.kernel_pack import pack_copies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row


def pack(layer: Layer, counts: NDArray[np.int64], order_loads: NDArray[np.float64]) -> Row:
    """Place ``counts`` copies of every expert (int64 [experts]) and return the row.

    Copies go in descending ``order_loads / counts`` (ties: expert id) to the rank that raises the smooth maximum least
    (ties: lowest rank) among those with a free slot and without that expert. A dead end is opened by an exchange; where even
    that fails, all copies are dealt by ``deal``, which always fits.
    """
    table = _Table(layer, counts)
    unit = order_loads / counts
    ranked = np.lexsort((np.arange(len(unit)), -unit))
    order = np.repeat(ranked, counts[ranked])
    at = 0
    while True:
        at = table.place(order, at)
        if at == len(order):
            return _row(layer, table.has)
        if not table.exchange(int(order[at])):
            return _row(layer, _dealt(layer, counts))
        at += 1


def _dealt(layer: Layer, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    has = np.zeros((layer.experts, layer.ranks), dtype=bool)
    capacity = layer.capacity()
    for experts, ranks in layer.blocks():
        has[np.ix_(experts, ranks)] = deal(counts[experts], capacity[ranks])
    return has


def deal(counts: NDArray[np.int64], capacity: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Place copies without regard to load, bool [experts, ranks]; fits whenever any placement does (Gale-Ryser).

    The experts with most copies come first; each takes the ranks with most free slots.
    """
    has = np.zeros((len(counts), len(capacity)), dtype=bool)
    free = capacity.copy()
    for expert in np.argsort(-counts, kind="stable"):
        ranks = np.argsort(-free, kind="stable")[: counts[expert]]
        has[expert, ranks] = True
        free[ranks] -= 1
    return has


class _Table:
    """The copies placed so far and the load they bring."""

    __slots__ = ("costs", "free", "has", "layer", "may", "unit")

    def __init__(self, layer: Layer, counts: NDArray[np.int64]) -> None:
        self.layer = layer
        self.has = np.zeros((layer.experts, layer.ranks), dtype=bool)
        self.may = layer.allowed()[:-1]
        self.free = layer.capacity()
        self.costs = np.zeros((layer.ranks, len(layer.weights)))
        self.unit = np.ascontiguousarray(layer.unit(counts).T)

    def place(self, order: NDArray[np.int64], first: int) -> int:
        """Place the copies ``order[first:]`` and return the place of the first that fits nowhere."""
        sums = np.zeros((3, len(self.layer.weights)))
        return pack_copies(
            order, first, self.unit, self.layer.weights, self.layer.inverse_speed, self.may, self.has, self.free, self.costs,
            np.zeros_like(self.costs), sums,
        )  # fmt: skip

    def _add(self, expert: int, rank: int, copies: int) -> None:
        self.has[expert, rank] = copies > 0
        self.free[rank] -= copies
        self.costs[rank] += copies * self.unit[expert] * self.layer.inverse_speed[rank]

    def exchange(self, expert: int) -> bool:
        """Send a placed copy to a rank with a free slot and take its place; False when no single exchange helps."""
        best: tuple[float, int, int, int] | None = None
        size = np.cumsum(self.unit, axis=1)[:, -1]
        for target in np.flatnonzero(self.free > 0).tolist():
            movable = self.has & ~self.has[expert] & ~self.has[:, target, None]
            movable &= self.may[expert] & self.may[:, target, None]
            for other, rank in np.argwhere(movable).tolist():
                key = (abs(float(size[other] - size[expert])), other, rank, target)
                best = key if best is None else min(best, key)
        if best is None:
            return False
        _, other, rank, target = best
        self._add(other, rank, -1)
        self._add(other, target, 1)
        self._add(expert, rank, 1)
        return True


def _row(layer: Layer, has: NDArray[np.bool_]) -> Row:
    row = np.full(layer.slots, layer.experts, dtype=np.int64)
    for rank, first in enumerate(layer.first_slot.tolist()):
        experts = np.flatnonzero(has[:, rank])
        row[first : first + len(experts)] = experts
    return row
