"""Figures of the load itself: which experts are hot, and how hot."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.axes import cell_axis, line_axis
from eplb.report.charts import Figure, HeatMap, Line, LineChart, Part, Reading, Table
from eplb.report.names import layer_numbers, layer_word
from eplb.report.scale import EXPERT_STEPS, round_ticks
from eplb.report.words import count, listed, percent, some, times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.report.study import Study

MOST_CELLS = 18_000
"""Cells of a heat map; of more, neighbours are put together."""
HOTTEST = 10
CURVE_POINTS = 64


def load_part(study: Study) -> Part:
    """The first part of the page."""
    figures = (expert_heat(study), skew(study), hottest(study))
    return Part("load", "Where the tokens go", "Is the load uneven enough to matter?", figures)


def over_mean(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Tokens over the layer's mean expert, float64 [layers, experts]; NaN in layers without load."""
    mean = tokens.sum(axis=1, keepdims=True) / tokens.shape[1]
    result = np.full(tokens.shape, np.nan)
    np.divide(tokens, mean, out=result, where=mean > 0)
    return result


def fewer_cells(
    values: NDArray[np.float64], columns: tuple[str, ...], what: str
) -> tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]:
    """The same values with neighbouring columns put together (the larger counts) when there are too many, and a note."""
    rows, wide = values.shape
    group = ceil(wide * rows / MOST_CELLS)
    if group <= 1:
        return values, columns, ()
    starts = range(0, wide, group)
    merged = np.fmax.reduceat(values, list(starts), axis=1)
    names = tuple(f"{columns[at]} to {columns[min(at + group, wide) - 1]}" for at in starts)
    note = f"To keep the page small each cell is the largest of {group} neighbouring {what}."
    return merged, names, (note,)


def expert_heat(study: Study) -> Figure:
    """Layer x expert."""
    file = study.file
    tokens = file.trace.tokens.sum(axis=0)
    values = over_mean(tokens)
    layers = layer_numbers(file)
    names = tuple(str(expert) for expert in range(file.trace.experts))
    shown, columns, notes = fewer_cells(values, names, "experts")
    ticks = tuple(name.split(" ")[0] for name in columns)
    chart = HeatMap(
        "",
        cell_axis("expert (id)", ticks),
        cell_axis(layer_word(file), layers, downwards=True),
        tuple(f"layer {layer}" for layer in layers),
        tuple(f"{'experts' if ' to ' in name else 'expert'} {name}" for name in columns),
        shown,
        EXPERT_STEPS,
    )
    empty = [layer for layer, row in zip(layers, tokens, strict=True) if not row.any()]
    summary = "No layer has load."
    if len(empty) < len(layers):
        layer, expert = np.unravel_index(int(np.nanargmax(values)), values.shape)
        idle = int((tokens[tokens.any(axis=1)] == 0).sum())
        summary = (
            f"The hottest is expert {expert} of layer {layers[int(layer)]} with {times(float(values[layer, expert]))} the mean of its layer. "
            + (
                f"{count(idle)} of {count(values.size - len(empty) * values.shape[1])} experts got no token."
                if idle
                else "Every expert got tokens."
            )
        )
    if empty:
        summary += f" Without any load: layers {listed(empty)}."
    return Figure(
        "expert-heat",
        "How many tokens each expert gets, layer by layer",
        "Each cell is one expert of one layer, over the whole trace. Orange: more tokens than the mean expert of its layer, a hot expert. "
        "Blue: fewer. A rank that holds several orange experts of a row is late in that layer.",
        summary,
        (chart,),
        _layer_table(study, tokens, values),
        notes=notes,
    )


def _layer_table(study: Study, tokens: NDArray[np.int64], values: NDArray[np.float64]) -> Table:
    tenth = max(1, round(tokens.shape[1] / 10))
    rows = []
    for name, row, relative in zip(layer_numbers(study.file), tokens, values, strict=True):
        if not row.any():
            rows.append((name, "0", "–", "–", "–", str(len(row))))
            continue
        hot = int(row.argmax())
        share = np.sort(row)[-tenth:].sum() / row.sum()
        rows.append(
            (
                name,
                count(int(row.sum())),
                str(hot),
                times(float(relative[hot])),
                percent(float(share)),
                str(int((row == 0).sum())),
            )
        )
    head = (
        layer_word(study.file),
        "tokens × experts picked",
        "hottest expert",
        "its load / mean",
        f"share of the {tenth} hottest",
        "experts without a token",
    )
    return Table(head, tuple(rows))


