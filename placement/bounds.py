"""What no placement can beat, and why.

All bounds hold slice by slice and whatever the copies; they are averaged like the objective. They are the first rows of the
table of lower bounds in the field notes (2.16), where copies are free loosened so that no choice of them beats it: the mean,
the least possible largest copy, the hottest copies that must share a rank; and the hottest node where groups stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.layer import ordered_sum
from placement.replicas import least_largest_copy
from placement.result import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer

MEAN = "mean"
REPLICA_GRANULARITY = "replica_granularity"
HOTTEST_PAIR = "hottest_pair"
NODE_LIMIT = "node_limit"
NO_DATA = "no_data"

SENTENCES = {
    REPLICA_GRANULARITY: "one copy of the hottest expert is at times above a rank's fair share, whatever the copies",
    HOTTEST_PAIR: "the hottest copies must at times share a rank with each other or with what else fills its slots",
    NODE_LIMIT: "expert groups kept whole on a node cannot be shared out evenly over the nodes",
}

GAIN = 1e-9
"""Smallest excess that counts as above the mean."""

MOST_SHARING = 3
"""Most hot copies on one rank, less one, that the bound of hot copies looks at."""

HALVINGS = 24
"""Steps of the bisection of the bound of hot copies."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bound on one layer's objective, 1.0 = perfect balance.

    ``replica_granularity``, ``hottest_pair``, ``node_limit``: what each adds to the ones before it; they sum to
    ``value`` - ``mean``. ``loaded``: whether the layer has any load. ``mean``: what all ranks together cost at least; with a
    roofline, where slots cost too, it is not 1 (``time_bound``).
    """

    replica_granularity: float = 0.0
    hottest_pair: float = 0.0
    node_limit: float = 0.0
    loaded: bool = True
    mean: float = 1.0

    @property
    def value(self) -> float:
        """The bound."""
        return self.mean + self.replica_granularity + self.hottest_pair + self.node_limit

    @property
    def code(self) -> str:
        """What binds most: ``mean``, ``replica_granularity``, ``hottest_pair``, ``node_limit`` or ``no_data``."""
        if not self.loaded:
            return NO_DATA
        codes = (REPLICA_GRANULARITY, HOTTEST_PAIR, NODE_LIMIT)
        most = max(codes, key=lambda code: getattr(self, code))
        return most if getattr(self, most) > GAIN else MEAN


def layer_bound(layer: Layer, *, groups: int = 0, even: bool = True) -> Bound:
    """Bound one layer over every map, whatever its copies and the nodes that its groups take.

    ``groups``: expert groups that must each stay whole on a node, 0 = none; ``layer.home`` is not looked at. ``even``: copies
    share evenly; with other shares the bound of hot copies does not hold and is left out.
    """
    if not layer.loaded:
        return Bound(loaded=False)
    loads, speed = layer.loads[:, :-1], 1.0 / layer.inverse_speed
    sizes = np.minimum(np.diff(np.append(layer.first_slot, layer.slots)), layer.experts)
    most_copies = int(np.bincount(layer.node_of_rank).max()) if groups else layer.ranks
    fastest = float(speed.max())
    slots = int(sizes.sum())
    copy = least_largest_copy(loads, slots, most_copies, enough=fastest) / fastest
    stages = [np.ones(len(loads)), copy]
    pool = _Pool(sizes, most_copies, 1 if groups else int(sizes.min()))
    stages.append(_hot_copies(loads / fastest, pool, np.maximum(1.0, copy)) if even else copy)
    stages.append(_whole_groups(layer, groups) if groups else copy)
    levels = np.maximum.accumulate(np.array(stages), axis=0)
    granular, sharing, nodes = (ordered_sum(layer.weights * rise) for rise in np.diff(levels, axis=0))
    return Bound(granular, sharing, nodes)


def reason(bounds: list[Bound], weights: NDArray[np.float64]) -> Reason:
    """Say which bound binds most over all layers (``weights``: float64 [layers], part of each in the objective)."""
    if not weights.any():
        return Reason(NO_DATA, "no layer has load, so nothing bounds it")
    total = {
        code: ordered_sum(weights * np.array([getattr(bound, code) for bound in bounds]))
        for code in SENTENCES
    }
    code = max(total, key=lambda name: total[name])
    if total[code] <= GAIN:
        return Reason(MEAN, "the hottest rank cannot be below the mean of the ranks")
    layers = [at for at, bound in enumerate(bounds) if getattr(bound, code) > GAIN and weights[at] > 0]
    value = ordered_sum(weights * np.array([bound.mean for bound in bounds])) + sum(total.values())
    text = f"in {len(layers)} of {len(bounds)} layers {SENTENCES[code]}: bound {value:.4f}"
    return Reason(code, text, tuple((at, -1) for at in layers))


def _whole_groups(layer: Layer, groups: int) -> NDArray[np.float64]:
    """Least possible cost of the hottest node of every slice, float64 [slices]: groups are not copied."""
    size = layer.experts // groups
    parts = layer.loads[:, :-1].reshape(len(layer.weights), groups, size)
    loads = np.cumsum(parts, axis=2)[:, :, -1]
    speed = np.bincount(layer.node_of_rank, weights=1.0 / layer.inverse_speed)
    room = np.bincount(layer.node_of_rank[layer.rank_of_slot]) // size
    full = int(room.sum()) == groups
    return _sharing(loads, np.minimum(room, groups), full=full) / float(speed.max())


def _sharing(loads: NDArray[np.float64], room: NDArray[np.int64], *, full: bool) -> NDArray[np.float64]:
    """Least possible largest bin when every item has one copy, float64 [slices].

    ``loads``: float64 [slices, items]. ``room``: int64 [bins], items that fit; ``full``: every bin takes as many. Of the
    largest ``sum(min(j, room)) + 1`` items some bin holds j + 1, and where bins are full the smallest others besides.
    """
    items = loads.shape[1]
    ordered = np.sort(loads, axis=1)
    sums = np.cumsum(np.pad(ordered, ((0, 0), (1, 0))), axis=1)
    best = ordered[:, -1]
    for shared in range(int(room.max())):
        top = int(np.minimum(room, shared).sum()) + 1
        if top > items:
            break
        first = items - top
        others = (int(room[room > shared].min()) - 1 - shared) if full else 0
        tail = min(others, first)
        end = first + shared + 1 + others - tail
        best = np.maximum(best, sums[:, end] - sums[:, first] + sums[:, tail])
    return best


@dataclass(frozen=True, slots=True)
class _Pool:
    """``sizes``: int64 [ranks], experts that fit. ``most_copies`` of one expert. ``least_full``: experts on every rank at least."""

    sizes: NDArray[np.int64]
    most_copies: int
    least_full: int


def _hot_copies(loads: NDArray[np.float64], pool: _Pool, least: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least possible hottest rank when copies share ranks, float64 [slices], from ``least`` upwards.

    ``loads``: float64 [slices, experts], in costs of the fastest rank.
    """
    if int(pool.sizes.sum()) == loads.shape[1]:
        return _sharing(loads, pool.sizes, full=True)
    best = least.copy()
    for shared in range(min(MOST_SHARING, int(pool.sizes.max()) - 1) + 1):
        at = np.flatnonzero(~_fits(loads, best, shared, pool))
        if not len(at):
            continue
        low, high = best[at], best[at] * (shared + 2)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            fits = _fits(loads[at], middle, shared, pool)
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        best[at] = low
    return best


