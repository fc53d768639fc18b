"""Say a new map in the terms of an old one: which rank takes which group, which slot keeps its expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row


def relabel(layer: Layer, row: Row, current: Row) -> Row:
    """Give the groups of ``row`` to equal ranks so that most experts of ``current`` stay on their rank.

    Ranks are equal when they have as many slots and the same speed, and where experts have homes, the same node.
    """
    new, old = layer.holds(row)[:-1], layer.holds(current)[:-1]
    overlap = (new[:, :, None] & old[:, None, :]).sum(axis=0)
    sizes = np.diff(np.append(layer.first_slot, layer.slots))
    equal = (sizes[:, None] == sizes) & (layer.inverse_speed[:, None] == layer.inverse_speed)
    if layer.home is not None:
        equal &= layer.node_of_rank[:, None] == layer.node_of_rank
    # One pair of unequal ranks costs more than all overlaps together are worth.
    gain = np.where(equal, overlap, -layer.slots)
    result = row.copy()
    for group, rank in enumerate(assign(gain).tolist()):
        source, first, size = int(layer.first_slot[group]), int(layer.first_slot[rank]), int(sizes[rank])
        result[first : first + size] = row[source : source + size]
    return result


def assign(gain: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give every row of ``gain``, int64 [n, n], a column of its own so that their sum is the largest there is, int64 [n].

    Of assignments with the same sum, one that leaves most rows at their own number is taken; among those that are still
    alike, what one version of scipy takes, on every machine: sums of whole numbers below 2^53 are exact in its float64.
    Gains must be at most 2^52 / (n + 1)^2 from 0 for that.
    """
    from scipy.optimize import linear_sum_assignment

    rows = len(gain)
    preferred = gain * (rows + 1) + np.eye(rows, dtype=np.int64)
    target: NDArray[np.int64] = linear_sum_assignment(preferred, maximize=True)[1].astype(np.int64)
    return target


def keep_slots(layer: Layer, row: Row, current: Row) -> Row:
    """Reorder ``row`` within each rank so that an expert that stays on its rank keeps its slot."""
    result = np.full(layer.slots, layer.experts, dtype=np.int64)
    ends = np.append(layer.first_slot, layer.slots)
    for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        wanted = sorted(set(row[first:end].tolist()) - {layer.experts})
        slots: dict[int, int] = {}
        for slot in range(first, end):
            slots.setdefault(int(current[slot]), slot)
        for expert in wanted:
            if expert in slots:
                result[slots[expert]] = expert
        free = iter([slot for slot in range(first, end) if result[slot] == layer.experts])
        for expert in wanted:
            if expert not in slots:
                result[next(free)] = expert
    return result
