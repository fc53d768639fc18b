"""Solve for a placement, layer by layer, from nothing or from the live map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement import bounds, explain
from placement.errors import MapError, UnsupportedError
from placement.frontier import Path, Stop, merge
from placement.layer import Layer, make_layer, ordered_sum
from placement.limits import Limits
from placement.models import check_effort, check_models
from placement.packing import pack
from placement.placement import Placement
from placement.relabel import relabel
from placement.repair import mend, read_row
from placement.replicas import replica_counts
from placement.result import Point, Reason, Result
from placement.score import slot_shares
from placement.search import GAIN, Budget, Track, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placement.frontier import Frontier
    from placement.layer import Row
    from placement.topology import Topology
    from placement.trace import LoadTrace

MOST_SLICES = 256
"""Slices that a search weighs; of more, an evenly spaced choice. The objective always counts them all."""

STEPS = {"fast": 60, "normal": 300, "thorough": 1500}
"""Steps of one walk through a layer."""

CELLS = {"fast": 6e6, "normal": 3e7, "thorough": 3e8}
"""Slices x candidates that one walk may weigh, which bounds the time in wide layers; a walk has at least MIN_STEPS."""

MIN_STEPS = 40
"""Fewest steps of a walk, whatever its width."""


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
    should_stop: Callable[[], bool] | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one layer adds: its path, the value it starts from (None = not served), its bound, and whether it was cut short."""

    path: Path
    start: float | None
    bound: float
    truncated: bool


