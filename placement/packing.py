"""Put copies on ranks: heaviest first, no expert twice on a rank, slot counts exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.norm import smooth_max

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row


def pack(layer: Layer, counts: NDArray[np.int64], order_loads: NDArray[np.float64]) -> Row:
    """Place ``counts`` copies of every expert (int64 [experts]) and return the row.

    Copies go in descending ``order_loads / counts`` (ties: expert id) to the rank that raises the smooth maximum least
    (ties: rank id) among those with a free slot and without that expert. A dead end is opened by an exchange; where even
    that fails, all copies are dealt by ``deal``, which always fits.
    """
    table = _Table(layer, counts)
    unit = order_loads / counts
    for expert in np.lexsort((np.arange(len(unit)), -unit)).tolist():
        for _ in range(int(counts[expert])):
            if not table.place(expert):
                return _row(layer, deal(counts, layer.capacity()))
    return _row(layer, table.has)


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

    __slots__ = ("costs", "free", "has", "layer", "unit")

    def __init__(self, layer: Layer, counts: NDArray[np.int64]) -> None:
        self.layer = layer
        self.has = np.zeros((layer.experts, layer.ranks), dtype=bool)
        self.free = layer.capacity()
        self.costs = np.zeros((len(layer.weights), layer.ranks))
        self.unit = layer.loads[:, :-1] / counts

    def place(self, expert: int) -> bool:
        open_ranks = np.flatnonzero((self.free > 0) & ~self.has[expert])
        if not len(open_ranks):
            return self._exchange(expert)
        self._add(expert, self._coolest(expert, open_ranks), 1)
        return True

    def _coolest(self, expert: int, ranks: NDArray[np.int64]) -> int:
        added = self.unit[:, expert, None] * self.layer.inverse_speed[ranks]
        score = smooth_max(self.costs, ranks, self.costs[:, ranks] + added, self.layer.weights)
        return int(ranks[score.argmin()])

    def _add(self, expert: int, rank: int, copies: int) -> None:
        self.has[expert, rank] = copies > 0
        self.free[rank] -= copies
        self.costs[:, rank] += copies * self.unit[:, expert] * self.layer.inverse_speed[rank]

    def _exchange(self, expert: int) -> bool:
        """Send a placed copy to a rank with a free slot and take its place; False when no single exchange helps."""
        best: tuple[float, int, int, int] | None = None
        size = self.unit.sum(axis=0)
        for target in np.flatnonzero(self.free > 0).tolist():
            movable = self.has & ~self.has[expert] & ~self.has[:, target, None]
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
