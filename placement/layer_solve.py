"""Solve one layer: from nothing, or from its row of the live map."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placement import bounds
from placement.frontier import Path, Stop
from placement.groups import fresh_homes, kept_homes, moved_near
from placement.judge import Judge, not_worse, plain_stops
from placement.layer import Layer, make_layer
from placement.relabel import relabel
from placement.repair import mend, read_row
from placement.search import Task, Track, cool_down, proposals, walk_away, walk_back
from placement.split_search import cool_split, rows_near
from placement.starts import packed, starts
from placement.time_bound import time_bound

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.bounds import Bound
    from placement.cost import Roofline
    from placement.layer import Row
    from placement.limits import Limits
    from placement.objective import Objective
    from placement.placement import Placement
    from placement.policy import Policy
    from placement.search import Halt
    from placement.topology import Topology
    from placement.trace import LoadTrace

MOST_SLICES = 256
"""Slices that a search weighs; of more, an evenly spaced choice. The objective always counts them all."""


@dataclass(frozen=True, slots=True)
class Ask:
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
class Answer:
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


def solve_layer(ask: Ask, at: int, home: NDArray[np.int64] | None = None) -> Answer:
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
        return Answer(Path(full, None, stops), None, least)
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
    judge = None if ask.objective.plain else judge_of(ask, full, at)
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
    return Answer(Path(full, row, stops), before, least)


def _bound(ask: Ask, full: Layer, at: int, groups: int) -> Bound:
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


def _cold_stops(ask: Ask, full: Layer, few: Layer, at: int, task: Task) -> tuple[Stop, ...]:
    best = cool_down(few, starts(few), task) if full.loaded else packed(few)
    moves = int(full.capacity().sum())
    if ask.objective.plain:
        return (Stop(moves, full.value(best), best),)
    track = Track(few, None)
    track.note(best, few.value(best))
    judge = judge_of(ask, full, at)
    others = (cool_split(few, best, task),) if ask.objective.split and full.loaded else ()
    return tuple(replace(stop, moves=moves) for stop in judge.stops(track, task, ask.effort, others)[-1:])


def judge_of(ask: Ask, full: Layer, at: int) -> Judge:
    """Who values rows of layer ``at`` by the asked dispatch and cost."""
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


def _task(ask: Ask, layer: Layer, at: int, least: float) -> Task:
    allowed = proposals(layer, ask.effort, cold=ask.current is None)
    most = sys.maxsize
    if ask.limits.evaluations is not None:
        most = ask.limits.evaluations // ask.trace.layers
    return Task(min(allowed, most), most, _goal(ask, least), ask.seed * 1_000_003 + at, ask.halt)


def _goal(ask: Ask, least: float) -> float:
    return least * (1 + ask.limits.slack / 10) + 1e-5
