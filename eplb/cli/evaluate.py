"""``eplb eval``: score a map on a routing trace."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli.layer_options import layers_from
from eplb.cli.map_files import read_beside
from eplb.cli.place_report import fan_out_lines, fan_out_report, inputs
from eplb.cli.printing import note_lines, notes_report, number, shown
from eplb.cli.trace_options import FILE, FORMAT, PATH, RANKS, for_ranks, load, top_k_of, trace_options
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.registry import read_map, recognise
from eplb.offline.engines import NAMES, engine_of, usual_dispatch
from eplb.offline.plan import measured_fan_out
from eplb.skew import floor_ratio, id_order
from placement import evaluate, violations

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.formats.facts import TraceFile
    from eplb.formats.neutral import NeutralMap

WORST_LAYERS = 5


@click.command("eval")
@click.argument("map_file", metavar="MAP", type=FILE)
@click.argument("trace", type=PATH)
@trace_options
@click.option("--ranks", type=RANKS, help="Ranks of a map that does not name them.")
@click.option("--nodes", type=RANKS, help="Nodes of a map that does not name them.")
@click.option(
    "--dispatch",
    type=click.Choice(NAMES),
    help="Engine, or rule, that says which copy of an expert a token takes.  [default: the engine of the map's format, else even]",
)
@click.option("--map-from", type=FORMAT, help="Format of the map, where it is not recognised.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def evaluate_cmd(map_file: Path, trace: Path, dispatch: str | None, as_json: bool, **options: Any) -> None:
    """Score MAP on TRACE: how much hotter than the mean the hottest rank is, slice by slice and layer by layer."""
    facts = MapFacts(options["ranks"], options["nodes"], options["experts"], layers_from(options))
    # Its experts first: a trace need not name the last ones. Its layers then, which the trace may know.
    form = options["map_from"] or recognise(map_file).name
    first = read_map(map_file, replace(facts, layers=Layers()), form)
    file = load(trace, options, experts=first.experts, nodes=first.nodes)
    neutral = read_beside(map_file, file, facts, form)
    report = eval_report(neutral, file, dispatch or usual_dispatch(form), options["top_k"])
    click.echo(json.dumps(report, indent=2) if as_json else eval_text(report))


def eval_report(neutral: NeutralMap, file: TraceFile, dispatch: str, top_k: int | None) -> dict[str, Any]:
    """The facts."""
    topology, engine = neutral.topology(), engine_of(dispatch)
    trace, notes = for_ranks(file.trace, topology.ranks)
    score = evaluate(neutral.placement, trace, topology, engine.dispatch)
    known = score.ratio[~np.isnan(score.ratio)]
    mean, top_k = score.mean_ratio, top_k_of(file, top_k)[0]
    fans = measured_fan_out(trace, topology, engine, id_order(trace, topology), neutral.placement)
    return {
        **inputs(file, topology),
        "dispatch": engine.dispatch,
        "ratio_mean": number(mean),
        "ratio_p95": number(float(np.quantile(known, 0.95))) if known.size else None,
        "ratio_worst": number(float(known.max())) if known.size else None,
        "ratio_floor": None if top_k is None else number(floor_ratio(trace, topology.ranks, top_k)),
        "excess": None if isnan(mean) else number(mean - 1),
        "waste_share": None if isnan(mean) else number(1 - 1 / mean),
        "fan_out": None if fans is None else fan_out_report(fans),
        "layers": _layers(neutral, file, score.layer_ratio().tolist()),
        "violations": [
            {"code": v.code, "sentence": v.sentence}
            for v in violations(neutral.placement, topology, neutral.experts)
        ],
        "reasons": [{"code": reason.code, "sentence": reason.sentence} for reason in score.reasons],
        "notes": notes_report((*file.notes, *notes)),
    }


def _layers(neutral: NeutralMap, file: TraceFile, ratios: list[float]) -> list[dict[str, Any]]:
    numbers = file.layers.model_layer or neutral.model_layer or (None,) * file.trace.layers
    return [
        {"row": row, "model_layer": layer, "ratio": number(ratio)}
        for row, (layer, ratio) in enumerate(zip(numbers, ratios, strict=True))
    ]


def eval_text(report: dict[str, Any]) -> str:
    """The report as text."""
    trace = report["trace"]
    lines = [
        (
            f"slices     {trace['slices']} ({trace['slices_from']}), dispatch {report['dispatch']}; if the map was planned on them, "
            "the ratio is too good to expect"
        ),
        (
            f"ratio      mean {shown(report['ratio_mean'])}, p95 {shown(report['ratio_p95'])}, "
            f"worst {shown(report['ratio_worst'])}  (hottest rank / mean; 1.0 = even; sampling noise alone: "
            f"{shown(report['ratio_floor'])})"
        ),
    ]
    if report["waste_share"] is not None:
        lines.append(f"waste      {report['waste_share']:.1%} of the time of these layers is spent waiting")
    loaded = [layer for layer in report["layers"] if layer["ratio"] is not None]
    worst = sorted(loaded, key=lambda layer: -layer["ratio"])[:WORST_LAYERS]
    key = "row" if any(layer["model_layer"] is None for layer in worst) else "model_layer"
    named = ", ".join(f"{layer[key]} ({layer['ratio']:.3f})" for layer in worst)
    what = "rows" if key == "row" else "model layers"
    lines.append(f"hottest    {what} {named}" if worst else "hottest    no layer has load")
    lines.extend(fan_out_lines(report["fan_out"], ("in the order of the ids", "with this map")))
    for name, kind in (("violation", "violations"), ("reason", "reasons")):
        lines.extend(f"{name:<10} {found['code']}: {found['sentence']}" for found in report[kind])
    return "\n".join([*lines, *note_lines(report["notes"])])
