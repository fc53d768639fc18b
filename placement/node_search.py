"""Solve with regard to traffic: nodes for the experts first, then the ordinary search inside every node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import real
from placement.choice import (
    EVEN,
    OF_DISPATCH,
    PER_SOURCE,
    Bins,
    bin_shares,
    check_choice,
    copy_table,
    tokens_of,
)
from placement.errors import MapError, TraceError, UnsupportedError
from placement.layer import make_layer, ordered_sum
from placement.nodes import Figure, first_nodes, improve_nodes, live_nodes, make_room, part_loads
from placement.parts import Parts
from placement.result import Reason
from placement.routes import Routes
from placement.sources import bin_tokens, local_share, near_sources, routed_from, start_parts
from placement.traffic import (
    NO_GAIN,
    NODE_DEDUPE,
    RANK_DEDUPE,
    bins_of,
    check_dispatcher,
    layer_fan_out,
    random_fan_out,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.choice import Tokens
    from placement.frontier import Path, Stop
    from placement.layer import Layer, Row
    from placement.nodes import NodeSearch, Room
    from placement.topology import Topology
    from placement.trace import LoadTrace

NODE_COST = 4.0
"""Mean rank loads that one node more per token counts for at ``traffic_weight`` 1.0, where traffic comes first. At 0.1 to 0.25
it is what a 100 to 400 Gbit/s link costs beside the experts' own time (bytes of field.md 3.1), and balance leads."""

MOST_WEIGHT = 1e6
"""Largest ``traffic_weight``: beyond it the ratio is lost in the last digits of the objective."""

NODE_TOLERANCE = 1.05
"""Most planned load of a node over its fair share."""

PER_EXPERT = {"fast": 100, "normal": 1000, "thorough": 4000}
"""Proposals for every expert (or group) in the search for nodes in one layer."""

MOST = {"fast": 12_000, "normal": 256_000, "thorough": 500_000}
"""Most proposals in the search for nodes in one layer."""

MOST_SAMPLES = {"fast": 2**12, "normal": 2**13, "thorough": 2**14}
"""Tokens whose routes the search for nodes weighs in a layer; of more, an evenly spaced choice."""

MOST_SLICES = 64
"""Slices that the search for nodes weighs; of more, an evenly spaced choice."""

LIVE_PRICES = (1 / 32, 1 / 128)
"""Prices of a node that an expert newly comes to, in parts of the live map's excess over one node per token in perfect balance:
searches from a live map, for points of the frontier with few moves."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What a solve that heeds traffic works with.

    ``weight``: the caller's ``traffic_weight``, in units of NODE_COST. ``plan``: routes to plan with; ``score``: tokens of every
    layer from other requests, to score with. ``sources``: int64 [ranks, experts] of every layer, tokens by the live rank they
    started on; None = unknown. ``topology``: the live ranks. ``choice``: which copy a token takes. ``bins``: what is counted
    once for a token; ``nodes``: the nodes. ``group_size``: consecutive experts that must share a node, 1 = none need to.
    ``samples``: most routes that the search for nodes weighs in a layer. ``tolerance``: most load of a node over its fair share.
    """

    weight: float
    trace: LoadTrace
    plan: Routes
    score: tuple[Tokens, ...]
    sources: tuple[NDArray[np.int64], ...] | None
    topology: Topology
    dispatcher: str
    choice: str
    bins: Bins
    nodes: Bins
    group_size: int
    samples: int
    tolerance: float = NODE_TOLERANCE

    @property
    def remote(self) -> bool:
        """Whether it is known where tokens start, so that the nodes beside a token's own can be counted."""
        return self.plan.sources is not None

    def fan_out(self, row: Row, at: int) -> float:
        """Mean nodes (or ranks) that a held-out token of layer ``at`` touches, its own not counted where it is known; NaN
        without routes there.
        """
        return layer_fan_out(
            row, self.score[at], self.bins, self.trace.experts, self.choice, remote=self.remote
        )

    def price(self, row: Row, at: int) -> float:
        """What the traffic adds to the layer's objective: weight × NODE_COST × nodes beside the token's own, on held-out routes.

        Where the own node is not known it is one of those that are touched.
        """
        fan = self.fan_out(row, at)
        return 0.0 if isnan(fan) else self.weight * NODE_COST * (fan if self.remote else fan - 1.0)

    def starts(self, at: int) -> NDArray[np.int64]:
        """Tokens of layer ``at`` by the start that its choice tells apart, int64 [starts, experts]; zeros where unknown."""
        known = np.zeros((self.topology.ranks, self.trace.experts), dtype=np.int64)
        if self.sources is not None:
            known = self.sources[at]
        if self.nodes.starts(self.choice) == 1:
            return bin_tokens(known, np.zeros_like(self.nodes.of_rank), 1)
        if self.choice == PER_SOURCE:
            return known
        return bin_tokens(known, self.nodes.of_rank, self.nodes.count)

    def node_parts(self, row: Row, at: int, bins: Bins) -> NDArray[np.float64]:
        """Part of every expert's tokens that each node serves, float64 [experts, nodes]."""
        table = copy_table(row, bins, self.trace.experts, self.choice)[:, :-1]
        parts: NDArray[np.float64] = np.cumsum(start_parts(self.starts(at))[:, :, None] * table, axis=0)[-1]
        return parts


