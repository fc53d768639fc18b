"""One layer as the search sees it: scaled loads, live ranks and their slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.topology import Topology

Row = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Expert of every live slot of one layer, int64 [slots]; ``experts`` (one past the last) = empty slot."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What copies cost where cost is not load / copies, in the unit of a layer's ratio and for a rank of speed 1.

    ``table``: float64 [experts + 1, most, slices], cost of one of 1, 2, ... ``most`` copies; more are priced like ``most``. The last
    row is an empty slot. ``base``: float64 [slices], cost of a rank whatever it holds.
    """

    table: NDArray[np.float64]
    base: NDArray[np.float64]

    @property
    def most(self) -> int:
        """Largest number of copies in the table."""
        return int(self.table.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The load and the slots of one layer, without dead ranks.

    ``loads``: float64 [slices, experts + 1], scaled so that a balanced rank of speed 1 costs 1.0 in every slice; the last
    column is the load of an empty slot, 0. ``weights``: float64 [slices], summing to 1.
    ``rank_of_slot``: int64 [slots]; ``first_slot``: int64 [ranks]; ``inverse_speed``: float64 [ranks].
    ``node_of_rank``: int64 [ranks]. ``home``: int64 [experts], the node that holds all copies of each expert; None = copies
    may be anywhere. ``prices``: what the search pays for copies, None = load / copies.
    """

    loads: NDArray[np.float64]
    weights: NDArray[np.float64]
    rank_of_slot: NDArray[np.int64]
    first_slot: NDArray[np.int64]
    inverse_speed: NDArray[np.float64]
    node_of_rank: NDArray[np.int64]
    home: NDArray[np.int64] | None = None
    prices: Prices | None = None

    @property
    def experts(self) -> int:
        """Number of logical experts, and the id that stands for an empty slot."""
        return int(self.loads.shape[1]) - 1

    @property
    def ranks(self) -> int:
        """Number of live ranks."""
        return len(self.first_slot)

    @property
    def slots(self) -> int:
        """Number of live slots."""
        return len(self.rank_of_slot)

    @property
    def loaded(self) -> bool:
        """Whether any expert has load."""
        return bool(self.loads.any())

    def capacity(self) -> NDArray[np.int64]:
        """Distinct experts that each rank can hold, int64 [ranks]."""
        sizes = np.diff(np.append(self.first_slot, self.slots))
        most: NDArray[np.int64] = np.minimum(sizes, self.allowed()[:-1].sum(axis=0))
        return most

    def allowed(self) -> NDArray[np.bool_]:
        """Which rank may hold which expert, bool [experts + 1, ranks]; empty slots may be anywhere."""
        may = np.ones((self.experts + 1, self.ranks), dtype=bool)
        if self.home is not None:
            may[:-1] = self.home[:, None] == self.node_of_rank
        return may

    def blocks(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Experts and the ranks that share them among themselves: one pair for all, or one a node where homes are given."""
        if self.home is None:
            return [(np.arange(self.experts), np.arange(self.ranks))]
        nodes = range(int(self.node_of_rank.max()) + 1)
        return [
            (np.flatnonzero(self.home == node), np.flatnonzero(self.node_of_rank == node)) for node in nodes
        ]

    def replicas(self, row: Row) -> NDArray[np.int64]:
        """Copies of each expert, int64 [experts + 1]; an empty slot's entry is 1 so that it divides."""
        counts = np.bincount(row, minlength=self.experts + 1)
        counts[-1] = 1
        return np.maximum(counts, 1)

    def holds(self, row: Row) -> NDArray[np.bool_]:
        """Which rank holds which expert, bool [experts + 1, ranks]; the row of empty slots is always False."""
        has = np.zeros((self.experts + 1, self.ranks), dtype=bool)
        has[row, self.rank_of_slot] = True
        has[-1] = False
        return has

    def costs(self, row: Row) -> NDArray[np.float64]:
        """Cost of every rank with copies sharing evenly, float64 [slices, ranks], 1.0 = perfect balance."""
        costs = np.add.reduceat(self.unit(self.replicas(row))[:, row], self.first_slot, axis=1)
        if self.prices is not None:
            costs += self.prices.base[:, None]
        return costs * self.inverse_speed

    def unit(self, copies: NDArray[np.int64]) -> NDArray[np.float64]:
        """Cost of one copy on a rank of speed 1, float64 [slices, len(copies)]; ``copies``: int64 [experts] or [experts + 1]."""
        if self.prices is None:
            return self.loads[:, : len(copies)] / copies
        known = np.minimum(copies, self.prices.most) - 1
        listed: NDArray[np.float64] = self.prices.table[np.arange(len(copies)), known].T
        return listed

    def shared_value(self, row: Row, shares: NDArray[np.float64]) -> float:
        """The objective of ``row`` when every slot gets ``shares`` (float64 [slots]) of its expert's tokens."""
        slot_costs = self.loads[:, row] * shares
        costs = np.add.reduceat(slot_costs, self.first_slot, axis=1) * self.inverse_speed
        return ordered_sum(self.weights * costs.max(axis=1))

    def value(self, row: Row) -> float:
        """Weighted mean over slices of the costliest rank: the objective of this layer, 1.0 = perfect balance."""
        return ordered_sum(self.weights * self.costs(row).max(axis=1))


def ordered_sum(values: NDArray[np.float64]) -> float:
    """Sum from the first to the last value, so that every machine rounds alike."""
    return float(np.cumsum(values)[-1])


def kept_slices(
    tokens: NDArray[np.int64], weights: NDArray[np.float64], most_slices: int | None = None
) -> NDArray[np.int64]:
    """Slices of one layer that a search looks at, int64 [slices kept], see ``make_layer``."""
    keep = np.flatnonzero((tokens.sum(axis=1) > 0) & (weights > 0))
    if most_slices is not None and len(keep) > most_slices:
        keep = keep[np.arange(most_slices) * len(keep) // most_slices]
    return keep


def make_layer(
    tokens: NDArray[np.int64],
    weights: NDArray[np.float64],
    topology: Topology,
    most_slices: int | None = None,
) -> Layer:
    """Scale one layer's tokens, int64 [slices, experts], over a topology without dead ranks.

    Slices without load or without weight are left out; of more than ``most_slices`` an evenly spaced choice stays, because
    averaging would hide which experts peak together. Without any load the layer has one slice of zeros.
    """
    total = tokens.sum(axis=1)
    keep = kept_slices(tokens, weights, most_slices)
    speed = topology.speed_of_rank()
    loads = np.zeros((max(1, len(keep)), tokens.shape[1] + 1))
    share = np.ones(1)
    if len(keep):
        loads[:, :-1] = tokens[keep] / total[keep, None] * ordered_sum(speed)
        share = weights[keep] / ordered_sum(weights[keep])
    rank_of_slot = topology.rank_of_slot()
    first_slot = np.searchsorted(rank_of_slot, np.arange(topology.ranks))
    return Layer(loads, share, rank_of_slot, first_slot, 1.0 / speed, np.array(topology.node_of_rank))
