"""Solve for a placement, layer by layer, from nothing or from the live map."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placement import bounds, deals, explain
from placement.checks import instance, whole
from placement.errors import MapError, PlacementError
from placement.frontier import Path, Stop, merge
from placement.groups import fresh_homes, kept_homes, moved_near
from placement.judge import Judge, not_worse, plain_stops
from placement.kernel_cache import kernel_threads
from placement.layer import Layer, make_layer, ordered_sum
from placement.limits import Limits
from placement.models import check_effort
from placement.node_search import home_steps, measured, node_assignment, prepare, priced
from placement.nodes import HomeSearch
from placement.objective import Objective
from placement.placement import EMPTY, Placement
from placement.policy import Policy, resolve
from placement.relabel import relabel
from placement.repair import mend, read_row
from placement.result import Point, Result
from placement.score import slot_shares
from placement.search import Halt, Task, Track, cool_down, proposals, walk_away, walk_back
from placement.split import mean_loads
from placement.split_search import cool_split, rows_near
from placement.starts import packed, starts
from placement.time_bound import time_bound
from placement.topology import Topology
from placement.trace import LoadTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placement.bounds import Bound
    from placement.cost import Roofline
    from placement.dispatch import Dispatch
    from placement.frontier import Frontier
    from placement.layer import Row
    from placement.node_search import Traffic

MOST_SLICES = 256
"""Slices that a search weighs; of more, an evenly spaced choice. The objective always counts them all."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """The arguments of a solve that do not change from layer to layer."""

    trace: LoadTrace
    current: Placement | None
    shares: NDArray[np.float64] | None
    small: Topology
    live_slots: NDArray[np.int64]
    limits: Limits
    effort: str
    seed: int
    halt: Halt
    policy: Policy
    objective: Objective
    cost: str | Roofline
    means: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one layer adds: its path, the value it starts from (None = not served), and its bound."""

    path: Path
    start: float | None
    bound: Bound


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where a search from a live map begins: the live row, its repair, and the layer that a fresh row is packed for."""

    live: Row
    start: Row
    other: Layer


def solve(
    trace: LoadTrace,
    topology: Topology,
    current: Placement | ArrayLike | None = None,
    *,
    limits: Limits | None = None,
    dispatch: str | Dispatch = "even",
    cost: str | Roofline = "tokens",
    traffic_weight: float = 0.0,
    dispatcher: str = "node_dedupe",
    effort: str = "normal",
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> Result:
    """Find a placement that keeps the hottest rank of every slice and layer cool, at few moves from ``current``.

    ``dispatch``, ``cost``: as in ``evaluate``, whose mean ratio is the objective. The search walks on even shares, or where every
    batch is split by load on levelled ones; all rows that it offers are valued exactly. What a rule needs and the trace does not
    hold is assumed and stands in the reasons. With ``weighted`` the map carries shares that serve all its slices.
    ``current``: the live map, int [layers, slots] with -1 = empty, twins and dead ranks allowed (they are repaired, reported
    and counted as moves); None = a cold start. ``effort``: ``fast``, ``normal`` or ``thorough``. ``seed`` turns the order in
    which slices are looked at; equal input and seed give equal bytes. ``should_stop`` is asked every few milliseconds,
    by one thread at a time; once it says yes the result is marked ``truncated``. ``threads``: layers solved at a time, None =
    one per core (or NUMBA_NUM_THREADS); the result does not depend on it.
    ``traffic_weight``: with routes in the trace, how much tokens that touch few nodes count beside balance: 4 × weight × (mean
    nodes touched - 1 on held-out routes) is added to the objective (``node_search``). ``dispatcher``: what the engine sends
    (``traffic.DISPATCHERS``); where no placement can save traffic the weight is ignored, with a reason.
    The chosen point has the fewest moves whose objective is within ``limits.slack`` of the bound, or else of the best found;
    a cold start takes the best found. It is never worse than a ``current`` without violations.

    Raises:
        InfeasibleError: the live slots cannot hold every expert, or not with groups kept whole where the topology asks for
            that; says the smallest change that fits.
        MapError: ``current`` has another shape than the topology and the trace.
        PlacementError: an argument is of another type, ``seed`` or ``threads`` is no whole number, or ``threads`` is below 1.
        TraceError: what a roofline needs is not recorded, or the trace has counts of another number of source ranks.
        UnsupportedError: an option is unknown, or ``traffic_weight`` is above 0 and the trace has no routes.
    """
    limits = Limits() if limits is None else limits
    for name, value, kind in (
        ("trace", trace, LoadTrace),
        ("topology", topology, Topology),
        ("limits", limits, Limits),
    ):
        instance(name, value, kind)
    if not (should_stop is None or callable(should_stop)):
        raise PlacementError(f"should_stop is {should_stop!r}, must be a function that says yes or no")
    seed = whole("seed", seed)
    threads = kernel_threads() if threads is None else whole("threads", threads, 1)
    check_effort(effort)
    topology.check_alive(trace.experts)
    # Before the slots alone are looked at: whole groups may need more of them.
    policy = resolve(topology, trace.experts)
    topology.check_holds(trace.experts)
    objective = Objective(dispatch, cost, trace, topology, dealt=False)
    weighted = objective.rule.name == "weighted"
    live_map = _live_map(current, trace, topology)
    small, live_slots = topology.live()
    shares = None if live_map is None else slot_shares(live_map, topology, trace.experts, weighted=weighted)
    ask = _Ask(
        trace,
        live_map,
        shares,
        small,
        live_slots,
        limits,
        effort,
        seed,
        Halt(should_stop),
        policy,
        objective,
        cost,
        mean_loads(trace) if weighted else None,
    )
    size = trace.experts // small.expert_groups if policy.hierarchical else 1
    traffic, ignored = prepare(trace, topology, traffic_weight, dispatcher=dispatcher, group_size=size)
    with ThreadPoolExecutor(threads) as pool:
        plain = list(pool.map(lambda at: _solve_layer(ask, at), range(trace.layers)))
        if traffic is None:
            result = _result(ask, topology, plain)
            return replace(result, reasons=result.reasons + ignored)
        heeding = pool.map(lambda at: _heed_traffic(ask, traffic, at, plain[at]), range(trace.layers))
        result = _result(ask, topology, list(heeding))
    chosen = result.paths.stops(result.paths.within(result.moves))
    reason = measured(traffic, tuple(answer.path for answer in plain), chosen, _layer_weights(trace))
    return replace(result, reasons=(*result.reasons, reason))


def _heed_traffic(ask: _Ask, traffic: Traffic, at: int, plain: _Answer) -> _Answer:
    """Let rows whose experts keep to home nodes compete with the plain ones, the traffic counted in the objective."""
    steps = home_steps(ask.effort, ask.limits.evaluations, ask.trace.layers)
    search = HomeSearch(steps, ask.seed, ask.halt.__bool__)
    homes = node_assignment(traffic, at, search, plain.path.current)
    aside = [_solve_layer(ask, at, home).path for home in homes]
    path, start = priced(traffic, at, plain.path, aside, plain.start)
    return _Answer(path, start, plain.bound)


def _live_map(
    current: Placement | ArrayLike | None, trace: LoadTrace, topology: Topology
) -> Placement | None:
    if current is None:
        return None
    live_map = current if isinstance(current, Placement) else Placement(current)
    if (live_map.layers, live_map.slots) != (trace.layers, topology.slots):
        raise MapError(
            f"the current map is [{live_map.layers}, {live_map.slots}], "
            f"expected [{trace.layers} layers, {topology.slots} slots]"
        )
    return live_map


def _solve_layer(ask: _Ask, at: int, home: NDArray[np.int64] | None = None) -> _Answer:
    """Solve one layer; ``home``: int64 [experts], nodes that its experts must keep to, None = what the policy asks for."""
    tokens, weights = ask.trace.tokens[:, at], ask.trace.slice_weights()
    full = make_layer(tokens, weights, ask.small)
    few = full if len(full.weights) <= MOST_SLICES else make_layer(tokens, weights, ask.small, MOST_SLICES)
    prices = ask.objective.prices(few, at, MOST_SLICES)
    few = few if prices is None else replace(few, prices=prices)
    groups = ask.small.expert_groups if ask.policy.hierarchical else 0
    least = _bound(ask, full, at, groups)
    fresh = fresh_homes(few, groups) if groups and home is None else home
    if ask.current is None or ask.shares is None:
        full, few = _at_home(full, few, fresh)
        stops = _cold_stops(ask, full, few, at, _task(ask, few, at, least.value))
        return _Answer(Path(full, None, stops), None, least)
    row = read_row(ask.current.physical_to_logical[at], ask.live_slots, ask.trace.experts)
    other = replace(few, home=fresh if fresh is None else moved_near(few, fresh, row))
    kept = kept_homes(few, row, groups) if groups and home is None else home
    full, few = _at_home(full, few, kept)
    track = Track(few, full.holds(row))
    start = mend(few, row)
    track.note(start, few.value(start))
    if full.loaded:
        rows = _Rows(row, start, other)
        _search_from(track, rows, _task(ask, few, at, least.value), fresh_too=ask.effort != "fast")
    own = ask.shares[at, ask.live_slots]
    judge = _judge(ask, full, at)
    if judge is None:
        stops = plain_stops(full, few, track)
    else:
        task = _task(ask, few, at, least.value)
        others: tuple[Row, ...] = ()
        if ask.objective.split and full.loaded:
            others = rows_near(track, start, row, task, None if ask.effort == "fast" else other)
        stops = judge.stops(track, task, ask.effort, others)
    before = None
    if _serves(full, row):
        before = full.shared_value(row, own) if judge is None else judge.value(row, own)
    if before is not None and (start == row).all():
        stops = not_worse(stops, Stop(0, before, row, own))
    return _Answer(Path(full, row, stops), before, least)


def _bound(ask: _Ask, full: Layer, at: int, groups: int) -> Bound:
    clock = ask.objective.clock
    if clock is not None:
        return time_bound(full, ask.trace, at, clock, groups=groups)
    return bounds.layer_bound(full, groups=groups, even=ask.objective.rule.name == "even")


def _at_home(full: Layer, few: Layer, home: NDArray[np.int64] | None) -> tuple[Layer, Layer]:
    """Both layers with the nodes that their experts must stay on; one object stays one."""
    kept = replace(full, home=home)
    return kept, kept if few is full else replace(few, home=home)


def _serves(layer: Layer, row: Row) -> bool:
    loaded = layer.loads[:, :-1].any(axis=0)
    held = np.bincount(row, minlength=layer.experts + 1)[:-1] > 0
    return bool((held | ~loaded).all())


def _cold_stops(ask: _Ask, full: Layer, few: Layer, at: int, task: Task) -> tuple[Stop, ...]:
    best = cool_down(few, starts(few), task) if full.loaded else packed(few)
    judge, moves = _judge(ask, full, at), int(full.capacity().sum())
    if judge is None:
        return (Stop(moves, full.value(best), best),)
    track = Track(few, None)
    track.note(best, few.value(best))
    others = (cool_split(few, best, task),) if ask.objective.split and full.loaded else ()
    return tuple(replace(stop, moves=moves) for stop in judge.stops(track, task, ask.effort, others)[-1:])


def _judge(ask: _Ask, full: Layer, at: int) -> Judge | None:
    """Who values rows by the asked dispatch and cost; None where the search itself does."""
    if ask.objective.plain:
        return None
    mean = None if ask.means is None else ask.means[at]
    return Judge(ask.objective.layer(at), full, mean, ask.live_slots, ask.objective.slots)


def _search_from(track: Track, rows: _Rows, task: Task, *, fresh_too: bool) -> None:
    """Anneal from the repaired map, and back from a fresh one, with all moves noted."""
    if not fresh_too:
        walk_away(rows.start, track, rows.live, task)
        return
    half, quarter = replace(task, proposals=task.proposals // 2), replace(task, proposals=task.proposals // 4)
    walk_away(rows.start, track, rows.live, half)
    if track.best()[0] <= task.goal or not quarter.proposals or task.halt.asked:
        return
    fresh = relabel(rows.other, cool_down(rows.other, starts(rows.other), quarter), rows.start)
    # Between two choices of home nodes groups would be split: the way back ends where the fresh homes end.
    aside = track if rows.other.home is None else Track(rows.other, track.start)
    walk_back(fresh, aside, rows.live, quarter)
    if aside is not track:
        for value, row in aside.rows.values():
            track.note(row, value)


def _task(ask: _Ask, layer: Layer, at: int, least: float) -> Task:
    allowed = proposals(layer, ask.effort, cold=ask.current is None)
    most = sys.maxsize
    if ask.limits.evaluations is not None:
        most = ask.limits.evaluations // ask.trace.layers
    return Task(min(allowed, most), most, _goal(ask, least), ask.seed * 1_000_003 + at, ask.halt)


def _goal(ask: _Ask, least: float) -> float:
    return least * (1 + ask.limits.slack / 10) + 1e-5


def _layer_weights(trace: LoadTrace) -> NDArray[np.float64]:
    """Part of each layer in the objective, float64 [layers]: the weight of its slices with load; zeros without any load."""
    loaded = trace.tokens.any(axis=2)
    weight = np.cumsum(np.where(loaded, trace.slice_weights()[:, None], 0.0), axis=0)[-1]
    total = ordered_sum(weight)
    part: NDArray[np.float64] = weight / max(total, np.finfo(np.float64).tiny)
    return part


def _result(ask: _Ask, topology: Topology, answers: list[_Answer]) -> Result:
    weights = _layer_weights(ask.trace)
    frontier = merge(tuple(answer.path for answer in answers), weights, ask.live_slots, topology.slots)
    known = bool(weights.any())
    deal = partial(Objective, ask.objective.rule, ask.cost, ask.trace, topology)
    if known and ask.objective.dealt:
        frontier = deals.dealt(frontier, deal, ask.objective, weights)
    bound = ordered_sum(weights * np.array([answer.bound.value for answer in answers])) if known else 1.0
    chosen = _chosen(ask, frontier, bound)
    each = ask.limits.bytes_per_expert
    objective = frontier.objective if known else np.full(len(frontier.moves), np.nan)
    points = tuple(
        Point(int(moves), None if each is None else int(moves) * each, float(value))
        for moves, value in zip(frontier.moves, objective, strict=True)
    )
    start = _start(ask, answers, weights, deal) if known else None
    reasons = explain.reasons(
        explain.Facts(
            ask.trace, topology, ask.current, ask.limits, int(frontier.moves[0]), points[chosen], start,
            tuple(answer.bound for answer in answers), ask.halt.asked,
            MOST_SLICES, ask.policy, counts_tokens=ask.objective.clock is None,
        )
    )  # fmt: skip
    return Result(
        placement=frontier.placement(chosen),
        frontier=points,
        bound=bound,
        bound_reason=bounds.reason([answer.bound for answer in answers], weights),
        objective=points[chosen].objective,
        objective_start=start,
        reasons=reasons + ask.objective.reasons,
        moves=points[chosen].moves,
        paths=frontier,
        layer_bounds=tuple(answer.bound for answer in answers),
        policy=ask.policy.name,
    )


def _start(
    ask: _Ask, answers: list[_Answer], weights: NDArray[np.float64], deal: Callable[[], Objective]
) -> float | None:
    starts = [answer.start for answer in answers]
    if ask.current is None or None in starts:
        return None
    start = ordered_sum(weights * np.array(starts, dtype=np.float64))
    if ask.objective.dealt:
        start += deals.change(_known_ids(ask.current, ask.trace), deal(), ask.objective, weights)
    return start


def _known_ids(placement: Placement, trace: LoadTrace) -> Placement:
    rows = placement.physical_to_logical
    return Placement(np.where((rows < 0) | (rows >= trace.experts), EMPTY, rows))


def _chosen(ask: _Ask, frontier: Frontier, bound: float) -> int:
    last = len(frontier.moves) - 1
    if ask.current is None:
        return last
    if ask.limits.moves is not None:
        last = frontier.within(ask.limits.moves)
    best = float(frontier.objective[last])
    reach = 1 + ask.limits.slack
    return frontier.cheapest(bound * reach if best <= bound * reach else best * reach, last)
