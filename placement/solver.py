"""Solve for a placement, layer by layer, from nothing or from the live map."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placement import bounds, deals, explain
from placement.checks import instance, whole
from placement.errors import MapError, PlacementError
from placement.frontier import merge
from placement.heed import heed_traffic
from placement.kernel_cache import kernel_threads
from placement.layer import ordered_sum
from placement.layer_solve import MOST_SLICES, Ask, judge_of, solve_layer
from placement.limits import Limits
from placement.models import check_effort
from placement.node_search import choice_of, measured, prepare
from placement.objective import Objective
from placement.placement import EMPTY, Placement
from placement.policy import resolve
from placement.result import Point, Result
from placement.score import slot_shares
from placement.search import Halt
from placement.split import mean_loads
from placement.topology import Topology
from placement.trace import LoadTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placement.cost import Roofline
    from placement.dispatch import Dispatch
    from placement.frontier import Frontier
    from placement.layer_solve import Answer
    from placement.node_search import Traffic
    from placement.result import Reason


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
    choice: str | None = None,
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
    nodes touched - 1 on held-out routes; where their sources are known, nodes beside the token's own) is added to the objective
    (``node_search``). New rows then keep every node to 1.05 of its fair share of tokens where any row does (``heed``).
    ``dispatcher``: what the engine sends (``traffic.DISPATCHERS``); where no placement can save traffic the weight is ignored,
    with a reason. ``choice``: which copy of an expert the traffic counts on (``choice.CHOICES``), None = the one that belongs to
    ``dispatch``.
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
    ask = Ask(
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
    traffic, ignored = prepare(
        trace,
        topology,
        traffic_weight,
        dispatcher=dispatcher,
        group_size=size,
        choice=choice_of(objective.rule.name, choice),
        effort=effort,
    )
    with ThreadPoolExecutor(threads) as pool:
        plain = list(pool.map(lambda at: solve_layer(ask, at), range(trace.layers)))
        if traffic is None:
            result = _result(ask, topology, plain)
            return replace(result, reasons=result.reasons + ignored)
        heeding = pool.map(lambda at: heed_traffic(ask, traffic, at, plain[at]), range(trace.layers))
        result = _result(ask, topology, list(heeding))
    return replace(result, reasons=(*result.reasons, _saving(ask, traffic, plain, result)))


def _saving(ask: Ask, traffic: Traffic, plain: list[Answer], result: Result) -> Reason:
    """What the chosen map saves of the traffic that ``plain`` answers would make."""
    chosen, paths = result.paths.stops(result.paths.within(result.moves)), [answer.path for answer in plain]
    hottest = [
        judge_of(ask, path.layer, at).node_load(stop.row, stop.shares)
        for at, (path, stop) in enumerate(zip(paths, chosen, strict=True))
    ]
    return measured(traffic, paths, chosen, _layer_weights(ask.trace), hottest)


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


def _layer_weights(trace: LoadTrace) -> NDArray[np.float64]:
    """Part of each layer in the objective, float64 [layers]: the weight of its slices with load; zeros without any load."""
    loaded = trace.tokens.any(axis=2)
    weight = np.cumsum(np.where(loaded, trace.slice_weights()[:, None], 0.0), axis=0)[-1]
    total = ordered_sum(weight)
    part: NDArray[np.float64] = weight / max(total, np.finfo(np.float64).tiny)
    return part


def _result(ask: Ask, topology: Topology, answers: list[Answer]) -> Result:
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
    ask: Ask, answers: list[Answer], weights: NDArray[np.float64], deal: Callable[[], Objective]
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


def _chosen(ask: Ask, frontier: Frontier, bound: float) -> int:
    last = len(frontier.moves) - 1
    if ask.current is None:
        return last
    if ask.limits.moves is not None:
        last = frontier.within(ask.limits.moves)
    best = float(frontier.objective[last])
    reach = 1 + ask.limits.slack
    return frontier.cheapest(bound * reach if best <= bound * reach else best * reach, last)
