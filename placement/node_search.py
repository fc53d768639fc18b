"""Solve with regard to traffic: homes for the experts first, then the ordinary search inside every node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import real
from placement.coactivation import Touched, merged_sets
from placement.errors import TraceError, UnsupportedError
from placement.frontier import Path, Stop
from placement.layer import make_layer, ordered_sum
from placement.nodes import WEIGHED, first_homes, improve_homes, live_homes, make_room, whole_loads
from placement.peaks import Peaks
from placement.result import Reason
from placement.sources import local_share, near_sources, node_tokens
from placement.traffic import (
    NO_GAIN,
    NODE_DEDUPE,
    RANK_DEDUPE,
    bin_shares,
    bins_of,
    check_dispatcher,
    layer_fan_out,
    random_fan_out,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row
    from placement.nodes import HomeSearch
    from placement.routes import Routes
    from placement.topology import Topology
    from placement.trace import LoadTrace

Sets = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""Distinct sets of one layer, int64 [sets, top_k], and the tokens of each, int64 [sets]."""

NODE_COST = 4.0
"""Mean rank loads that one node more per token counts for at ``traffic_weight`` 1.0, where traffic comes first. At 0.1 to 0.25
it is what a 100 to 400 Gbit/s link costs beside the experts' own time (bytes of field.md 3.1), and balance leads."""

MOST_WEIGHT = 1e6
"""Largest ``traffic_weight``: beyond it the ratio is lost in the last digits of the objective."""

NODE_TOLERANCE = 1.05
"""Most planned load of a node over its fair share."""

HOME_STEPS = {"fast": 60, "normal": 300, "thorough": 1000}
"""Steps of the search for homes in one layer."""

MOST_SAMPLES = 2**16
"""Tokens whose routes the search for homes weighs in a layer; of more, an evenly spaced choice."""

MOST_SLICES = 64
"""Slices that the search for homes weighs; of more, an evenly spaced choice."""

LIVE_STEPS = (4, 16)
"""Shorter searches from a live map's homes, for points of the frontier with few moves."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What a solve that heeds traffic works with.

    ``weight``: the caller's ``traffic_weight``, in units of NODE_COST. ``plan``: routes to plan with; ``score``: merged sets
    of every layer from other requests, to score with. ``sources``: int64 [nodes, experts] of every layer, tokens by the node
    they started on; None = unknown. ``topology``: the live ranks. ``group_size``: consecutive experts that must share a node,
    1 = none need to. ``tolerance``: most load of a node over its fair share.
    """

    weight: float
    trace: LoadTrace
    plan: Routes
    score: tuple[Sets, ...]
    sources: tuple[NDArray[np.int64], ...] | None
    topology: Topology
    dispatcher: str
    group_size: int = 1
    tolerance: float = NODE_TOLERANCE

    def fan_out(self, row: Row, at: int) -> float:
        """Mean nodes (or ranks) that a held-out token of layer ``at`` touches; NaN without routes there."""
        sets, tokens = self.score[at]
        if not len(sets):
            return nan
        return layer_fan_out(row, sets, tokens, self.topology, self.trace.experts, dispatcher=self.dispatcher)

    def price(self, row: Row, at: int) -> float:
        """What the traffic adds to the layer's objective: weight × NODE_COST × (fan-out - 1) on held-out routes."""
        fan = self.fan_out(row, at)
        return 0.0 if isnan(fan) else self.weight * NODE_COST * (fan - 1.0)


def prepare(
    trace: LoadTrace, topology: Topology, weight: float, *, dispatcher: str = NODE_DEDUPE, group_size: int = 1
) -> tuple[Traffic | None, tuple[Reason, ...]]:
    """Check what was asked and split the routes; None, with the reason, where no placement can save traffic.

    Raises:
        UnsupportedError: the weight is negative or not finite, the dispatcher is unknown, or the trace carries no routes.
        TraceError: the trace's source tokens name another number of ranks than the topology.
    """
    check_dispatcher(dispatcher)
    weight = real("traffic_weight", weight, UnsupportedError)
    if not 0 <= weight <= MOST_WEIGHT:
        raise UnsupportedError(f"traffic_weight is {weight}, must be at least 0 and at most {MOST_WEIGHT:g}")
    if weight == 0:
        return None, ()
    if dispatcher in NO_GAIN:
        return None, (_ignored(weight, NO_GAIN[dispatcher]),)
    if trace.routes is None:
        raise UnsupportedError(f"traffic_weight is {weight}, but the trace carries no routes: use 0.0")
    live, _ = topology.live()
    if live.nodes == 1:
        return None, (_ignored(weight, "all live ranks are on one node"),)
    try:
        plan, score = trace.routes.held_out()
    except TraceError as error:
        return None, (_ignored(weight, f"it cannot be measured before it is offered, {error}"),)
    merged = tuple(merged_sets(score.experts[:, at], trace.experts)[:2] for at in range(trace.layers))
    sources = None if trace.source_tokens is None else _sources(trace.source_tokens, topology, live)
    return Traffic(weight, trace, plan, merged, sources, live, dispatcher, group_size), ()


