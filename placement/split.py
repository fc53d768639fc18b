"""Shares for a map as it stands: no weights move, only the part of its expert's tokens that every copy gets.

``exact_shares`` is exact for one load (the mean slice) and proves it: it names the experts that live only on the ranks which stay
costliest. ``improve_shares`` looks for shares that serve all slices of a trace well at once, for engines whose shares
stay fixed between plans; engines that split every batch themselves are scored with dispatch ``optimal``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.descent import descend, make_pairs
from placement.errors import InfeasibleError
from placement.flow import hosting, level, whole_speeds
from placement.layer import make_layer, ordered_sum
from placement.placement import Placement
from placement.repair import read_row
from placement.score import alive_slots, check_served, check_shapes, evaluate, slot_shares
from placement.search import GAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placement.flow import Hosting
    from placement.layer import Layer, Row
    from placement.topology import Topology
    from placement.trace import LoadTrace

UNITS = 2.0**32
"""Total of a mean slice in whole units: shares are exact to about 1e-9."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Why no shares are better in a layer: ``experts`` live only on ``ranks``, which they fill alone and evenly by speed.

    ``ratio``: cost of these ranks over the mean, 1.0 where nothing but the mean binds; the tokens of ``experts`` / the speed of
    ``ranks`` over all tokens / all speed.
    """

    layer: int
    experts: tuple[int, ...]
    ranks: tuple[int, ...]
    ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Exact shares of a map for the mean slice of a trace.

    ``placement``: the map with its new shares. ``shares``: float64 [layers, slots], the same, summing to 1 over the copies of
    each expert; 0 on empty and dead slots. ``bottlenecks``: one for each layer with load.
    """

    placement: Placement
    shares: NDArray[np.float64]
    bottlenecks: tuple[Bottleneck, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharesChange:
    """New shares for a live map and what they are worth on the trace.

    ``placement``: the same map with shares; those it had where nothing better was found. ``objective``,
    ``objective_start``: mean over slices and layers of the costliest rank over the mean with the new and with the present
    shares (even where it has none); NaN without any load. ``layers``: those whose shares changed.
    """

    placement: Placement
    objective: float
    objective_start: float
    layers: tuple[int, ...]


def exact_shares(placement: Placement, trace: LoadTrace, topology: Topology) -> Split:
    """Shares with the least costliest rank on the mean slice, then the least second, and so on (field notes 2.8).

    Every slice counts by its weight, whatever its tokens, as in the objective of a solve. Gaps, twins, speeds and dead ranks
    are taken as they are.

    Raises:
        MapError: the map's shape or an id does not fit, or an expert with load has no slot on a live rank.
        InfeasibleError: every rank is dead.
    """
    held = _hosting(placement, trace, topology)
    loads = mean_loads(trace)
    speed = topology.speed_of_rank()
    flow = level(held, loads, whole_speeds(speed))
    found = []
    for layer in np.flatnonzero(loads.any(axis=1)).tolist():
        experts, ranks = flow.bottleneck_experts[layer], flow.bottleneck_ranks[layer]
        mean = int(loads[layer].sum()) / ordered_sum(speed)
        ratio = int(loads[layer][experts].sum()) / ordered_sum(speed[ranks]) / mean
        found.append(Bottleneck(layer, _ids(experts), _ids(ranks), ratio))
    shares = held.of_slots(flow.part)
    return Split(Placement(placement.physical_to_logical, shares), shares, tuple(found))


def improve_shares(placement: Placement, trace: LoadTrace, topology: Topology) -> SharesChange:
    """Look for fixed shares with a lower objective over all slices; never worse than the present ones, no bytes moved.

    Weighs the even shares, those of ``exact_shares`` and a descent over all slices (``placement.descent``) against the present ones;
    each layer keeps the best by the objective itself (``likely_shares``). Shares that are exact for the mean slice are often worse than even
    ones here: experts that peak at different times look alike in the mean.

    Raises:
        MapError: the map's shape or an id does not fit, or an expert with load has no slot on a live rank.
        InfeasibleError: every rank is dead.
    """
    check_shapes(placement, trace, topology)
    before = evaluate(placement, trace, topology, dispatch="weighted")
    least = np.nan_to_num(before.layer_ratio())
    best = slot_shares(placement, topology, trace.experts, weighted=True)
    small, live_slots = topology.live()
    loads = mean_loads(trace)
    changed = []
    for at, ids in enumerate(placement.physical_to_logical):
        layer = make_layer(trace.tokens[:, at], trace.slice_weights(), small)
        row = read_row(ids, live_slots, trace.experts)
        for shares in likely_shares(layer, row, loads[at]):
            value = layer.shared_value(row, shares)
            if value < least[at] - GAIN:
                least[at], best[at, live_slots] = value, shares
                changed.append(at)
    new = Placement(placement.physical_to_logical, best) if changed else placement
    after = evaluate(new, trace, topology, dispatch="weighted")
    return SharesChange(new, after.mean_ratio, before.mean_ratio, tuple(sorted(set(changed))))


def likely_shares(layer: Layer, row: Row, mean: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
    """Shares of a row that may serve all slices of its layer well, float64 [slots] each: even, exact for the mean, descended.

    ``mean``: int64 [experts], the layer's mean slice as in ``mean_loads``.
    """
    filled = np.where(row < layer.experts, row, -1)
    yield np.where(filled >= 0, 1.0 / layer.replicas(row)[row], 0.0)
    held = hosting(filled[None], layer.rank_of_slot, layer.experts, layer.ranks)
    pairs, some = make_pairs(held, layer)
    if not (len(some) and layer.loaded):
        return
    speed = whole_speeds(1.0 / layer.inverse_speed)
    yield held.of_slots(level(held, mean[None], speed).part)[0]
    part = np.ones(len(held.rank))
    part[some] = descend(pairs)
    yield held.of_slots(part)[0]


def mean_loads(trace: LoadTrace) -> NDArray[np.int64]:
    """The mean slice in whole units, int64 [layers, experts]: every slice scaled to one total, by weight; exact for one slice."""
    weights = trace.slice_weights()
    if np.count_nonzero(weights) == 1:
        only: NDArray[np.int64] = trace.tokens[int(weights.argmax())]
        return only
    total = trace.tokens.sum(axis=2, keepdims=True)
    scaled = np.divide(trace.tokens, total, out=np.zeros(trace.tokens.shape), where=total > 0)
    summed = np.cumsum(scaled * weights[:, None, None], axis=0)[-1]
    whole = np.rint(summed / ordered_sum(weights) * UNITS).astype(np.int64)
    loads: NDArray[np.int64] = np.where(summed > 0, np.maximum(whole, 1), 0)
    return loads


def _ids(chosen: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(chosen).tolist())


def _hosting(placement: Placement, trace: LoadTrace, topology: Topology) -> Hosting:
    check_shapes(placement, trace, topology)
    if not topology.live_ranks:
        raise InfeasibleError(f"all {topology.ranks} ranks are dead: at least 1 must live")
    alive = alive_slots(topology)
    for layer, row in enumerate(placement.physical_to_logical):
        check_served(trace, alive, layer, row)
    rows = np.where(alive, placement.physical_to_logical, -1).astype(np.int64)
    return hosting(rows, topology.rank_of_slot(), trace.experts, topology.ranks)