def _fits(
    loads: NDArray[np.float64], limit: NDArray[np.float64], shared: int, pool: _Pool
) -> NDArray[np.bool_]:
    """Whether copies can be chosen so that no rank need be above ``limit`` (float64 [slices]), bool [slices].

    Let m(n) be the least sum of n copies that can share a rank. No copy is above limit - m(full - 1), which takes ``few``
    copies of each expert. Of copies above (limit - m(full - 1 - shared)) / (shared + 1) a rank holds at most ``shared``, hence
    all ranks at most ``room``. An expert's copies are all hot when few, or none is when ``many``; ``many`` for enough experts
    must fit the slots (a knapsack, relaxed to fractions: where that does not fit, nothing does).
    """
    slots, room = int(pool.sizes.sum()), int(np.minimum(pool.sizes, shared).sum())
    line = limit * (1 + GAIN)
    least = _least_companions(loads, line, slots, pool.least_full - 1)
    alone = np.maximum(line - least[:, -1], np.finfo(float).tiny)
    few = np.maximum(1.0, np.ceil(loads / alone[:, None]))
    fits: NDArray[np.bool_] = few.sum(axis=1) <= slots
    if not shared:
        return fits
    together = np.maximum(line - least[:, max(0, pool.least_full - 1 - shared)], np.finfo(float).tiny)
    many = np.maximum(1.0, np.ceil(loads * ((shared + 1) / together)[:, None]))
    hot = np.where(many > few, few, 0.0)
    short = np.flatnonzero(fits & (hot.sum(axis=1) > room))
    if len(short):
        spare = slots - few[short].sum(axis=1)
        fits[short] = _cheapest(few[short], many[short], hot[short], room, pool.most_copies) <= spare + GAIN
    return fits


def _least_companions(
    loads: NDArray[np.float64], line: NDArray[np.float64], slots: int, most: int
) -> NDArray[np.float64]:
    """Least sum of 0 to ``most`` copies of different experts, float64 [slices, most + 1], when no copy is above ``line``.

    That takes so many copies that an expert can have only the ``spare`` slots more.
    """
    if not most:
        return np.zeros((len(loads), 1))
    needed = np.maximum(1.0, np.ceil(loads / line[:, None]))
    spare = np.maximum(0.0, slots - needed.sum(axis=1))
    units = np.sort(np.partition(loads / (needed + spare[:, None]), most - 1, axis=1)[:, :most], axis=1)
    return np.cumsum(np.pad(units, ((0, 0), (1, 0))), axis=1)


def _cheapest(
    few: NDArray[np.float64], many: NDArray[np.float64], hot: NDArray[np.float64], room: int, most_copies: int
) -> NDArray[np.float64]:
    """Fewest extra copies, in fractions, that leave at most ``room`` hot ones, float64 [slices]; inf where none do."""
    extra = np.where(many <= most_copies, many - few, np.inf)
    rate = np.where(hot > 0, extra / np.maximum(hot, 1.0), np.inf)
    order = np.argsort(rate, axis=1, kind="stable")
    too_many = hot.sum(axis=1) - room
    sizes = np.take_along_axis(hot, order, axis=1)
    before = np.cumsum(sizes, axis=1) - sizes
    cooled = np.clip(too_many[:, None] - before, 0.0, sizes)
    rates = np.take_along_axis(rate, order, axis=1)
    spent: NDArray[np.float64] = (cooled * np.where(cooled > 0, rates, 0.0)).sum(axis=1)
    return spent
