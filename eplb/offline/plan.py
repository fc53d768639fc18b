"""Plan on a trace, and forecast what the plan does on slices that it never saw."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from eplb.offline.holdout import split
from eplb.skew import floor_ratio, id_order
from placement import evaluate, fan_out, random_fan_out, solve, violations
from placement.traffic import NO_GAIN, RANK_DEDUPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.offline.engines import Engine
    from placement import Limits, LoadTrace, Placement, Result, Routes, Topology

HEARTBEAT_S = 5.0
"""Time between two signs of life of a long solve."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is planned for. ``current``: the live map, None = a cold start. ``top_k``: None = unknown.

    ``holdout``: part of the slices that only scores, 0 = none. ``say``: told what is going on.
    """

    topology: Topology
    engine: Engine
    limits: Limits
    current: Placement | None = None
    traffic: float = 0.0
    effort: str = "normal"
    seed: int = 0
    holdout: float = 0.0
    top_k: int | None = None
    say: Callable[[str], None] = print


@dataclass(frozen=True, slots=True)
class Ratios:
    """Imbalance ratios on so many slices; ``floor``: what sampling noise alone would show. NaN = unknown.

    ``planned``: slices that the scored map was planned on.
    """

    planned: int
    slices: int
    before: float
    after: float
    floor: float


@dataclass(frozen=True, slots=True)
class FanOut:
    """Mean ``bins`` (nodes or ranks) that a token goes to, on routes of ``requests`` requests that no plan sees."""

    bins: str
    requests: int
    before: float
    after: float
    random: float


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The map planned on all slices, what it does there, and what a map planned on a part of them does on the others."""

    result: Result
    seconds: float
    in_sample: Ratios
    held_out: Ratios | None
    fan_out: FanOut | None


def plan(trace: LoadTrace, kinds: tuple[tuple[str, str], ...], ask: Ask) -> Plan:
    """Plan on all slices; before that, with ``ask.holdout``, on a part, to forecast. ``kinds``: see ``holdout.split``.

    Raises:
        PlacementError: as ``placement.solve``.
    """
    start_s = time.monotonic()
    held_out = _held_out(trace, kinds, ask)
    result = solved(trace, ask, "all slices")
    seconds = time.monotonic() - start_s
    whole = _ratios(result.placement, trace, trace, ask)
    return Plan(result, seconds, whole, held_out, _fan_out(result.placement, trace, ask))


def solved(trace: LoadTrace, ask: Ask, which: str) -> Result:
    """Solve as asked; says so, and that it is alive; ``which``: the slices, as words."""
    start_s = last_s = time.monotonic()
    size = f"{trace.layers} layers x {trace.experts} experts on {ask.topology.slots} slots"
    ask.say(f"solving {size}, {which} ({trace.slices})")

    def never() -> bool:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= HEARTBEAT_S:
            last_s = now_s
            ask.say(f"solving: {now_s - start_s:.0f} s")
        return False

    return solve(
        trace,
        ask.topology,
        ask.current,
        limits=ask.limits,
        dispatch=ask.engine.dispatch,
        traffic_weight=ask.traffic,
        dispatcher=ask.engine.dispatcher,
        effort=ask.effort,
        seed=ask.seed,
        should_stop=never,
    )


def start_map(trace: LoadTrace, ask: Ask) -> Placement | None:
    """The map to compare with: the live one, else that of the ids in order; None = the live one does not serve every expert."""
    if ask.current is None:
        return id_order(trace, ask.topology)
    found = violations(ask.current, ask.topology, trace.experts)
    lost = any(violation.code in {"missing_expert", "unknown_expert"} for violation in found)
    return None if lost else ask.current


def _held_out(trace: LoadTrace, kinds: tuple[tuple[str, str], ...], ask: Ask) -> Ratios | None:
    parts = split(trace, kinds, ask.holdout)
    if parts is None:
        return None
    result = solved(parts.seen, ask, "the slices to plan on")
    return _ratios(result.placement, parts.unseen, parts.seen, ask)


def _ratios(placement: Placement, scored: LoadTrace, planned: LoadTrace, ask: Ask) -> Ratios:
    old = start_map(scored, ask)
    return Ratios(
        planned=planned.slices,
        slices=scored.slices,
        before=nan if old is None else _ratio(old, scored, ask),
        after=_ratio(placement, scored, ask),
        floor=nan if ask.top_k is None else floor_ratio(scored, ask.topology.ranks, ask.top_k),
    )


def _ratio(placement: Placement, trace: LoadTrace, ask: Ask) -> float:
    return evaluate(placement, trace, ask.topology, ask.engine.dispatch).mean_ratio


def _fan_out(placement: Placement, trace: LoadTrace, ask: Ask) -> FanOut | None:
    return measured_fan_out(trace, ask.topology, ask.engine, start_map(trace, ask), placement)


def measured_fan_out(
    trace: LoadTrace, topology: Topology, engine: Engine, before: Placement | None, after: Placement
) -> FanOut | None:
    """The fan-out of two maps on requests that a solve keeps from its planning; None where it cannot be told or does not matter."""
    routes, dispatcher = trace.routes, engine.dispatcher
    if routes is None or topology.nodes == 1 or dispatcher in NO_GAIN or len(np.unique(routes.requests)) < 2:
        return None
    scored = routes.held_out()[1]
    by_rank = dispatcher == RANK_DEDUPE

    def mean(placement: Placement | None) -> float:
        return nan if placement is None else _mean(placement, scored, topology, engine)

    return FanOut(
        bins="ranks" if by_rank else "nodes",
        requests=len(np.unique(scored.requests)),
        before=mean(before),
        after=mean(after),
        random=random_fan_out(trace.experts, routes.top_k, topology.ranks if by_rank else topology.nodes),
    )


def _mean(placement: Placement, routes: Routes, topology: Topology, engine: Engine) -> float:
    choice = "nearest" if engine.dispatch == "nearest" else "even"
    layers = fan_out(placement, routes, topology, dispatcher=engine.dispatcher, choice=choice)
    known = layers[~np.isnan(layers)]
    return float(known.mean()) if known.size else nan
