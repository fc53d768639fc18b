"""The figure of what a map saves, phase by phase and domain by domain."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from eplb.report.axes import line_axis, part_of
from eplb.report.charts import Figure, Span, Spans, Table
from eplb.report.forecast import UNKNOWN_PHASE, by_domain, by_phase
from eplb.report.scale import round_ticks
from eplb.report.words import percent, ratio, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.report.forecast import Gain
    from eplb.report.study import Study

HELP = (
    "Each line goes from the ratio before (orange ring) to the ratio after (blue dot); the grey mark is the sampling floor. Further left is better. "
    "MoE time saved = 1 – ratio after / ratio before. That holds where the time of a layer follows the tokens of its busiest rank (prefill, large batches). "
    "Decode with few tokens per expert mostly waits for reading weights, and saves less."
)
HEAD = ("phase or domain", "slices", "ratio before", "ratio after", "sampling floor", "better in", "MoE time saved")  # fmt: skip


def scored_words(study: Study) -> str:
    """On which slices numbers are stated."""
    held, all_of_them = int(study.held.sum()), some(len(study.held), "slice")
    if study.foreign:
        return f"{all_of_them}, on which the map may have been planned,"
    return some(held, "held-out slice") if held else f"{all_of_them}, none held out,"


def forecast(study: Study) -> Figure:
    """Ratio before and after by phase, with what time that saves."""
    phases, domains = by_phase(study), by_domain(study)
    rows = (*phases, *(domains if len(domains) > 1 else ()))
    known = [each for each in rows if not isnan(each.before)]
    with_us = any(each.before_us is not None for each in rows)
    us = ("µs before", "µs after", "saved by preset") if with_us else ()
    return Figure(
        "forecast",
        "Forecast: how much MoE time is saved",
        HELP,
        f"On {scored_words(study)} "
        + (_saved([each for each in known if each in phases]) or "there is no load")
        + ".",
        (_spans(known),) if known else (),
        Table((*HEAD, *us), tuple(_row(each, with_us=with_us) for each in rows)),
        notes=_us_notes(study, with_us=with_us),
    )


def _saved(phases: Sequence[Gain]) -> str:
    return "; ".join(
        f"{percent(each.saved)} of the MoE time is saved"
        + (" (the trace does not say in which phase)" if each.name == UNKNOWN_PHASE else f" in {each.name}")
        + ("" if each.saved_us is None else f", {percent(each.saved_us)} by the cost preset")
        for each in phases
    )


def _spans(known: Sequence[Gain]) -> Spans:
    ticks = round_ticks(1.0, max([1.1, *(max(each.before, each.after) for each in known)]), 4)
    return Spans(
        line_axis(
            "ratio: busiest rank / mean rank (1 = perfectly even)", ticks, [f"{tick:g}" for tick in ticks]
        ),
        tuple(
            Span(
                f"{each.name} ({some(each.slices, 'slice')})",
                part_of(each.before, ticks),
                part_of(each.after, ticks),
                part_of(1 + each.floor, ticks),
                f"{ratio(each.before)} → {ratio(each.after)}: saves {percent(each.saved)}",
            )
            for each in known
        ),
    )


def _us_notes(study: Study, *, with_us: bool) -> tuple[str, ...]:
    cost = study.ask.cost
    if with_us and cost is not None:
        return (
            f"Microseconds: mean time of the costliest rank in one layer of one step, by a cost preset ({cost.provenance}). Other models and GPUs have other times.",
        )
    return (f"Shares of the MoE time only, no microseconds: {study.after.layer_us_missing}.",)


def _row(gain: Gain, *, with_us: bool) -> tuple[str, ...]:
    us = tuple("–" if value is None else f"{value:.1f}" for value in (gain.before_us, gain.after_us))
    preset = percent(float("nan") if gain.saved_us is None else gain.saved_us)
    return (
        gain.name,
        str(gain.slices),
        ratio(gain.before),
        ratio(gain.after),
        ratio(1 + gain.floor),
        f"{gain.better} of {gain.slices}",
        percent(gain.saved),
        *((*us, preset) if with_us else ()),
    )
