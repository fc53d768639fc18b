"""The figure of the ratio slice by slice, with what was held out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.axes import cell_axis, line_axis, part_of
from eplb.report.charts import Figure, Line, LineChart, Reading, Table
from eplb.report.forecast import gain_on
from eplb.report.forecast_figure import scored_words
from eplb.report.names import slice_name
from eplb.report.scale import round_ticks
from eplb.report.study import mean
from eplb.report.words import ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.report.study import Study

MOST_POINTS = 160
"""Slices that are drawn one by one; of more, neighbours are put together."""
MOST_RUNS = 12
"""Stretches of one domain that are listed."""
KEYS = ("after", "map2", "map3", "map4", "map5")
"""Colours of the maps that are compared, in order."""

HELD = (
    " Dots, and the marks below the plot, are held-out slices: only they count for the forecast. Were 'after' low between the dots "
    "only, the plan would fit the past and not what comes."
)


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """A line by group of slices: float64 [groups], NaN = nothing to show."""

    name: str
    key: str
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring slices that are one point; ``use``: planned on, held out, or '' for both."""

    name: str
    use: str


def over_time(study: Study) -> Figure:
    """Ratio slice by slice."""
    slices = len(study.held)
    size = -(-slices // MOST_POINTS)
    starts = np.arange(0, slices, size)
    groups = tuple(_group(study, int(first), size) for first in starts)
    series = _series(study, starts, one_by_one=size == 1)
    gain = gain_on(study, "", study.scored)
    better = "all" if gain.better == gain.slices else str(gain.better)
    return Figure(
        "over-time",
        "The ratio over time, before and after",
        "Every point is one slice, mean over its layers; lower is better and 1 is perfect."
        + (HELD if study.held.any() else ""),
        "There is no load."
        if isnan(gain.before)
        else f"On {scored_words(study)} the ratio goes from {ratio(gain.before)} to {ratio(gain.after)} and is lower in {better} of them; "
        f"the sampling floor is {ratio(1 + gain.floor)}.",
        () if isnan(gain.before) else (_chart(starts, groups, series),),
        _table(groups, series),
        notes=_notes(study, size),
    )


def _group(study: Study, first: int, size: int) -> _Group:
    if size == 1:
        use = "scored" if study.foreign else "held out" if study.held[first] else "planned on"
        return _Group(slice_name(study.file, first), use)
    return _Group(f"slices {first} to {min(first + size, len(study.held)) - 1}", "")


def _series(study: Study, starts: NDArray[np.int64], *, one_by_one: bool) -> tuple[_Series, ...]:
    # A point that stands for several slices shows those that count.
    shown = np.ones_like(study.held) if one_by_one else study.scored
    named = ((study.before, "before"), *zip(study.others, KEYS, strict=False))
    return (
        *(_Series(each.name, key, _by_group(each.ratio, shown, starts)) for each, key in named),
        _Series("sampling floor", "floor", 1 + _by_group(study.floor, shown, starts)),
    )


def _by_group(
    values: NDArray[np.float64], shown: NDArray[np.bool_], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Mean over layers and the shown slices of every group, float64 [groups]."""
    by_slice = [mean(row) if keep else float("nan") for row, keep in zip(values, shown, strict=True)]
    return np.array([mean(part) for part in np.split(np.array(by_slice), starts[1:])])


def _chart(starts: NDArray[np.int64], groups: tuple[_Group, ...], series: tuple[_Series, ...]) -> LineChart:
    tops = [float(np.nanmax(each.values)) for each in series if not np.isnan(each.values).all()]
    ticks = round_ticks(1.0, max([1.1, *tops]))
    count = len(groups)
    held = [at for at, group in enumerate(groups) if group.use == "held out"]
    return LineChart(
        cell_axis("slice, in the order of the trace (number)", [str(int(first)) for first in starts]),
        line_axis("ratio: busiest rank / mean rank", ticks, [f"{tick:g}" for tick in ticks]),
        tuple(_line(each, ticks, held) for each in series if not np.isnan(each.values).all()),
        tuple(
            Reading(
                (at + 0.5) / count, f"{group.name}{group.use and ', '}{group.use}: " + _values(series, at)
            )
            for at, group in enumerate(groups)
        ),
        rug=tuple((at / count, (at + 1) / count) for at in held),
        rug_name="held out: the plan never saw these slices",
    )


def _line(each: _Series, ticks: tuple[float, ...], held: list[int]) -> Line:
    count = len(each.values)
    points = {
        at: ((at + 0.5) / count, part_of(float(value), ticks))
        for at, value in enumerate(each.values)
        if not np.isnan(value)
    }
    # A single point makes no line.
    marked = points if len(points) == 1 else held if each.key != "floor" else ()
    return Line(
        each.name, each.key, tuple(points.values()), tuple(points[at] for at in marked if at in points)
    )


def _values(series: tuple[_Series, ...], at: int) -> str:
    return ", ".join(f"{each.name} {ratio(float(each.values[at]))}" for each in series)


def _table(groups: tuple[_Group, ...], series: tuple[_Series, ...]) -> Table:
    rows = tuple(
        (group.name, group.use or "both", *(ratio(float(each.values[at])) for each in series))
        for at, group in enumerate(groups)
    )
    return Table(("slice", "use", *(each.name for each in series)), rows, 2)


def _notes(study: Study, size: int) -> tuple[str, ...]:
    notes = []
    if size > 1:
        which = "held-out slices" if study.held.any() else "slices"
        notes.append(f"Each point is the mean of the {which} among {size} neighbours.")
    if study.file.domain is not None:
        runs = [(name, [at for at, _ in run]) for name, run in groupby(enumerate(study.file.domain), lambda pair: pair[1])]  # fmt: skip
        # Only where every domain stands in one piece is the list worth its place.
        if 1 < len(runs) == len(set(study.file.domain)) <= MOST_RUNS:
            stretches = (
                f"{name or 'not recorded'} {at[0]}" + (f"–{at[-1]}" if len(at) > 1 else "")
                for name, at in runs
            )
            notes.append(f"Slices by domain: {', '.join(stretches)}.")
    return tuple(notes)
