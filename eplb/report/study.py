"""The numbers of a report: the maps that are compared, what each would have shown on the trace, and what it would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.noise import noise_floor
from eplb.offline.holdout import HOLDOUT, held_out, kinds_of
from eplb.skew import id_order
from placement import LoadTrace, Topology, TraceError, evaluate, fan_out, random_fan_out, solve

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from eplb.formats.facts import TraceFile
    from placement import Placement, Result, Roofline

FRONTIER_POINTS = 16
"""Points of the frontier that are also scored on held-out slices."""

PLAN = "new plan"


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A map and what the reader is to call it."""

    name: str
    placement: Placement


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What is asked of a report.

    ``before``: the map that serves now. ``maps``: maps to compare with it. ``plan``: also solve for one here.
    ``hold_out``: part of the slices that a plan made here never sees. ``top_k``: experts that a token picks, None = what the trace says.
    ``cost``: preset for microseconds, None = none.
    """

    topology: Topology
    before: Named | None = None
    maps: tuple[Named, ...] = ()
    plan: bool = True
    hold_out: float = HOLDOUT
    effort: str = "normal"
    seed: int = 0
    top_k: int | None = None
    cost: Roofline | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """One map on the trace.

    ``ratio``: float64 [slices, layers], NaN without load. ``load``: float64 [layers, ranks], load over the layer's mean, mean over
    the scored slices; NaN without load. ``moves``: slots that get an expert new to their rank. ``nodes_per_token``: mean distinct
    nodes, None = no routes. ``layer_us``: float64 [slices, layers], time of the costliest rank in one step, None = no preset
    or not known; ``layer_us_missing``: why not. ``single``: float64 [layers], largest load of one copy over a rank's fair share.
    """

    name: str
    placement: Placement
    ratio: NDArray[np.float64]
    load: NDArray[np.float64]
    moves: int
    nodes_per_token: float | None
    layer_us: NDArray[np.float64] | None
    layer_us_missing: str
    single: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A map on the way from the one before to the plan: ``moves``, ratio on the planned and on the held-out slices (None)."""

    moves: int
    planned: float
    held: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """Everything that a report shows.

    ``held``: bool [slices], kept from the plan; none where no plan is made here, for no file of a map says what it was planned on. ``floor``: float64 [slices, layers], excess that sampling noise alone would show. ``after``: the
    contender that the page is about, the first of ``others``. ``random_nodes``: mean distinct nodes of a random map.
    """

    file: TraceFile
    ask: Ask
    held: NDArray[np.bool_]
    floor: NDArray[np.float64]
    top_k: int | None
    before: Contender
    others: tuple[Contender, ...]
    result: Result | None
    frontier: tuple[FrontierPoint, ...]
    random_nodes: float | None

    @property
    def after(self) -> Contender:
        """The map that the page is about."""
        return self.others[0]

    @property
    def foreign(self) -> bool:
        """Whether the page is about a map from a file, of which nobody knows here on which slices it was planned."""
        return self.result is None

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Slices that ratios are stated on: those held out, or all where none is: bool [slices]."""
        return self.held if self.held.any() else np.ones(len(self.held), dtype=np.bool_)

    def mean_ratio(self, contender: Contender, keep: NDArray[np.bool_] | None = None) -> float:
        """Mean over the kept slices (default: the scored ones) and their layers with load; NaN without any."""
        return mean(contender.ratio[self.scored if keep is None else keep])

    def mean_floor(self, keep: NDArray[np.bool_] | None = None) -> float:
        """Mean excess that sampling noise alone would show, as ``mean_ratio``."""
        return mean(self.floor[self.scored if keep is None else keep])


def mean(values: NDArray[np.float64]) -> float:
    """Mean of what is not NaN, NaN if nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def study(file: TraceFile, ask: Ask, say: Callable[[str], None] = lambda _: None) -> Study:
    """Work out every number of a report; ``say`` is told what long work begins.

    Raises:
        PlacementError: a map does not fit the trace and the pool, or the pool cannot hold the experts.
    """
    trace, topology = file.trace, ask.topology
    topology.check_holds(trace.experts)
    solves = ask.plan or not ask.maps
    held = held_out(kinds_of(file), ask.hold_out if solves else 0.0)
    scored = held if held.any() else np.ones_like(held)
    before = ask.before or Named("order of ids", id_order(trace, topology))
    top_k = ask.top_k or (None if trace.routes is None else trace.routes.top_k)
    result = None
    maps = list(ask.maps)
    if solves:
        seen = LoadTrace(trace.tokens[~held])
        say(f"solving {trace.layers} layers x {trace.experts} experts on {seen.slices} slices ({ask.effort})")
        result = solve(seen, topology, before.placement, effort=ask.effort, seed=ask.seed)
        maps.insert(0, Named(PLAN, result.placement))
    say(f"scoring {1 + len(maps)} maps on {trace.slices} slices")
    contenders = [_contender(each, before, trace, scored, ask) for each in (before, *maps)]
    return Study(
        file=file,
        ask=ask,
        held=held,
        floor=noise_floor(
            trace.tokens.sum(axis=2) / topology.ranks, topology.ranks, trace.experts, top_k or 1
        ),
        top_k=top_k,
        before=contenders[0],
        others=tuple(contenders[1:]),
        result=result,
        frontier=() if result is None else _frontier(result, trace, held, topology),
        random_nodes=None
        if trace.routes is None
        else random_fan_out(trace.experts, trace.routes.top_k, topology.nodes),
    )