def solve(
    trace: LoadTrace,
    topology: Topology,
    current: Placement | ArrayLike | None = None,
    *,
    limits: Limits | None = None,
    dispatch: str = "even",
    cost: str = "tokens",
    traffic_weight: float = 0.0,
    effort: str = "normal",
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Result:
    """Find a placement that keeps the hottest rank of every slice and layer cool, at few moves from ``current``.

    ``current``: the live map, int [layers, slots] with -1 = empty, twins and dead ranks allowed (they are repaired, reported
    and counted as moves); None = a cold start. ``effort``: ``fast``, ``normal`` or ``thorough``. ``seed`` turns the order in
    which slices are looked at; equal input and seed give equal bytes. ``should_stop`` is asked before every step; once it
    says yes the result is marked ``truncated``.
    The chosen point has the fewest moves whose objective is within ``limits.slack`` of the bound, or else of the best found;
    a cold start takes the best found. It is never worse than a ``current`` without violations.

    Raises:
        InfeasibleError: the live slots cannot hold every expert; says the smallest change that fits.
        MapError: ``current`` has another shape than the topology and the trace.
        UnsupportedError: an option is unknown or not built.
    """
    limits = Limits() if limits is None else limits
    check_models(dispatch, cost)
    check_effort(effort)
    if traffic_weight != 0:
        raise UnsupportedError(
            f"traffic_weight is {traffic_weight}, but the trace carries no routes: use 0.0"
        )
    topology.check_holds(trace.experts)
    live_map = _live_map(current, trace, topology)
    small, live_slots = topology.live()
    shares = (
        None
        if live_map is None
        else slot_shares(live_map, topology, trace.experts, weighted=dispatch == "weighted")
    )
    ask = _Ask(trace, live_map, shares, small, live_slots, limits, effort, seed, should_stop)
    answers = [_solve_layer(ask, at) for at in range(trace.layers)]
    return _result(ask, topology, answers)


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


def _solve_layer(ask: _Ask, at: int) -> _Answer:
    tokens, weights = ask.trace.tokens[:, at], ask.trace.slice_weights()
    full = make_layer(tokens, weights, ask.small)
    few = full if len(full.weights) <= MOST_SLICES else make_layer(tokens, weights, ask.small, MOST_SLICES)
    least = bounds.layer_bound(full)
    if ask.current is None or ask.shares is None:
        stops, truncated = _cold_stops(ask, full, few, least)
        return _Answer(Path(full, None, stops), None, least, truncated)
    row = read_row(ask.current.physical_to_logical[at], ask.live_slots, ask.trace.experts)
    track = Track(few, full.holds(row))
    start = mend(few, row)
    truncated = _search_from(ask, track, start, least) if full.loaded else False
    if not full.loaded:
        track.note(start, few.value(start))
    own = ask.shares[at, ask.live_slots]
    stops = _exact_stops(full, few, track)
    served = _serves(full, row)
    before = full.shared_value(row, own) if served else None
    if before is not None and (start == row).all():
        stops = _not_worse(stops, Stop(0, before, row, own))
    return _Answer(Path(full, row, stops), before, least, truncated)


def _serves(layer: Layer, row: Row) -> bool:
    loaded = layer.loads[:, :-1].any(axis=0)
    held = np.bincount(row, minlength=layer.experts + 1)[:-1] > 0
    return bool((held | ~loaded).all())


def _cold_stops(ask: _Ask, full: Layer, few: Layer, least: float) -> tuple[tuple[Stop, ...], bool]:
    track = Track(few, None)
    budget = _budget(ask, few, 1)
    row = _packed(few)
    if full.loaded:
        walk(few, row, track, budget, goal=_goal(ask, least), seed=ask.seed)
    else:
        track.note(row, few.value(row))
    moves = int(full.capacity().sum())
    _, best = track.best()
    return (Stop(moves, full.value(best), best),), budget.truncated


def _search_from(ask: _Ask, track: Track, start: Row, least: float) -> bool:
    """Walk from the repaired map and from a fresh one; both feed the same track."""
    layer, goal = track.layer, _goal(ask, least)
    walks = 1 if ask.effort == "fast" else 2
    budget = _budget(ask, layer, walks)
    walk(layer, start, track, budget, goal=goal, seed=ask.seed)
    if walks == 1 or budget.truncated or track.best()[0] <= goal:
        return budget.truncated
    fresh = _budget(ask, layer, walks)
    if fresh.steps < 1:
        return False
    aside = Track(layer, None)
    walk(layer, _packed(layer), aside, fresh, goal=goal, seed=ask.seed)
    value, row = aside.best()
    track.note(relabel(layer, row, start), value)
    return fresh.truncated


def _goal(ask: _Ask, least: float) -> float:
    return least * (1 + ask.limits.slack / 10) + 1e-5


def _packed(layer: Layer) -> Row:
    loads = layer.loads[:, :-1]
    mean = (loads * layer.weights[:, None]).sum(axis=0)
    spread = np.sqrt((np.square(loads - mean) * layer.weights[:, None]).sum(axis=0))
    return pack(layer, replica_counts(mean + spread, layer.capacity()), mean + spread)


def _budget(ask: _Ask, layer: Layer, walks: int) -> Budget:
    per_rank = int(layer.capacity().max())
    candidates = max(1, per_rank * (layer.slots - per_rank))
    wide = int(CELLS[ask.effort] / (candidates * len(layer.weights)))
    steps = (
        min(STEPS[ask.effort], max(MIN_STEPS, wide))
        // walks
        * (1 if walks == 1 else 4)
        // (1 if walks == 1 else 3)
    )
    if ask.limits.evaluations is not None:
        steps = min(steps, ask.limits.evaluations // (candidates * walks * ask.trace.layers))
    return Budget(steps, ask.should_stop)


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
    bound = ordered_sum(weights * np.array([answer.bound for answer in answers])) if known else 1.0
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
            tuple(answer.bound for answer in answers), any(answer.truncated for answer in answers),
            MOST_SLICES,
        )
    )  # fmt: skip
    return Result(
        placement=frontier.placement(chosen),
        frontier=points,
        bound=bound,
        bound_reason=_bound_reason(bound, answers, weights),
        objective=points[chosen].objective,
        objective_start=start,
        reasons=reasons,
        moves=points[chosen].moves,
        paths=frontier,
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


def _bound_reason(bound: float, answers: list[_Answer], weights: NDArray[np.float64]) -> Reason:
    if not weights.any():
        return Reason(bounds.NO_DATA, "no layer has load, so nothing bounds it")
    granular = [at for at, answer in enumerate(answers) if answer.bound > 1 + GAIN and weights[at] > 0]
    if not granular:
        return Reason(bounds.MEAN, "the hottest rank cannot be below the mean of the ranks")
    text = f"in {len(granular)} of {len(answers)} layers one copy of the hottest expert is at times above a rank's fair share"
    return Reason(bounds.REPLICA_GRANULARITY, f"{text}, whatever the copies: bound {bound:.4f}")
