"""Score a map on a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import instance
from placement.dispatch import Copies
from placement.errors import InfeasibleError, MapError
from placement.layer import ordered_sum
from placement.objective import Objective
from placement.placement import Placement
from placement.topology import Topology
from placement.trace import LoadTrace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.cost import Roofline
    from placement.dispatch import Dispatch
    from placement.result import Reason


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How a map would have served a trace.

    ``ratio``: float64 [slices, layers], cost of the costliest live rank over that of perfect balance, >= 1; NaN where a layer
    has no load. Perfect balance does not depend on the map: all work spread over the ranks by speed, every expert read once.
    ``rank_load``: float64 [slices, layers, ranks], tokens of a whole slice. ``rank_cost``: float64 [slices, layers, ranks],
    tokens / speed, or microseconds a step with a roofline; 0 for dead ranks.
    ``weights``: float64 [slices], weight of every slice. ``reasons``: what was assumed, and what activation rests on.
    """

    ratio: NDArray[np.float64]
    rank_load: NDArray[np.float64]
    rank_cost: NDArray[np.float64]
    weights: NDArray[np.float64]
    reasons: tuple[Reason, ...] = ()

    @property
    def mean_ratio(self) -> float:
        """Weighted mean over slices and layers with load: the objective; NaN without any load."""
        weight = self._weight()
        total = ordered_sum(weight.ravel())
        summed = ordered_sum((np.where(weight > 0, self.ratio, 0.0) * weight).ravel())
        return summed / total if total > 0 else float("nan")

    def layer_ratio(self) -> NDArray[np.float64]:
        """Weighted mean ratio of every layer, float64 [layers]; NaN where a layer has no load."""
        weight = self._weight()
        total = np.cumsum(weight, axis=0)[-1]
        summed = np.cumsum(np.where(weight > 0, self.ratio, 0.0) * weight, axis=0)[-1]
        result = np.full(total.shape, np.nan)
        np.divide(summed, total, out=result, where=total > 0)
        return result

    def _weight(self) -> NDArray[np.float64]:
        return np.where(np.isnan(self.ratio), 0.0, self.weights[:, None])


def evaluate(
    placement: Placement,
    trace: LoadTrace,
    topology: Topology,
    dispatch: str | Dispatch = "even",
    cost: str | Roofline = "tokens",
) -> Score:
    """Score any map that serves every loaded expert, twins and gaps included.

    ``dispatch``: how the engine picks a copy, by name or as a ``Dispatch`` with settings. ``cost``: ``tokens`` = tokens /
    speed; ``roofline`` (the preset of the H200) or a ``Roofline`` = microseconds a step / speed. What a rule needs and the
    trace does not hold is assumed and stands in ``reasons``.

    Raises:
        MapError: the map's shape or an id does not fit, or an expert with load has no slot on a live rank.
        TraceError: a roofline is asked for, and neither are slices one step nor is the batch recorded.
        UnsupportedError: the dispatch or the cost is unknown.
        InfeasibleError: every rank is dead.
    """
    check_shapes(placement, trace, topology)
    if not topology.live_ranks:
        raise InfeasibleError(f"all {topology.ranks} ranks are dead: at least 1 must live")
    objective = Objective(dispatch, cost, trace, topology)
    shape = (trace.slices, trace.layers, topology.ranks)
    ratio, loads, costs = np.empty(shape[:2]), np.empty(shape), np.empty(shape)
    alive = alive_slots(topology)
    for at, row in enumerate(placement.physical_to_logical):
        check_served(trace, alive, at, row)
        layer = objective.layer(at)
        served = layer.served(row, None if placement.shares is None else placement.shares[at])
        loads[:, at], costs[:, at] = served
        ratio[:, at] = layer.ratio(served[1])
    return Score(ratio, loads, costs, trace.slice_weights(), objective.reasons)


def slot_shares(
    placement: Placement, topology: Topology, experts: int, *, weighted: bool
) -> NDArray[np.float64]:
    """Part of its expert's tokens that every slot gets, float64 [layers, slots]; empty, unknown and dead ones get 0."""
    alive = alive_slots(topology)
    result = np.empty(placement.physical_to_logical.shape)
    for layer, row in enumerate(placement.physical_to_logical):
        copies = Copies.of(row, alive, experts)
        shares = placement.shares[layer] if weighted and placement.shares is not None else None
        result[layer] = copies.even() if shares is None else copies.weighted(shares)
    return result


def alive_slots(topology: Topology) -> NDArray[np.bool_]:
    """Slots of live ranks, bool [slots]."""
    return ~np.isin(topology.rank_of_slot(), list(topology.dead))


def check_shapes(placement: Placement, trace: LoadTrace, topology: Topology) -> None:
    """Refuse a map whose shape or ids do not fit.

    Raises:
        MapError: names both; or what is given is no ``Placement``.
        PlacementError: the trace or the topology is none.
    """
    instance("placement", placement, Placement, MapError)
    instance("trace", trace, LoadTrace)
    instance("topology", topology, Topology)
    if placement.slots != topology.slots:
        raise MapError(f"the map has {placement.slots} slots a layer, the topology {topology.slots}")
    if placement.layers != trace.layers:
        raise MapError(f"the map has {placement.layers} layers, the trace {trace.layers}")
    rows = placement.physical_to_logical
    if int(rows.max()) >= trace.experts or int(rows.min()) < -1:
        raise MapError(
            f"the map holds ids from {rows.min()} to {rows.max()}, the trace has experts 0..{trace.experts - 1}"
        )


def check_served(trace: LoadTrace, alive: NDArray[np.bool_], layer: int, row: NDArray[np.int32]) -> None:
    """Refuse a row that leaves an expert with load without a slot in ``alive``, bool [slots].

    Raises:
        MapError: names the layer and the expert.
    """
    served = np.zeros(trace.experts, dtype=bool)
    served[row[alive & (row >= 0)]] = True
    lost = trace.tokens[:, layer].any(axis=0) & ~served
    if lost.any():
        raise MapError(f"layer {layer}: expert {int(lost.argmax())} has load but no slot on a live rank")
