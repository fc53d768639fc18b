"""``eplb inspect``: what a trace or map file is, what is in it, and what looks wrong, with the fix for each."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli.layer_options import layers_from
from eplb.cli.printing import notes_report, number
from eplb.cli.progress import say
from eplb.cli.trace_options import PATH, RANKS, read_options, top_k_of, trace_options
from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import MapFacts, TraceFile
from eplb.formats.suspicions import map_suspicions, trace_suspicions
from eplb.models import like
from eplb.report.words import some
from eplb.skew import TOP_EXPERTS, floor_ratio, id_order_ratio, skew_of

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.formats.facts import Format, Layers
    from eplb.formats.neutral import NeutralMap

SAMPLED_TOKENS = 64
"""Tokens whose sets are kept, to learn top-k from them."""
SHOWN_LAYERS = 6


@click.command()
@click.argument("file", type=PATH)
@trace_options
@click.option(
    "--ranks",
    type=RANKS,
    help="Of a trace: show the ratio at id order. Of a map that does not name them: its ranks.",
)
@click.option("--nodes", type=RANKS, help="Nodes of a map that does not name them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def inspect(file: Path, as_json: bool, **options: Any) -> None:
    """Say what FILE (a trace or a map, in any known format) is, and what looks wrong with it."""
    name = options["name"]
    form = registry.recognise(file) if name is None else registry.named(name)
    say(f"reading {file} as {form.title}")
    read = _read(file, form, options)
    about = {"file": str(file), "format": form.name, "title": form.title}
    if isinstance(read, TraceFile):
        report = about | _trace_report(read, options)
        lines = _trace_lines(report)
    else:
        report = about | _map_report(read)
        lines = _map_lines(report)
    click.echo(json.dumps(report, indent=2) if as_json else "\n".join(lines))


def _read(path: Path, form: Format, options: dict[str, Any]) -> TraceFile | NeutralMap:
    """The trace in a file, or the map if it holds none; what is wrong with the trace is told when neither can be read."""
    layers, experts = layers_from(options), options["experts"]
    facts = MapFacts(ranks=options["ranks"], nodes=options["nodes"], experts=experts, layers=layers)
    if form.read_trace is None:
        return registry.read_map(path, facts, form.name)
    try:
        return form.read_trace(path, read_options(path, options, SAMPLED_TOKENS))
    except FileError as error:
        if form.read_map is None:
            raise
        try:
            return form.read_map(path, facts)
        except FileError:
            raise error from None


def _trace_report(file: TraceFile, options: dict[str, Any]) -> dict[str, Any]:
    trace = file.trace
    top_k, top_k_from = top_k_of(file, options["top_k"])
    say(f"measuring {trace.layers} layers x {trace.experts} experts in {trace.slices} slices")
    steps = trace.steps_per_slice
    return {
        "kind": "trace",
        "model_guess": [model.title for model in like(trace.layers, trace.experts, top_k)],
        "layers": _layers(file.layers, trace.layers),
        "experts": trace.experts,
        "top_k": top_k,
        "top_k_from": top_k_from,
        "slices": trace.slices,
        "slices_from": file.slices_from,
        "steps": None if steps is None else int(steps.sum()),
        "picks": int(trace.tokens.sum()),
        "phases": _counted(file.phase),
        "domains": _counted(file.domain),
        "skew": _skew(file),
        "pool": None if options["ranks"] is None else _pool(file, options["ranks"], top_k),
        "live_map": file.live_map is not None,
        "suspicions": notes_report(trace_suspicions(file, top_k)),
        "notes": notes_report(file.notes),
    }


def _layers(layers: Layers, rows: int) -> dict[str, Any]:
    numbers = layers.model_layer
    return {
        "rows": rows,
        "model_layer": None if numbers is None else list(numbers),
        "hidden_layers": layers.hidden_layers,
    }


def _counted(names: tuple[str, ...] | None) -> dict[str, int] | None:
    return None if names is None else dict(sorted(Counter(names).items()))


def _skew(file: TraceFile) -> dict[str, Any]:
    found = skew_of(file.trace)
    return {
        "hottest_ratio": number(found.hottest_ratio),
        "top_experts": min(TOP_EXPERTS, file.trace.experts),
        "top_share": number(found.top_share),
        "gini": number(found.gini),
        "zero_cells": found.zero_cells,
        "cells": found.cells,
    }


def _pool(file: TraceFile, ranks: int, top_k: int | None) -> dict[str, Any]:
    return {
        "ranks": ranks,
        "id_order_ratio": number(id_order_ratio(file.trace, ranks)),
        "floor_ratio": None if top_k is None else number(floor_ratio(file.trace, ranks, top_k)),
    }


def _map_report(neutral: NeutralMap) -> dict[str, Any]:
    rows = neutral.placement.physical_to_logical
    replicas = neutral.placement.replicas(neutral.experts)
    sizes, experts = np.unique(replicas, return_counts=True)
    return {
        "kind": "map",
        "model_guess": [model.title for model in like(rows.shape[0], neutral.experts)],
        "layers": _layers(neutral.layers, rows.shape[0]),
        "experts": neutral.experts,
        "ranks": neutral.ranks,
        "nodes": neutral.nodes,
        "slots_per_rank": neutral.slots_per_rank,
        "redundant_slots": rows.shape[1] - neutral.experts,
        "empty_slots": int((rows < 0).sum()),
        "replicas": {str(size): int(count) for size, count in zip(sizes, experts, strict=True)},
        "shares": neutral.placement.shares is not None,
        "suspicions": notes_report(map_suspicions(neutral)),
        "notes": [],
    }


def _trace_lines(report: dict[str, Any]) -> list[str]:
    top_k = f"top-{report['top_k']} (from {report['top_k_from']})" if report["top_k"] else "top-k unknown"
    steps = "" if report["steps"] is None else f", {report['steps']:,} steps"
    return [
        *_first_lines(report),
        f"experts    {report['experts']}, {top_k}",
        f"slices     {report['slices']:,} ({report['slices_from']}){steps}, {report['picks']:,} picks",
        f"phases     {_shown(report['phases'])}",
        f"domains    {_shown(report['domains'])}",
        *_skew_lines(report["skew"]),
        *_pool_lines(report["pool"]),
        *(["live map   the file holds the map under which it was recorded"] if report["live_map"] else []),
        *_note_lines(report),
    ]


def _map_lines(report: dict[str, Any]) -> list[str]:
    replicas = ", ".join(f"{size} for {count:,}" for size, count in report["replicas"].items())
    return [
        *_first_lines(report),
        (
            f"pool       {some(report['ranks'], 'rank')} on {some(report['nodes'], 'node')} x {some(report['slots_per_rank'], 'slot')}, "
            f"{report['experts']} experts, {report['redundant_slots']} redundant"
        ),
        f"replicas   {replicas} (layer, expert) pairs; {report['empty_slots']:,} slots are empty",
        f"shares     {'as the map says' if report['shares'] else 'none: the engine splits as it does'}",
        *_note_lines(report),
    ]


def _first_lines(report: dict[str, Any]) -> list[str]:
    layers, guess = report["layers"], report["model_guess"]
    numbers, hidden = layers["model_layer"], layers["hidden_layers"]
    which = (
        "which layers of the model they are is not known"
        if numbers is None
        else f"model layers {_runs(numbers)}"
    )
    return [
        f"file       {report['file']}: {report['kind']}, {report['title']}",
        f"model      {'a guess from the shape: ' + ' or '.join(guess) if guess else 'no known model has this shape'}",
        f"layers     {some(layers['rows'], 'row')}, {which}" + (f" of {hidden}" if hidden else ""),
    ]


def _runs(numbers: list[int]) -> str:
    """Layer numbers, runs shortened: 1-26."""
    runs: list[list[int]] = []
    for layer in numbers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:SHOWN_LAYERS]]
    return ",".join(shown) + (",..." if len(runs) > SHOWN_LAYERS else "")


def _shown(counted: dict[str, int] | None) -> str:
    if counted is None:
        return "unknown"
    return ", ".join(f"{name or 'unknown'} {count:,}" for name, count in counted.items()) + " slices"


def _skew_lines(skew: dict[str, Any]) -> list[str]:
    if skew["hottest_ratio"] is None:
        return ["skew       no layer has load"]
    return [
        (
            f"skew       the hottest expert has {skew['hottest_ratio']:.2f} x the mean of its layer and slice; the top "
            f"{skew['top_experts']} take {skew['top_share']:.1%} of the picks; Gini {skew['gini']:.3f}"
        ),
        f"zero       {skew['zero_cells']:,} of {skew['cells']:,} (layer, expert) pairs were never picked",
    ]


def _pool_lines(pool: dict[str, Any] | None) -> list[str]:
    if pool is None:
        return []
    ratio, floor = pool["id_order_ratio"], pool["floor_ratio"]
    noise = "unknown without --top-k" if floor is None else f"{floor:.4f}"
    return [
        (
            f"ratio      {'unknown' if ratio is None else f'{ratio:.4f}'} on {pool['ranks']} ranks in the order of the ids "
            f"(hottest rank / mean; sampling noise alone: {noise})"
        )
    ]


def _note_lines(report: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for kind, notes in (("suspicion", report["suspicions"]), ("note", report["notes"])):
        for note in notes:
            lines.append(f"{kind:<10} {note['code']}: {note['sentence']}")
            if note["fix"]:
                lines.append(f"           fix: {note['fix']}")
    return lines if report["suspicions"] else ["suspicion  none: nothing looks wrong", *lines]
