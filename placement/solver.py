"""Solve for a placement, layer by layer, from nothing or from the live map."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placement import bounds, explain
from placement.checks import instance, whole
from placement.errors import MapError, PlacementError
from placement.frontier import Path, Stop, merge
from placement.groups import copies, fresh_homes, kept_homes, moved_near
from placement.kernel_cache import kernel_threads
from placement.layer import Layer, make_layer, ordered_sum
from placement.limits import Limits
from placement.models import check_effort, check_models
from placement.node_search import home_steps, measured, node_assignment, prepare, priced
from placement.nodes import HomeSearch
from placement.packing import pack
from placement.placement import Placement
from placement.policy import Policy, resolve
from placement.relabel import relabel
from placement.repair import mend, read_row
from placement.result import Point, Result
from placement.score import slot_shares
from placement.search import GAIN, Halt, Task, Track, cool_down, proposals, walk_away, walk_back
from placement.topology import Topology
from placement.trace import LoadTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placement.bounds import Bound
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
    even: bool


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
    dispatch: str = "even",
    cost: str = "tokens",
    traffic_weight: float = 0.0,
    dispatcher: str = "node_dedupe",
    effort: str = "normal",
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> Result:
    """Find a placement that keeps the hottest rank of every slice and layer cool, at few moves from ``current``.

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
        UnsupportedError: an option is unknown or not built, or ``traffic_weight`` is above 0 and the trace has no routes.
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
    check_models(dispatch, cost)
    check_effort(effort)
    topology.check_alive(trace.experts)
    # Before the slots alone are looked at: whole groups may need more of them.
    policy = resolve(topology, trace.experts)
    topology.check_holds(trace.experts)
    live_map = _live_map(current, trace, topology)
    small, live_slots = topology.live()
    shares = (
        None
        if live_map is None
        else slot_shares(live_map, topology, trace.experts, weighted=dispatch == "weighted")
    )
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
        dispatch == "even",
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
    groups = ask.small.expert_groups if ask.policy.hierarchical else 0
    least = bounds.layer_bound(full, groups=groups, even=ask.even)
    fresh = fresh_homes(few, groups) if groups and home is None else home
    if ask.current is None or ask.shares is None:
        full, few = _at_home(full, few, fresh)
        stops = _cold_stops(full, few, _task(ask, few, at, least.value))
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
    stops = _exact_stops(full, few, track)
    served = _serves(full, row)
    before = full.shared_value(row, own) if served else None
    if before is not None and (start == row).all():
        stops = _not_worse(stops, Stop(0, before, row, own))
    return _Answer(Path(full, row, stops), before, least)


def _at_home(full: Layer, few: Layer, home: NDArray[np.int64] | None) -> tuple[Layer, Layer]:
    """Both layers with the nodes that their experts must stay on; one object stays one."""
    kept = replace(full, home=home)
    return kept, kept if few is full else replace(few, home=home)


def _serves(layer: Layer, row: Row) -> bool:
    loaded = layer.loads[:, :-1].any(axis=0)
    held = np.bincount(row, minlength=layer.experts + 1)[:-1] > 0
    return bool((held | ~loaded).all())


def _cold_stops(full: Layer, few: Layer, task: Task) -> tuple[Stop, ...]:
    row = _packed(few)
    best = cool_down(few, row, task) if full.loaded else row
    return (Stop(int(full.capacity().sum()), full.value(best), best),)


def _search_from(track: Track, rows: _Rows, task: Task, *, fresh_too: bool) -> None:
    """Anneal from the repaired map, and back from a fresh one, with all moves noted."""
    if not fresh_too:
        walk_away(rows.start, track, rows.live, task)
        return
    half, quarter = replace(task, proposals=task.proposals // 2), replace(task, proposals=task.proposals // 4)
    walk_away(rows.start, track, rows.live, half)
    if track.best()[0] <= task.goal or not quarter.proposals or task.halt.asked:
        return
    fresh = relabel(rows.other, cool_down(rows.other, _packed(rows.other), quarter), rows.start)
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


def _packed(layer: Layer) -> Row:
    loads = layer.loads[:, :-1]
    mean = (loads * layer.weights[:, None]).sum(axis=0)
    spread = np.sqrt((np.square(loads - mean) * layer.weights[:, None]).sum(axis=0))
    return pack(layer, copies(layer, mean + spread), mean + spread)


def _exact_stops(full: Layer, few: Layer, track: Track) -> tuple[Stop, ...]:
    """The track's rows with their objective over all slices, in rising moves and falling objective."""
    stops: list[Stop] = []
    for moves, value, row in track.pareto():
        exact = value if few is full else full.value(row)
        if not stops or exact < stops[-1].value - GAIN:
            stops.append(Stop(moves, exact, row))
    return tuple(stops)


def _not_worse(stops: tuple[Stop, ...], live: Stop) -> tuple[Stop, ...]:
    """Put the live row with its own shares first and keep only what is better."""
    if stops[0].moves == 0 and stops[0].value < live.value - GAIN:
        return stops
    return (live, *(stop for stop in stops if stop.moves > 0 and stop.value < live.value - GAIN))


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
    bound = ordered_sum(weights * np.array([answer.bound.value for answer in answers])) if known else 1.0
    chosen = _chosen(ask, frontier, bound)
    each = ask.limits.bytes_per_expert
    objective = frontier.objective if known else np.full(len(frontier.moves), np.nan)
    points = tuple(
        Point(int(moves), None if each is None else int(moves) * each, float(value))
        for moves, value in zip(frontier.moves, objective, strict=True)
    )
    starts = [answer.start for answer in answers]
    start = None
    if ask.current is not None and None not in starts and known:
        start = ordered_sum(weights * np.array(starts, dtype=np.float64))
    reasons = explain.reasons(
        explain.Facts(
            ask.trace, topology, ask.current, ask.limits, int(frontier.moves[0]), points[chosen], start,
            tuple(answer.bound for answer in answers), ask.halt.asked,
            MOST_SLICES, ask.policy,
        )
    )  # fmt: skip
    return Result(
        placement=frontier.placement(chosen),
        frontier=points,
        bound=bound,
        bound_reason=bounds.reason([answer.bound for answer in answers], weights),
        objective=points[chosen].objective,
        objective_start=start,
        reasons=reasons,
        moves=points[chosen].moves,
        paths=frontier,
        layer_bounds=tuple(answer.bound for answer in answers),
        policy=ask.policy.name,
    )


def _chosen(ask: _Ask, frontier: Frontier, bound: float) -> int:
    last = len(frontier.moves) - 1
    if ask.current is None:
        return last
    if ask.limits.moves is not None:
        last = frontier.within(ask.limits.moves)
    best = float(frontier.objective[last])
    reach = 1 + ask.limits.slack
    return frontier.cheapest(bound * reach if best <= bound * reach else best * reach, last)
