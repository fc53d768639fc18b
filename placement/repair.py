"""Read a map as it lives in the field and mend what no solver may leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row


def read_row(ids: NDArray[np.int32], live_slots: NDArray[np.int64], experts: int) -> Row:
    """Keep the slots of live ranks; empty slots and unknown ids become ``experts``, int64 [live slots]."""
    row = ids[live_slots].astype(np.int64)
    row[(row < 0) | (row >= experts)] = experts
    return row


def mend(layer: Layer, row: Row) -> Row:
    """Return a valid row that keeps every good slot of ``row`` where it is.

    Of twins the first stays; copies outside their expert's home go. Experts without a slot go to an empty slot of the coolest rank, or else take the place of
    the copy whose loss burdens the others least. Empty slots are filled with a copy of the hottest expert that the rank
    can take without becoming the hottest rank, or else with the coldest.
    """
    row = _without_strays(layer, row)
    burden = (layer.loads * layer.weights[:, None]).sum(axis=0)
    counts = np.bincount(row, minlength=layer.experts + 1)[:-1]
    missing = np.flatnonzero(counts == 0)
    for expert in missing[np.argsort(-burden[missing], kind="stable")].tolist():
        row[_slot_for_missing(layer, row, expert, burden)] = expert
    return _fill(layer, row, burden)


def _without_strays(layer: Layer, row: Row) -> Row:
    row = np.where(layer.allowed()[row, layer.rank_of_slot], row, layer.experts)
    seen: set[tuple[int, int]] = set()
    for slot, pair in enumerate(zip(layer.rank_of_slot.tolist(), row.tolist(), strict=True)):
        if pair[1] < layer.experts and pair in seen:
            row[slot] = layer.experts
        seen.add(pair)
    return row


def _rank_burden(layer: Layer, row: Row, burden: NDArray[np.float64]) -> NDArray[np.float64]:
    unit = burden / layer.replicas(row)
    rank_costs: NDArray[np.float64] = np.add.reduceat(unit[row], layer.first_slot) * layer.inverse_speed
    return rank_costs


def _slot_for_missing(layer: Layer, row: Row, expert: int, burden: NDArray[np.float64]) -> int:
    may = layer.allowed()[expert, layer.rank_of_slot]
    empty = np.flatnonzero(may & (row == layer.experts))
    if len(empty):
        costs = _rank_burden(layer, row, burden)
        return int(empty[costs[layer.rank_of_slot[empty]].argmin()])
    counts = layer.replicas(row)
    spare = np.flatnonzero(may & (counts[row] > 1))
    return int(spare[(burden[row[spare]] / (counts[row[spare]] - 1)).argmin()])


def _fill(layer: Layer, row: Row, burden: NDArray[np.float64]) -> Row:
    has, may = layer.holds(row)[:-1], layer.allowed()[:-1]
    for slot in np.flatnonzero(row == layer.experts).tolist():
        rank = int(layer.rank_of_slot[slot])
        free = np.flatnonzero(~has[:, rank] & may[:, rank])
        if not len(free):
            continue
        counts = layer.replicas(row)[:-1]
        costs = _rank_burden(layer, row, burden)
        added = burden[free] / (counts[free] + 1) * layer.inverse_speed[rank]
        fits = costs[rank] + added <= costs.max()
        unit = burden[free] / counts[free]
        expert = int(free[np.where(fits, unit, -1.0).argmax()] if fits.any() else free[added.argmin()])
        row[slot] = expert
        has[expert, rank] = True
    return row