def choice_of(dispatch: str, choice: str | None) -> str:
    """The copy that a token takes: the one that belongs to the dispatch rule, unless ``choice`` names another."""
    return OF_DISPATCH.get(dispatch, EVEN) if choice is None else choice


def prepare(
    trace: LoadTrace,
    topology: Topology,
    weight: float,
    *,
    dispatcher: str = NODE_DEDUPE,
    group_size: int = 1,
    choice: str = EVEN,
    effort: str = "normal",
) -> tuple[Traffic | None, tuple[Reason, ...]]:
    """Check what was asked and split the routes; None, with the reason, where no placement can save traffic.

    Raises:
        UnsupportedError: the weight is negative or not finite, the dispatcher or the choice is unknown, or the trace carries
            no routes.
        TraceError: the trace's source tokens name another number of ranks than the topology.
        MapError: the routes name a source that is no rank.
    """
    check_dispatcher(dispatcher)
    check_choice(choice)
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
        plan, score = _from_live(trace.routes, topology).held_out()
    except TraceError as error:
        return None, (_ignored(weight, f"it cannot be measured before it is offered, {error}"),)
    bins, nodes = (bins_of(live, kind, topology.live_ranks) for kind in (dispatcher, NODE_DEDUPE))
    tokens = tuple(tokens_of(score, at, trace.experts, bins, choice) for at in range(trace.layers))
    sources = _sources(trace, topology, plan)
    return Traffic(
        weight,
        trace,
        plan,
        tokens,
        sources,
        live,
        dispatcher,
        choice,
        bins,
        nodes,
        group_size,
        MOST_SAMPLES[effort],
    ), ()


def _from_live(routes: Routes, topology: Topology) -> Routes:
    """Routes whose sources are numbers of live ranks: nothing starts on a dead rank any more."""
    if routes.sources is None:
        return routes
    if int(routes.sources.max()) >= topology.ranks:
        raise MapError(
            f"routes name source rank {int(routes.sources.max())}, ranks are 0..{topology.ranks - 1}"
        )
    kept = np.isin(routes.sources, topology.live_ranks)
    if not kept.any():
        return Routes(routes.experts, routes.requests)
    number = np.searchsorted(topology.live_ranks, routes.sources[kept])
    return Routes(routes.experts[kept], routes.requests[kept], number)


def _sources(trace: LoadTrace, topology: Topology, plan: Routes) -> tuple[NDArray[np.int64], ...] | None:
    tokens = trace.source_tokens
    if tokens is None:
        ranks = len(topology.live_ranks)
        counted = (routed_from(plan, at, ranks, trace.experts) for at in range(trace.layers))
        return None if plan.sources is None else tuple(counted)
    if len(tokens) != topology.ranks:
        raise TraceError(f"source_tokens name {len(tokens)} ranks, the topology has {topology.ranks}")
    kept = tokens[list(topology.live_ranks)]
    return tuple(kept[:, at] for at in range(kept.shape[1]))