def skew(study: Study) -> Figure:
    """Cumulative share of the hottest experts."""
    tokens = study.file.trace.tokens.sum(axis=0)
    loaded = np.flatnonzero(tokens.any(axis=1))
    experts = tokens.shape[1]
    ordered = -np.sort(-tokens[loaded], axis=1)
    share = np.cumsum(ordered, axis=1) / np.maximum(ordered.sum(axis=1, keepdims=True), 1)
    share = np.concatenate([np.zeros((len(loaded), 1)), share], axis=1)
    at = np.unique(np.linspace(0, experts, min(experts, CURVE_POINTS) + 1).round().astype(int))
    lines = [Line("all experts alike", "even", ((0.0, 0.0), (1.0, 1.0)))]
    readings: list[Reading] = []
    summary = "No layer has load."
    table = Table(("hottest experts", "most uneven layer", "median layer", "most even layer"), ())
    if len(loaded):
        curves = _curves(share, study, loaded)
        lines += [
            Line(name, key, tuple((n / experts, float(curve[n])) for n in at.tolist()))
            for name, key, curve in curves
        ]
        readings = [
            Reading(
                n / experts,
                f"The {some(n, 'hottest expert')} of {experts}: "
                + ", ".join(f"{name} {percent(float(curve[n]))}" for name, _, curve in curves),
            )
            for n in at.tolist()[1:]
        ]
        tenth = max(1, round(experts / 10))
        summary = f"In the median layer the {some(tenth, 'hottest expert')} of {experts} take {percent(float(curves[1][2][tenth]))} of the tokens; if all were alike it would be {percent(tenth / experts)}."
        marks = sorted({1, tenth, round(experts / 4), round(experts / 2)} - {0})
        table = Table(
            table.head, tuple((str(n), *(percent(float(curve[n])) for _, _, curve in curves)) for n in marks)
        )
    x, y = round_ticks(0, experts, 4, whole=True), (0.0, 0.25, 0.5, 0.75, 1.0)
    x = (*(tick for tick in x if tick < experts * 0.93), float(experts))
    chart = LineChart(
        line_axis("experts of a layer, hottest first (number)", x, [f"{tick:.0f}" for tick in x]),
        line_axis("share of the layer's tokens", y, [percent(tick, 0) for tick in y]),
        tuple(lines),
        tuple(readings),
    )
    return Figure(
        "skew",
        "How few experts take most of the tokens",
        "Experts are sorted by load, hottest first, and their shares are added up. The further a line bends above the dotted one, the more "
        "uneven the router is.",
        summary,
        (chart,) if len(loaded) else (),
        table if len(loaded) else None,
    )


def _curves(
    share: NDArray[np.float64], study: Study, loaded: NDArray[np.int64]
) -> tuple[tuple[str, str, NDArray[np.float64]], ...]:
    area = np.cumsum(share, axis=1)[:, -1]
    most, least = int(area.argmax()), int(area.argmin())
    names = layer_numbers(study.file)
    return (
        (f"most uneven, layer {names[int(loaded[most])]}", "map3", share[most]),
        ("median of the layers", "map2", np.median(share, axis=0)),
        (f"most even, layer {names[int(loaded[least])]}", "map4", share[least]),
    )


def hottest(study: Study) -> Figure:
    """The table of the hottest experts."""
    tokens = study.file.trace.tokens.sum(axis=0)
    values = np.nan_to_num(over_mean(tokens), nan=0.0)
    ranks, experts = study.ask.topology.ranks, tokens.shape[1]
    order = np.argsort(-values, axis=None, kind="stable")[:HOTTEST]
    names = layer_numbers(study.file)
    copies = [each.placement.replicas(experts) for each in (study.before, study.after)]
    rows = []
    over = 0
    for at in order.tolist():
        layer, expert = divmod(at, experts)
        if not tokens[layer, expert]:
            break
        share = tokens[layer, expert] / tokens[layer].sum()
        over += share * ranks > 1
        rows.append(
            (
                f"layer {names[layer]}, expert {expert}",
                times(float(values[layer, expert])),
                percent(float(share)),
                f"{share * ranks:.2f}",
                *(str(int(each[layer, expert])) for each in copies),
            )
        )
    head = (
        "where",
        "load / mean expert",
        "share of its layer",
        "load / fair share of a rank",
        "copies before",
        "copies after",
    )
    return Figure(
        "hottest",
        "The hottest experts",
        "A rank's fair share is the layer's tokens divided by the number of ranks. An expert above 1.00 of it makes its rank late "
        "whatever else is there: only more copies (replicas) help.",
        _over_words(over, len(rows)),
        table=Table(head, tuple(rows)) if rows else None,
        shown=True,
    )


def _over_words(over: int, shown: int) -> str:
    if not shown:
        return "No expert has load."
    if not over:
        return "No expert alone exceeds the fair share of a rank."
    which = "All" if over == shown else f"{over} of the"
    return f"{which} {some(shown, 'expert')} below alone exceed the fair share of a rank."
