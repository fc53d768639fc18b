"""Score a map on a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import instance
from placement.cost import Activation, as_cost
from placement.dispatch import Copies, Dispatcher, as_dispatch, assumptions
from placement.errors import InfeasibleError, MapError
from placement.layer import ordered_sum
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
    rule, model = as_dispatch(dispatch), as_cost(cost)
    if not topology.live_ranks:
        raise InfeasibleError(f"all {topology.ranks} ranks are dead: at least 1 must live")
    reasons = assumptions(rule, trace)
    clock = None
    if model is not None:
        clock = _Clock(model, Activation.of(trace))
        reasons += (clock.activation.reason,)
    dispatcher, meter = Dispatcher(rule, trace, topology), _Meter(topology, trace, clock)
    alive = alive_slots(topology)
    for layer, row in enumerate(placement.physical_to_logical):
        check_served(trace, alive, layer, row)
        shares = None if placement.shares is None else placement.shares[layer]
        meter.add(layer, row, dispatcher.parts(layer, row, shares), whole=dispatcher.whole)
    return Score(meter.ratio(), meter.loads, meter.costs, trace.slice_weights(), reasons)


@dataclass(frozen=True, slots=True, eq=False)
class _Clock:
    """A roofline and what it knows of a trace's steps."""

    model: Roofline
    activation: Activation

    def least_us(self, tokens: NDArray[np.int64], speed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time of every rank if work could be cut at will, float64 [slices]: one copy an expert, spread by speed.

        ``tokens``: int64 [slices, experts]; ``speed``: float64 [live ranks].
        """
        ranks, experts = len(speed), tokens.shape[1]
        read = self.activation.chance(tokens, np.ones((1, experts)), whole=False).sum(axis=1)
        each = tokens.sum(axis=1) / self.activation.steps / ranks
        time = self.model.us(np.full(1, experts / ranks), read / ranks, each)
        least: NDArray[np.float64] = time * ranks / speed.sum()
        return least


class _Meter:
    """Adds up what the ranks serve and what it costs them, layer by layer.

    ``loads``, ``costs``: float64 [slices, layers, ranks], as in a score.
    """

    def __init__(self, topology: Topology, trace: LoadTrace, clock: _Clock | None) -> None:
        self.loads = np.zeros((trace.slices, trace.layers, topology.ranks))
        self.costs = np.zeros(self.loads.shape)
        self._balanced = np.zeros(self.loads.shape[:2])
        self._first = np.searchsorted(topology.rank_of_slot(), np.arange(topology.ranks))
        self._trace, self._clock = trace, clock
        self._live = np.array(topology.live_ranks)
        self._speed = topology.speed_of_rank()[self._live]

    def add(self, layer: int, row: NDArray[np.int32], parts: NDArray[np.float64], *, whole: bool) -> None:
        """Count one layer; ``parts``: float64 [slices or 1, slots]."""
        tokens, live = self._trace.tokens[:, layer], self._live
        of_slot = tokens[:, np.maximum(row, 0)]
        self.loads[:, layer] = np.add.reduceat(of_slot * parts, self._first, axis=1)
        cost = self.loads[:, layer, live]
        if self._clock is None:
            self._balanced[:, layer] = tokens.sum(axis=1) / self._speed.sum()
        else:
            chance = self._clock.activation.chance(of_slot, parts, whole=whole)
            activated = np.add.reduceat(chance, self._first, axis=1)[:, live]
            held = np.add.reduceat((row >= 0).astype(np.float64), self._first)[live]
            cost = self._clock.model.us(held, activated, cost / self._clock.activation.steps[:, None])
            self._balanced[:, layer] = self._clock.least_us(tokens, self._speed)
        self.costs[:, layer, live] = cost / self._speed

    def ratio(self) -> NDArray[np.float64]:
        """Costliest rank over perfect balance, float64 [slices, layers]; NaN without load."""
        loaded = self._trace.tokens.any(axis=2)
        worst = self.costs[:, :, self._live].max(axis=2)
        result: NDArray[np.float64] = np.divide(
            worst, self._balanced, out=np.full(worst.shape, np.nan), where=loaded
        )
        return result


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
