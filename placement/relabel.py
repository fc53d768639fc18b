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
    gain = np.where(equal, overlap, -layer.slots)
    target = assign(gain)
    result = row.copy()
    for group, rank in enumerate(target.tolist()):
        source, first, size = int(layer.first_slot[group]), int(layer.first_slot[rank]), int(sizes[rank])
        result[first : first + size] = row[source : source + size]
    return result


def assign(gain: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give every row of ``gain``, int64 [n, n], a column of its own with a large sum, int64 [n].

    The largest gains are taken first, then pairs of rows exchange their columns while that gains more.
    """
    return _improved(gain, _greedy(gain))


def _greedy(gain: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank of every group, int64 [groups], by descending overlap."""
    ranks = len(gain)
    target = np.full(ranks, -1, dtype=np.int64)
    taken = np.zeros(ranks, dtype=bool)
    for flat in np.argsort(-gain, axis=None, kind="stable").tolist():
        group, rank = divmod(flat, ranks)
        if target[group] < 0 and not taken[rank]:
            target[group] = rank
            taken[rank] = True
    return target


def _improved(gain: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
    groups = np.arange(len(gain))
    while True:
        now = gain[groups, target]
        crossed = gain[:, target]
        better = crossed + crossed.T - now[:, None] - now
        at = int(better.argmax())
        if better.ravel()[at] <= 0:
            return target
        one, two = divmod(at, len(gain))
        target[[one, two]] = target[[two, one]]


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