def _contender(
    named: Named, before: Named, trace: LoadTrace, scored: NDArray[np.bool_], ask: Ask
) -> Contender:
    topology, placement = ask.topology, named.placement
    score = evaluate(placement, trace, topology)
    load = score.rank_load[scored]
    fair = load.mean(axis=2, keepdims=True)
    relative = np.divide(load, fair, out=np.full(load.shape, np.nan), where=fair > 0)
    nodes = None if trace.routes is None else mean(fan_out(placement, trace.routes, topology))
    time, missing = _layer_us(placement, trace, ask)
    return Contender(
        name=named.name,
        placement=placement,
        ratio=score.ratio,
        load=_mean_over_slices(relative),
        moves=_moves(before.placement, placement, topology),
        nodes_per_token=nodes,
        layer_us=time,
        layer_us_missing=missing,
        single=_single(placement, trace.tokens[scored].sum(axis=0), topology),
    )


def _mean_over_slices(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    result = np.full(total.shape, np.nan)
    np.divide(total, known.sum(axis=0), out=result, where=known.any(axis=0))
    return result


def _layer_us(placement: Placement, trace: LoadTrace, ask: Ask) -> tuple[NDArray[np.float64] | None, str]:
    if ask.cost is None:
        return None, "no cost preset was given (--cost)"
    try:
        score = evaluate(placement, trace, ask.topology, cost=ask.cost)
    except TraceError as error:
        return None, str(error)
    time = score.rank_cost.max(axis=2)
    return np.where(np.isnan(score.ratio), np.nan, time), ""


def _moves(before: Placement, after: Placement, topology: Topology) -> int:
    """Slots of ``after`` whose expert no slot of the same rank held in ``before``."""
    rank = topology.rank_of_slot()
    moves = 0
    for old, new in zip(before.physical_to_logical, after.physical_to_logical, strict=True):
        held = set(zip(rank.tolist(), old.tolist(), strict=True))
        moves += sum(
            expert >= 0 and (at, expert) not in held
            for at, expert in zip(rank.tolist(), new.tolist(), strict=True)
        )
    return moves


def _single(placement: Placement, tokens: NDArray[np.int64], topology: Topology) -> NDArray[np.float64]:
    copies = np.maximum(placement.replicas(tokens.shape[1]), 1)
    total = tokens.sum(axis=1)
    largest = (tokens / copies).max(axis=1) * topology.ranks
    result = np.full(len(total), np.nan)
    np.divide(largest, total, out=result, where=total > 0)
    return result


def _frontier(
    result: Result, trace: LoadTrace, held: NDArray[np.bool_], topology: Topology
) -> tuple[FrontierPoint, ...]:
    unseen = LoadTrace(trace.tokens[held]) if held.any() else None
    places = np.unique(np.linspace(0, len(result.frontier) - 1, FRONTIER_POINTS).round().astype(int))
    chosen = next(at for at, point in enumerate(result.frontier) if point.moves == result.moves)
    points = []
    for at in sorted({*places.tolist(), chosen}):
        point = result.frontier[at]
        score = None if unseen is None else evaluate(result.at(point.moves), unseen, topology).mean_ratio
        points.append(FrontierPoint(point.moves, point.objective, score))
    return tuple(points)
