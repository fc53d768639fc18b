"""Figures of what ranks carry before and after, slice by slice, phase by phase."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.axes import cell_axis
from eplb.report.charts import Figure, HeatMap, Part, Table
from eplb.report.forecast_figure import forecast, scored_words
from eplb.report.load_figures import fewer_cells
from eplb.report.names import layer_numbers, layer_word
from eplb.report.scale import RANK_STEPS
from eplb.report.study import mean
from eplb.report.time_figure import over_time
from eplb.report.words import count, percent, ratio, times

if TYPE_CHECKING:
    from eplb.report.study import Study


def rank_part(study: Study) -> Part:
    """The second part of the page."""
    figures = (forecast(study), over_time(study), rank_heat(study), compared(study))
    return Part(
        "gain",
        "What a better map brings",
        "How much less would ranks wait, on load that the plan has not seen?",
        figures,
    )


def rank_heat(study: Study) -> Figure:
    """Layer x rank before and after."""
    file = study.file
    layers = layer_numbers(file)
    charts: list[HeatMap] = []
    notes: tuple[str, ...] = ()
    for title, each in (("Before", study.before), ("After", study.after)):
        names = tuple(str(rank) for rank in range(each.load.shape[1]))
        values, columns, notes = fewer_cells(each.load, names, "ranks")
        charts.append(
            HeatMap(
                f"{title}: {each.name}",
                cell_axis("rank", tuple(name.split(" ")[0] for name in columns)),
                cell_axis(layer_word(file), layers, downwards=True),
                tuple(f"layer {layer}" for layer in layers),
                tuple(f"rank {name}" for name in columns),
                values,
                RANK_STEPS,
            )
        )
    worst = [each.load[~np.isnan(each.load)].max(initial=0) for each in (study.before, study.after)]
    return Figure(
        "rank-heat",
        "What each rank carries, layer by layer",
        "Each cell is one rank in one layer: its tokens over the mean rank, mean over "
        f"{scored_words(study)}. Orange ranks carry more than their fair share, blue ones less, and in every row all wait for the most orange cell. A good map shows no orange.",
        "There is no load."
        if not any(worst)
        else f"The most loaded rank of any layer carries {times(float(worst[0]))} the mean before and {times(float(worst[1]))} after.",
        tuple(charts),
        _rank_table(study),
        notes=(
            *notes,
            "Peaks that change from rank to rank between slices average out here; the ratio counts them.",
        ),
    )


def _rank_table(study: Study) -> Table:
    rows = []
    for at, name in enumerate(layer_numbers(study.file)):
        cells: list[str] = []
        for each in (study.before, study.after):
            load = each.load[at]
            known = not np.isnan(load).any()
            cells += [
                str(int(load.argmax())) if known else "–",
                times(float(load.max())) if known else "–",
                ratio(mean(each.ratio[study.scored, at])),
            ]
        rows.append((name, *cells))
    head = (
        layer_word(study.file),
        "before: busiest rank",
        "its load / mean",
        "ratio",
        "after: busiest rank",
        "its load / mean",
        "ratio",
    )
    return Table(head, tuple(rows))


def compared(study: Study) -> Figure:
    """All maps in one table."""
    rows = []
    before = study.mean_ratio(study.before)
    for each in (study.before, *study.others):
        value = study.mean_ratio(each)
        by_layer = [mean(each.ratio[study.scored, at]) for at in range(each.ratio.shape[1])]
        worst = max((one for one in by_layer if not isnan(one)), default=float("nan"))
        planned = float("nan") if study.foreign else study.mean_ratio(each, ~study.held)
        rows.append(
            (
                each.name,
                ratio(value),
                ratio(planned),
                ratio(worst),
                count(each.moves),
                percent(1 - value / before),
            )
        )
    slots = study.ask.topology.slots * study.file.trace.layers
    bound = (
        ""
        if study.result is None
        else f" No map of this pool can go below {ratio(study.result.bound)} on the slices of the plan."
    )
    return Figure(
        "compared",
        "The maps side by side",
        (
            ""
            if study.foreign
            else "'Held out' is the honest number; 'planned on' is what the plan was fitted to and always looks better. "
        )
        + "Moves are slots that must load an expert "
        f"new to their rank, of {slots:,} slots in all.{bound}",
        f"{len(rows)} maps are compared on {scored_words(study)}.",
        table=Table(
            (
                "map",
                "ratio, scored" if study.foreign else "ratio, held out",
                "ratio, planned on",
                "ratio, worst layer",
                "moves",
                "MoE time saved",
            ),
            tuple(rows),
        ),
        shown=True,
        notes=(
            "Maps from files may have been planned on these very slices: then their numbers are too good.",
        )
        if study.ask.maps
        else (),
    )
