"""Maps one step away from a map, and the smooth maximum that each would have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.layer import ordered_sum
from placement.norm import power, root

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row

COPY_CELLS = 200_000
"""Most slices x candidates x ranks that one look at copy changes may weigh."""


COLDEST = 8
"""Experts that a hot rank may take in place of a copy that it gives up."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change of one row: slots ``slots`` come to hold ``experts``; ``value`` is the smooth maximum it leads to.

    ``arrivals``: pairs (expert, rank) that the change creates. ``departures``: pairs that it ends.
    """

    value: float
    slots: tuple[int, ...]
    experts: tuple[int, ...]
    arrivals: tuple[tuple[int, int], ...]
    departures: tuple[tuple[int, int], ...]


class View:
    """A row with the numbers that its neighbours are weighed by.

    ``costs``: float64 [slices, ranks]. ``worst``: the row's objective; ``value``: its smooth maximum.
    ``heat``: float64 [ranks], part of the smooth maximum that each rank causes. ``hottest``: int64 [slices].
    Neighbours are weighed in float32, scaled so that the costliest rank is 1.0; a row that is taken is weighed anew.
    """

    __slots__ = (
        "counts", "has", "heat", "hottest", "layer", "load32", "loads32", "powers", "row", "scale", "speed32",
        "totals", "unit32", "value", "weights32", "worst",
    )  # fmt: skip

    def __init__(self, layer: Layer, row: Row) -> None:
        self.layer = layer
        self.row = row
        self.counts = layer.replicas(row)
        self.has = layer.holds(row)
        unit = (layer.loads / self.counts)[:, row]
        load = np.add.reduceat(unit, layer.first_slot, axis=1)
        costs = load * layer.inverse_speed
        self.hottest = costs.argmax(axis=1)
        self.worst = ordered_sum(layer.weights * costs.max(axis=1))
        self.scale = float(costs.max()) or 1.0
        costs /= self.scale
        self.powers = power(costs)
        self.totals = np.cumsum(self.powers, axis=1)[:, -1]
        norm = root(self.totals.copy()) * layer.weights
        self.value = ordered_sum(norm) * self.scale
        self.heat = (self.powers * (norm / np.maximum(self.totals, 1e-300))[:, None]).sum(axis=0)
        self.unit32 = (unit / self.scale).astype(np.float32)
        self.load32 = (load / self.scale).astype(np.float32)
        self.loads32 = (layer.loads / self.scale).astype(np.float32)
        self.speed32 = layer.inverse_speed.astype(np.float32)
        self.weights32 = (layer.weights * self.scale).astype(np.float32)

    def best_swap(self, rank: int, barred: NDArray[np.bool_], below: float) -> Step | None:
        """The best exchange of a slot of ``rank`` with a slot of another rank (an empty slot makes it a move).

        ``barred``: bool [experts + 1, ranks], pairs that must not be created unless the value falls below ``below``.
        """
        layer, row = self.layer, self.row
        own = np.flatnonzero(layer.rank_of_slot == rank)
        other = np.flatnonzero(layer.rank_of_slot != rank)
        if not len(other):
            return None
        theirs = layer.rank_of_slot[other]
        legal = ~self.has[row[own]][:, theirs] & ~self.has[row[other], rank] & (row[own, None] != row[other])
        with np.errstate(over="ignore"):
            score = np.where(legal, self._swap_values(rank, own, other, theirs), np.inf)
        tabu = barred[row[own]][:, theirs] | barred[row[other], rank]
        score[tabu & (score >= below)] = np.inf
        at = int(score.argmin())
        value = float(score.ravel()[at])
        if not np.isfinite(value):
            return None
        mine, its = int(own[at // len(other)]), int(other[at % len(other)])
        return self._step(value, (mine, its), (int(row[its]), int(row[mine])))

    def _swap_values(
        self, rank: int, own: NDArray[np.int64], other: NDArray[np.int64], theirs: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Smooth maximum after every exchange, float32 [own slots, other slots]."""
        speed = self.speed32
        rest = self.totals[:, None] - self.powers[:, [rank]] - self.powers
        change = self.unit32[:, own, None] - self.unit32[:, None, other]
        there = self.load32[:, None, theirs] + change
        there *= speed[theirs]
        change -= self.load32[:, [rank], None]
        change *= speed[rank]
        sums = _power_in_place(there)
        sums += _power_in_place(change)
        sums += np.maximum(rest, 0.0).astype(np.float32)[:, None, theirs]
        return self._mean_root(sums)

    def _mean_root(self, powers: NDArray[np.float32]) -> NDArray[np.float32]:
        """Weighted mean over slices of the root, float32 [...] of powers [slices, ...], which are overwritten."""
        for _ in range(4):
            np.sqrt(powers, out=powers)
        powers *= self.weights32.reshape(-1, *[1] * (powers.ndim - 1))
        values: NDArray[np.float32] = np.add.reduce(powers, axis=0)
        return values

    def best_copy(self, rank: int, barred: NDArray[np.bool_], below: float) -> Step | None:
        """The best new copy of an expert of ``rank`` in an empty slot or in place of a copy of an expert with several."""
        hot, slots = self._copy_candidates(rank)
        if not len(hot):
            return None
        with np.errstate(over="ignore"):
            score = self._copy_values(hot, slots)
        tabu = barred[hot, self.layer.rank_of_slot[slots]]
        score[tabu & (score >= below)] = np.inf
        at = int(score.argmin())
        if not np.isfinite(score[at]):
            return None
        return self._step(float(score[at]), (int(slots[at]),), (int(hot[at]),))

    def _copy_candidates(self, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs (expert, slot) that are worth weighing: the rank's experts in slots elsewhere, and cold ones in its own."""
        layer = self.layer
        burden = (layer.loads * layer.weights[:, None]).sum(axis=0) / self.counts
        most = max(8, COPY_CELLS // (len(layer.weights) * layer.ranks))
        given = self._copies_out(rank, burden, most)
        taken = self._copies_in(rank, burden, most)
        experts, slots = np.concatenate([given[0], taken[0]]), np.concatenate([given[1], taken[1]])
        legal = ~self.has[experts, layer.rank_of_slot[slots]]
        return experts[legal], slots[legal]

    def _copies_out(
        self, rank: int, burden: NDArray[np.float64], most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Experts of ``rank`` in empty slots and in place of copies of experts with several; the coldest places first."""
        layer, row = self.layer, self.row
        held = row[layer.rank_of_slot == rank]
        experts = held[(self.counts[held] < layer.ranks) & (held < layer.experts)]
        slots = np.flatnonzero((self.counts[row] > 1) | (row == layer.experts))
        if len(experts) * len(slots) > most:
            experts = experts[np.argsort(-burden[experts], kind="stable")[:4]]
            slots = slots[np.argsort(burden[row[slots]], kind="stable")[: most // len(experts)]]
        return np.repeat(experts, len(slots)), np.tile(slots, len(experts))

    def _copies_in(
        self, rank: int, burden: NDArray[np.float64], most: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The coldest other experts in place of the rank's copies of experts with several, which leave their load elsewhere."""
        layer, row = self.layer, self.row
        slots = np.flatnonzero((layer.rank_of_slot == rank) & (self.counts[row] > 1))
        others = np.flatnonzero(~self.has[:-1, rank] & (self.counts[:-1] < layer.ranks))
        fewer = others[np.argsort(burden[others], kind="stable")[: min(COLDEST, most // max(1, len(slots)))]]
        return np.repeat(fewer, len(slots)), np.tile(slots, len(fewer))

    def _copy_values(self, hot: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """Smooth maximum after slot ``slots[i]`` comes to hold expert ``hot[i]``, float32 [candidates]."""
        there = self.layer.rank_of_slot[slots]
        cold = self.row[slots]
        loads, counts = self.loads32, self.counts.astype(np.float32)
        grown = loads[:, hot] / (counts[hot] + 1)
        shrunk = loads[:, cold] / np.maximum(counts[cold] - 1, 1)
        relief = grown - loads[:, hot] / counts[hot]
        burden = shrunk - loads[:, cold] / counts[cold]
        moved = grown - shrunk
        total = np.zeros(relief.shape, dtype=np.float32)
        for rank in range(self.layer.ranks):
            load = relief * self.has[hot, rank]
            load += burden * self.has[cold, rank]
            load += moved * (there == rank)
            load += self.load32[:, [rank]]
            load *= self.speed32[rank]
            total += _power_in_place(load)
        return self._mean_root(total)

    def _step(self, value: float, slots: tuple[int, ...], experts: tuple[int, ...]) -> Step:
        ranks = [int(self.layer.rank_of_slot[slot]) for slot in slots]
        old = [int(self.row[slot]) for slot in slots]
        empty = self.layer.experts
        arrivals = tuple((e, r) for e, r in zip(experts, ranks, strict=True) if e != empty)
        departures = tuple((e, r) for e, r in zip(old, ranks, strict=True) if e != empty)
        return Step(value, slots, experts, arrivals, departures)


def _power_in_place(values: NDArray[np.float32]) -> NDArray[np.float32]:
    for _ in range(4):
        np.square(values, out=values)
    return values
