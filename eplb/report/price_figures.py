"""Figures of what a map costs: moves, and traffic between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.axes import line_axis, part_of
from eplb.report.charts import Bar, Bars, Figure, Line, LineChart, Part, Reading, Table
from eplb.report.scale import round_ticks
from eplb.report.time_figure import KEYS
from eplb.report.words import count, percent, ratio, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.report.study import Study

DRAWN_POINTS = 120
MOST_OF_GAIN = 0.8


@dataclass(frozen=True, slots=True)
class _Spot:
    """A map by its price: ``seen`` and ``unseen`` are its ratios on the planned and on the scored slices."""

    name: str
    key: str
    moves: int
    seen: float
    unseen: float


def price_part(study: Study) -> Part:
    """The third part of the page."""
    question = "How many weights must move, and what does it do to traffic?"
    return Part("price", "What it costs", question, (frontier(study), fan_out(study)))


def frontier(study: Study) -> Figure:
    """Moves against ratio."""
    spots, after = _spots(study), study.mean_ratio(study.after)
    slots = count(study.ask.topology.slots * study.file.trace.layers)
    return Figure(
        "frontier",
        "How many moves buy how much",
        "Each point of a line is a map on the way from the one before to the plan. Lower is better, further right costs more: every move loads the weights of "
        "one expert into one slot. Where the line is flat, further moves are not worth their price.",
        "There is no load."
        if isnan(after)
        else f"The {study.after.name} needs {some(study.after.moves, 'move')} of {slots} slots and reaches {ratio(after)}.{_most(study)}",
        () if isnan(after) else (_frontier_chart(study, spots),),
        Table(
            ("map", "moves", "ratio, planned on", "ratio, scored" if study.foreign else "ratio, held out"),
            tuple((each.name, count(each.moves), ratio(each.seen), ratio(each.unseen)) for each in spots),
        ),
    )


def _spots(study: Study) -> list[_Spot]:
    """Everything that is drawn, in rising moves."""
    unknown = float("nan")
    spots = [
        _Spot("on the way", "", point.moves, point.planned, unknown if point.held is None else point.held)
        for point in study.frontier
    ]
    spots += [
        _Spot(
            each.name,
            key,
            each.moves,
            unknown if study.foreign else study.mean_ratio(each, ~study.held),
            study.mean_ratio(each),
        )
        for each, key in zip(study.others, KEYS, strict=False)
    ]
    return sorted(spots, key=lambda spot: spot.moves)


def _frontier_chart(study: Study, spots: Sequence[_Spot]) -> LineChart:
    line = () if study.result is None else study.result.frontier
    drawn = (
        np.unique(np.linspace(0, len(line) - 1, DRAWN_POINTS).round().astype(int)).tolist() if line else ()
    )
    planned = [(line[at].moves, line[at].objective) for at in drawn]
    held = [(spot.moves, spot.unseen) for spot in spots if not spot.key]
    marks = [spot for spot in spots if spot.key and not isnan(spot.unseen)]
    values = [value for _, value in planned + held if not isnan(value)] + [spot.unseen for spot in marks]
    y = round_ticks(min(values, default=1.0), max(values, default=1.1), 4)
    x = round_ticks(
        0, max([1, *(moves for moves, _ in planned), *(spot.moves for spot in spots)]), 4, whole=True
    )

    def places(points: Sequence[tuple[int, float]]) -> tuple[tuple[float, float], ...]:
        return tuple((part_of(moves, x), part_of(value, y)) for moves, value in points if not isnan(value))

    lines = [
        Line("on the slices of the plan", "even", places(planned)),
        Line("on held-out slices", "map3", places(held)),
    ]
    dots = [
        Line(each.name, each.key, (), places([(each.moves, each.unseen)]), only_dots=True) for each in marks
    ]
    return LineChart(
        line_axis("moves (slots that load a new expert)", x, [count(round(tick)) for tick in x]),
        line_axis("ratio: busiest rank / mean rank", y, [f"{tick:g}" for tick in y]),
        (*(each for each in lines if each.points), *dots),
        tuple(Reading(part_of(each.moves, x), _spot_words(each)) for each in spots),
    )


def _spot_words(spot: _Spot) -> str:
    seen = "" if isnan(spot.seen) else f", ratio {ratio(spot.seen)} on the slices of the plan"
    unseen = "" if isnan(spot.unseen) else f", {ratio(spot.unseen)} on the scored slices"
    return f"{spot.name}: {some(spot.moves, 'move')}{seen}{unseen}"


def _most(study: Study) -> str:
    start, end = study.mean_ratio(study.before), study.mean_ratio(study.after)
    enough = [
        p.moves
        for p in study.frontier
        if p.held is not None and start - p.held >= MOST_OF_GAIN * (start - end)
    ]
    if not enough or not start > end or not enough[0] < study.after.moves:
        return ""
    return f" {percent(MOST_OF_GAIN, 0)} of the gain is there after {some(enough[0], 'move')}."


def fan_out(study: Study) -> Figure:
    """Nodes per token."""
    nodes, routes = study.ask.topology.nodes, study.file.trace.routes
    help_ = (
        "Fan-out: how many different nodes hold the experts of one token, mean over tokens and layers. Fewer means less traffic between nodes, "
        "on engines that send a token once per node. 'Random' is what experts placed by chance would give."
    )
    if nodes == 1 or routes is None or study.random_nodes is None:
        why = (
            "The pool has one node, so no token leaves it."
            if nodes == 1
            else "Not known: the trace holds counts, not the picks of single tokens. A trace of picks would show it."
        )
        return Figure("fan-out", "How many nodes a token travels to", help_, why)
    named = [(study.before.name, "before", study.before.nodes_per_token)]
    named += [(each.name, key, each.nodes_per_token) for each, key in zip(study.others, KEYS, strict=False)]
    named.append(("random", "floor", study.random_nodes))
    known = [(name, key, value) for name, key, value in named if value is not None and not isnan(value)]
    most = min(nodes, routes.top_k)
    return Figure(
        "fan-out",
        "How many nodes a token travels to",
        help_,
        "; ".join(f"{name}: {value:.2f} nodes" for name, _, value in known)
        + f". At most {most} are possible.",
        (
            Bars(
                f"distinct nodes of a token (bars go from 0 to {most})",
                tuple(Bar(name, key, value / most, f"{value:.2f}") for name, key, value in known),
            ),
        ),
        Table(
            ("map", "nodes per token", "against random"),
            tuple(
                (name, f"{value:.3f}", percent(value / study.random_nodes - 1)) for name, _, value in known
            ),
        ),
        notes=(f"Counted on {count(routes.samples)} sampled tokens, {routes.top_k} experts each.",),
    )
