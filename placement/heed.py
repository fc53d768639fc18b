"""Solve a layer with regard to traffic: rows whose experts keep to chosen nodes compete with the plain ones.

All rows are valued by the dispatch and cost that were asked, and the traffic is added to that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placement.frontier import Path, Stop
from placement.judge import falling
from placement.layer_solve import Answer, judge_of, solve_layer
from placement.node_search import node_assignment, node_proposals, parts_of
from placement.nodes import NodeSearch
from placement.objective import Objective
from placement.placement import EMPTY, Placement
from placement.trace import LoadTrace

if TYPE_CHECKING:
    from placement.judge import Judge
    from placement.layer_solve import Ask
    from placement.node_search import Traffic
    from placement.parts import Parts


MOST_SEARCHES = 3
"""Searches for nodes in a layer: after the first, with less room, while no row that comes of it keeps to the tolerance."""


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A stop with the traffic in its value, and the planned load of its hottest node over that node's fair share."""

    stop: Stop
    node_load: float


def heed_traffic(ask: Ask, traffic: Traffic, at: int, plain: Answer) -> Answer:
    """Answer for layer ``at`` with 4 × weight × (nodes touched - 1) in its objective, from the ``plain`` answer and rows beside it.

    The best row keeps every node to its tolerance, where any row does; else it is the one that comes nearest (``kept_stops``). The
    live row or its repair is not held to that.
    """
    judge, current = judge_of(ask, plain.path.layer, at), plain.path.current

    def priced(stops: tuple[Stop, ...]) -> list[Priced]:
        return [
            Priced(
                replace(stop, value=stop.value + traffic.price(stop.row, at)),
                judge.node_load(stop.row, stop.shares),
            )
            for stop in stops
        ]

    rows, limit = priced(plain.path.stops), traffic.tolerance
    for _ in range(MOST_SEARCHES):
        found = priced(tuple(_stops_aside(ask, replace(traffic, tolerance=limit), judge, at, plain.path)))
        rows += found
        coolest = min((row.node_load for row in found), default=0.0)
        if coolest <= traffic.tolerance:
            break
        # Copies on one node count once in the search for nodes, but draw tokens by their number.
        limit = max(1.0, limit + traffic.tolerance - coolest)
    kept, start = kept_stops(rows, traffic.tolerance, cold=current is None), plain.start
    if start is not None and current is not None:
        start += traffic.price(current, at)
    return Answer(Path(plain.path.layer, current, kept), start, plain.bound)


def _stops_aside(ask: Ask, traffic: Traffic, judge: Judge, at: int, plain: Path) -> list[Stop]:
    """Stops whose experts keep to nodes that were chosen for the traffic."""
    units = ask.trace.experts // traffic.group_size
    proposals = node_proposals(ask.effort, ask.limits.evaluations, MOST_SEARCHES * ask.trace.layers, units)
    search = NodeSearch(proposals, ask.seed, ask.halt.__bool__)
    chosen = node_assignment(traffic, at, search, plain.current)
    return [stop for held in chosen for stop in _stops_on(ask, judge, at, parts_of(traffic, at, held), plain)]


def _stops_on(ask: Ask, judge: Judge, at: int, parts: Parts, plain: Path) -> list[Stop]:
    """Stops whose experts are on the nodes of their ``parts``."""
    if len(parts.expert) == parts.experts:
        return list(solve_layer(ask, at, parts.node).path.stops)
    found = [
        (stop.moves, parts.joined(stop.row))
        for stop in solve_layer(_alone(ask, at, parts, plain), 0, parts.node).path.stops
        # Shares are those of the live row, which competes by itself.
        if stop.shares is None
    ]
    if ask.objective.plain:
        return [Stop(moves, plain.layer.value(row), row) for moves, row in found]
    return [judge.stop(moves, row) for moves, row in found]


def _alone(ask: Ask, at: int, parts: Parts, plain: Path) -> Ask:
    """What to ask for one layer whose parts count as experts: a part's copies share evenly, so the search for even tokens."""
    trace = LoadTrace(parts.tokens(ask.trace.tokens[:, at])[:, None], ask.trace.weights)
    evaluations = ask.limits.evaluations
    share = None if evaluations is None else evaluations // ask.trace.layers
    alone = replace(
        ask,
        trace=trace,
        limits=replace(ask.limits, evaluations=share),
        seed=ask.seed + at,
        objective=Objective("even", "tokens", trace, ask.small, dealt=False),
        cost="tokens",
        means=None,
    )
    if plain.current is None or ask.current is None or ask.shares is None:
        return alone
    ids = np.full((1, ask.current.slots), EMPTY)
    row = parts.split(plain.current, plain.layer.node_of_rank[plain.layer.rank_of_slot])
    ids[0, ask.live_slots] = np.where(row < trace.experts, row, EMPTY)
    return replace(alone, current=Placement(ids), shares=ask.shares[[at]])


def kept_stops(rows: list[Priced], tolerance: float, *, cold: bool) -> tuple[Stop, ...]:
    """The best row alone, or the way to it from the row with fewest moves, on which no node becomes hotter than both allow."""
    best = _best(rows, tolerance)
    if cold:
        return (best.stop,)
    first = min(rows, key=lambda row: (row.stop.moves, row.stop.value))
    most = max(tolerance, first.node_load)
    way = [
        row.stop
        for row in rows
        if row.node_load <= most and row.stop.moves < best.stop.moves and row.stop.value > best.stop.value
    ]
    return falling([first.stop, *way, best.stop])


def _best(rows: list[Priced], tolerance: float) -> Priced:
    """The row of least value among those that keep to the tolerance; where none does, the one that comes nearest to it."""
    within = [row for row in rows if row.node_load <= tolerance]
    if within:
        return min(within, key=lambda row: row.stop.value)
    return min(rows, key=lambda row: (row.node_load, row.stop.value))