def node_proposals(effort: str, evaluations: int | None, layers: int, experts: int) -> int:
    """Proposals of the search for nodes in one layer, so that all layers weigh at most ``evaluations`` (None = any)."""
    proposals = min(PER_EXPERT[effort] * experts, MOST[effort])
    return proposals if evaluations is None else min(proposals, evaluations // (4 * layers))


def _ignored(weight: float, why: str) -> Reason:
    return Reason("traffic_ignored", f"traffic_weight {weight:g} is ignored: {why}")


def node_assignment(
    traffic: Traffic, at: int, search: NodeSearch, current: Row | None = None
) -> list[NDArray[np.bool_]]:
    """Nodes that hold each expert of layer ``at``, bool [experts, nodes]: some choices, the longest search last.

    ``current``: row of the live map, from whose nodes the searches then start; the first ones need fewer moves.
    Empty where the layer has no load or no routes, or where a node could not be filled without an expert of another node.
    """
    trace, topology, size = traffic.trace, traffic.topology, traffic.group_size
    layer = make_layer(trace.tokens[:, at], trace.slice_weights(), topology)
    units = trace.experts // size
    room = make_room(topology, trace.experts, traffic.tolerance, size)
    figure = _figure(traffic, at, layer, room)
    if not layer.loaded or not len(figure.tokens.sets) or not room.fits(units):
        return []
    held = first_nodes(room, figure.sums[0])
    searches = [search]
    if current is not None:
        copies = bin_shares(current, traffic.nodes.of_slot, traffic.nodes.count, trace.experts)[:-1]
        copies = np.add.reduceat(copies, np.arange(units) * size)
        held = live_nodes(copies, room, figure.sums[0], alone=figure.alone)
        excess = layer.value(current) - 1.0 + traffic.price(current, at) if _complete(layer, current) else 1.0
        third = search.proposals // len(LIVE_PRICES)
        searches = [replace(search, proposals=third, price=part * max(excess, 0.1)) for part in LIVE_PRICES]
        searches.append(search)
    found = [improve_nodes(figure, held, room, one) for one in searches]
    spread = [np.repeat(one, size, axis=0) for one in found]
    if current is not None or traffic.sources is None or traffic.remote:
        return spread
    tokens = bin_tokens(traffic.sources[at], traffic.nodes.of_rank, traffic.nodes.count)
    return [near_sources(one, tokens, topology) for one in spread]


def _complete(layer: Layer, row: Row) -> bool:
    return bool((np.bincount(row, minlength=layer.experts + 1)[:-1] > 0).all())


def parts_of(traffic: Traffic, at: int, held: NDArray[np.bool_]) -> Parts:
    """Parts of the experts on the nodes that hold them (bool [experts, nodes]), one copy on each."""
    expert, node = np.nonzero(held)
    return Parts.of(held, traffic.node_parts(expert, at, replace(traffic.nodes, of_slot=node)))


def _figure(traffic: Traffic, at: int, layer: Layer, room: Room) -> Figure:
    trace, topology, size = traffic.trace, traffic.topology, traffic.group_size
    units = np.arange(0, trace.experts, size)
    samples = min(traffic.plan.samples, traffic.samples)
    some = np.arange(samples) * traffic.plan.samples // samples
    sources = None if traffic.plan.sources is None else traffic.plan.sources[some]
    picks = _grouped(traffic.plan.experts[some, at], size)[:, None]
    few = Routes(picks, traffic.plan.requests[some], sources)
    tokens = tokens_of(few, 0, len(units), traffic.nodes, traffic.choice, sampled=True)
    mean = np.cumsum(layer.loads[:, :-1] * layer.weights[:, None], axis=0)[-1]
    kinds = np.stack([mean, trace.tokens[:, at].sum(axis=0, dtype=np.float64)])
    sums = part_loads(np.add.reduceat(kinds, units, axis=1))
    coarse = make_layer(trace.tokens[:, at], trace.slice_weights(), topology, MOST_SLICES)
    speed = np.bincount(topology.node_of_rank, topology.speed_of_rank(), topology.nodes).astype(np.float64)
    return Figure(
        tokens,
        np.add.reduceat(coarse.loads[:, :-1], units, axis=1),
        coarse.weights,
        speed,
        sums,
        traffic.weight * NODE_COST,
        traffic.choice,
        start_parts(np.add.reduceat(traffic.starts(at), units, axis=1)),
        traffic.nodes.number,
        # A copy elsewhere that is taken by chance sends tokens to more nodes: only what no node can bear alone is split.
        alone=size > 1 or (traffic.choice == EVEN and bool((sums.max(axis=1) <= room.load.max()).all())),
    )


def _grouped(picks: NDArray[np.int16], size: int) -> NDArray[np.int16]:
    """Sets of groups instead of sets of experts, each group once."""
    if size == 1:
        return picks
    groups = np.sort(np.where(picks < 0, picks, picks // size), axis=1)
    groups[:, 1:][groups[:, 1:] == groups[:, :-1]] = -1
    return groups


def measured(
    traffic: Traffic,
    plain: list[Path],
    chosen: list[Stop],
    weights: NDArray[np.float64],
    hottest: list[float],
) -> Reason:
    """Say the fan-out on held-out routes beside that of the search without regard to traffic.

    ``chosen``: the stop of every layer, priced. ``weights``: float64 [layers], part of every layer in the objective. ``hottest``: planned
    load of every layer's hottest node over its fair share.
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
    most = max(hottest[at] for at in layers)
    what = "ranks" if traffic.dispatcher == RANK_DEDUPE else "nodes"
    what += " beside its own" if traffic.remote else ""
    change = 100 * (now / then - 1) if then else 0.0
    text = (
        f"a token touches {now:.3f} {what} on held-out routes instead of {then:.3f} without "
        f"traffic_weight ({change:+.1f} %; {_random(traffic)}), for an imbalance of "
        f"{ratio:.4f} instead of {mean([before[at].value for at in layers]):.4f}; "
        f"the hottest node is planned at {most:.3f} of its fair share"
    )
    text += f"; {sum(_at_home(traffic, chosen[at].row) for at in layers)} of {len(layers)} layers keep every expert to one node"
    if most > traffic.tolerance:
        text += f", above the tolerance of {traffic.tolerance:g}"
    if traffic.sources is not None:
        near = mean([_local(traffic, chosen[at].row, at) for at in layers])
        text += f"; {100 * near:.1f} % of the picks start on the node of their copy"
    return Reason("traffic", text)


def _at_home(traffic: Traffic, row: Row) -> bool:
    shares = bin_shares(row, traffic.nodes.of_slot, traffic.nodes.count, traffic.trace.experts)
    return bool((shares.max(axis=1)[:-1] == 1.0).all())


def _local(traffic: Traffic, row: Row, at: int) -> float:
    tokens = np.zeros((traffic.topology.ranks, traffic.trace.experts), dtype=np.int64)
    if traffic.sources is not None:
        tokens = traffic.sources[at]
    own, nodes = traffic.nodes.of_rank, traffic.nodes
    if traffic.choice != PER_SOURCE:
        tokens, own = bin_tokens(tokens, own, nodes.count), np.arange(nodes.count)
    return local_share(copy_table(row, nodes, traffic.trace.experts, traffic.choice), tokens, own)


def _random(traffic: Traffic) -> str:
    experts = traffic.trace.experts
    fan = random_fan_out(experts, min(traffic.plan.top_k, experts), traffic.bins.count)
    if traffic.remote:
        fan *= 1.0 - 1.0 / traffic.bins.count
    return f"at random {fan:.3f}"