def _sources(
    rank_tokens: NDArray[np.int64], topology: Topology, live: Topology
) -> tuple[NDArray[np.int64], ...]:
    if len(rank_tokens) != topology.ranks:
        raise TraceError(f"source_tokens name {len(rank_tokens)} ranks, the topology has {topology.ranks}")
    # Nothing starts on a dead rank any more.
    kept = rank_tokens[list(topology.live_ranks)]
    return tuple(node_tokens(kept[:, at], live) for at in range(kept.shape[1]))


def home_steps(effort: str, evaluations: int | None, layers: int) -> int:
    """Steps of the search for homes in one layer, so that all layers weigh at most ``evaluations`` exchanges (None = any)."""
    steps = HOME_STEPS[effort]
    return steps if evaluations is None else min(steps, evaluations // (4 * WEIGHED * layers))


def _ignored(weight: float, why: str) -> Reason:
    return Reason("traffic_ignored", f"traffic_weight {weight:g} is ignored: {why}")


def node_assignment(
    traffic: Traffic, at: int, search: HomeSearch, current: Row | None = None
) -> list[NDArray[np.int64]]:
    """Node of every expert of layer ``at``, int64 [experts], for all its copies: some choices, the longest search last.

    ``current``: row of the live map, from whose homes the searches then start; the shorter ones need fewer moves.
    Empty where the layer has no load or no routes, or where a node could not be filled without an expert of another node.
    """
    trace, topology, size = traffic.trace, traffic.topology, traffic.group_size
    layer = make_layer(trace.tokens[:, at], trace.slice_weights(), topology)
    units = trace.experts // size
    picks = traffic.plan.experts[:, at]
    picks = picks[np.arange(min(len(picks), MOST_SAMPLES)) * len(picks) // min(len(picks), MOST_SAMPLES)]
    sets, tokens, _ = merged_sets(_grouped(picks, size), units)
    room = make_room(topology, trace.experts, traffic.tolerance, size)
    if not layer.loaded or not len(sets) or not room.fits(units):
        return []
    mean = np.cumsum(layer.loads[:, :-1] * layer.weights[:, None], axis=0)[-1]
    kinds = np.stack([mean, trace.tokens[:, at].sum(axis=0, dtype=np.float64)])
    loads = whole_loads(np.add.reduceat(kinds, np.arange(units) * size, axis=1))
    searches: tuple[int, ...] = (search.steps,)
    homes = first_homes(room, loads[0])
    if current is not None:
        bins, count = bins_of(topology, NODE_DEDUPE)
        held = bin_shares(current, bins, count, trace.experts)[:-1]
        homes = live_homes(np.add.reduceat(held, np.arange(units) * size), room, loads[0])
        searches = (*(steps for steps in LIVE_STEPS if steps < search.steps), search.steps)
    found = []
    for steps in searches:
        touched = Touched(sets, tokens, homes, topology.nodes)
        peaks = _peaks(traffic, at, touched, int(tokens.sum()))
        found.append(improve_homes(peaks, touched, room, loads, search=replace(search, steps=steps)))
    spread = [np.repeat(home, size) for home in found]
    if current is not None or traffic.sources is None:
        return spread
    return [near_sources(home, traffic.sources[at], topology) for home in spread]


def _peaks(traffic: Traffic, at: int, touched: Touched, tokens: int) -> Peaks:
    trace, topology, size = traffic.trace, traffic.topology, traffic.group_size
    few = make_layer(trace.tokens[:, at], trace.slice_weights(), topology, MOST_SLICES)
    node = np.array(topology.node_of_rank)
    speed = np.bincount(node, topology.speed_of_rank(), topology.nodes).astype(np.float64)
    loads = np.add.reduceat(few.loads[:, :-1], np.arange(0, trace.experts, size), axis=1)
    return Peaks(touched, loads, few.weights, speed, weight=traffic.weight * NODE_COST, tokens=tokens)


def _grouped(picks: NDArray[np.int16], size: int) -> NDArray[np.int16]:
    """Sets of groups instead of sets of experts, each group once."""
    if size == 1:
        return picks
    groups = np.sort(np.where(picks < 0, picks, picks // size), axis=1)
    groups[:, 1:][groups[:, 1:] == groups[:, :-1]] = -1
    return groups


def priced(
    traffic: Traffic, at: int, plain: Path, aside: list[Path], start: float | None
) -> tuple[Path, float | None]:
    """The path of a layer with the traffic in its objective, and the live row's own objective.

    ``plain``: the path without regard to traffic; ``aside``: paths with homes, whose stops compete with it.
    """
    stops = [
        Stop(stop.moves, stop.value + traffic.price(stop.row, at), stop.row, stop.shares)
        for path in (plain, *aside)
        for stop in path.stops
    ]
    kept: list[Stop] = []
    for stop in sorted(stops, key=lambda stop: (stop.moves, stop.value)):
        if not kept or stop.value < kept[-1].value:
            kept.append(stop)
    if plain.current is None:
        return Path(plain.layer, None, (min(stops, key=lambda stop: stop.value),)), start
    if start is not None:
        start += traffic.price(plain.current, at)
    return Path(plain.layer, plain.current, tuple(kept)), start


def measured(
    traffic: Traffic, plain: tuple[Path, ...], chosen: list[Stop], weights: NDArray[np.float64]
) -> Reason:
    """Say the fan-out on held-out routes beside that of the search without regard to traffic.

    ``chosen``: the stop of every layer, priced. ``weights``: float64 [layers], part of every layer in the objective.
    """
    layers = [at for at, stop in enumerate(chosen) if not isnan(traffic.fan_out(stop.row, at))]
    if not layers or not weights[layers].any():
        return Reason(
            "traffic", "no layer with load has held-out routes: the traffic term is 0 for every map"
        )
    part = weights[layers] / ordered_sum(weights[layers])

    def mean(values: list[float]) -> float:
        return ordered_sum(part * np.array(values))

    before = [path.stops[-1] for path in plain]
    then = mean([traffic.fan_out(before[at].row, at) for at in layers])
    now = mean([traffic.fan_out(chosen[at].row, at) for at in layers])
    ratio = mean([chosen[at].value - traffic.price(chosen[at].row, at) for at in layers])
    hottest = max(node_load(plain[at].layer, chosen[at].row, traffic.topology) for at in layers)
    what = "ranks" if traffic.dispatcher == RANK_DEDUPE else "nodes"
    text = (
        f"a token touches {now:.3f} {what} on held-out routes instead of {then:.3f} without "
        f"traffic_weight ({100 * (now / then - 1):+.1f} %; at random {_random(traffic):.3f}), for an imbalance of "
        f"{ratio:.4f} instead of {mean([before[at].value for at in layers]):.4f}; "
        f"the hottest node is planned at {hottest:.3f} of its fair share"
    )
    text += f"; {sum(_at_home(traffic, chosen[at].row) for at in layers)} of {len(layers)} layers keep every expert to one node"
    if hottest > traffic.tolerance:
        text += f", above the tolerance of {traffic.tolerance:g}"
    if traffic.sources is not None:
        near = mean([local_share(chosen[at].row, traffic.sources[at], traffic.topology) for at in layers])
        text += f"; {100 * near:.1f} % of the picks start on the node of their copy"
    return Reason("traffic", text)


def _at_home(traffic: Traffic, row: Row) -> bool:
    bins, count = bins_of(traffic.topology, NODE_DEDUPE)
    return bool((bin_shares(row, bins, count, traffic.trace.experts).max(axis=1)[:-1] == 1.0).all())


def _random(traffic: Traffic) -> float:
    _, count = bins_of(traffic.topology, traffic.dispatcher)
    return random_fan_out(traffic.trace.experts, min(traffic.plan.top_k, traffic.trace.experts), count)


def node_load(layer: Layer, row: Row, topology: Topology) -> float:
    """Planned load of the hottest node over its fair share: mean over slices, copies sharing evenly."""
    mean = np.cumsum(layer.loads * layer.weights[:, None], axis=0)[-1]
    slots = mean[row] / layer.replicas(row)[row]
    node = np.array(topology.node_of_rank)
    load = np.bincount(node[layer.rank_of_slot], slots, topology.nodes)
    return float((load / np.bincount(node, topology.speed_of_rank(), topology.nodes)).max())
