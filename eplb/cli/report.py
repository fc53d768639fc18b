"""``eplb report``: one page on what a trace holds, what a better placement would bring, and whether that pays."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli.progress import say
from eplb.cli.targets import check_writable
from eplb.cli.trace_options import (
    FILE,
    FORMAT,
    MOST_ROUTES,
    PATH,
    RANKS,
    current_options,
    for_ranks,
    holdout_option,
    read_options,
    top_k_of,
    trace_options,
)
from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import MapFacts
from eplb.formats.files import write_text
from eplb.offline.holdout import HOLDOUT, check_fraction
from eplb.report.build import build
from eplb.report.page import render
from eplb.report.study import Ask, Named, study
from placement import Topology
from placement.cost import H200_DEEPSEEK_V3_FP8, H200_DEEPSEEK_V3_FP8_DECODE

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.formats.facts import TraceFile
    from eplb.formats.neutral import NeutralMap

MOST_MAPS = 4
"""Maps that one page can show apart."""
COSTS = {"h200-decode": H200_DEEPSEEK_V3_FP8_DECODE, "h200": H200_DEEPSEEK_V3_FP8}


@click.command()
@click.argument("trace", type=PATH)
@trace_options
@click.option("--ranks", type=RANKS, required=True, help="Ranks of the expert-parallel group.")
@click.option(
    "--nodes",
    type=RANKS,
    default=1,
    show_default=True,
    help="Nodes that they stand on.",
)
@click.option(
    "--slots-per-rank",
    type=RANKS,
    required=True,
    help="Expert slots of a rank in one layer.",
)
@click.option(
    "--map",
    "maps",
    type=PATH,
    multiple=True,
    help=f"Map to compare, at most {MOST_MAPS}; instead of a new plan.",
)
@click.option("--plan", is_flag=True, help="Also make a new plan where maps are given.")
@click.option("--map-from", type=FORMAT, help="Format of all maps of --map, where they are not recognised.")
@current_options("Map that is live now.  [default: that of the trace, else the order of ids]")
@holdout_option
@click.option(
    "--effort", type=click.Choice(["fast", "normal", "thorough"]), default="normal", show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--cost",
    type=click.Choice(list(COSTS)),
    help="Also show microseconds by a preset of measured kernels (DeepSeek-V3 fp8 on one H200).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON instead of text.")
@click.option("-o", "--output", type=FILE, required=True, help="HTML file to write.")
def report(trace: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Show what TRACE (a file or folder in any known format) holds and what a better map would bring, as one HTML page."""
    if len(options["maps"]) > MOST_MAPS:
        raise click.UsageError(f"{len(options['maps'])} maps are given, one page shows at most {MOST_MAPS}")
    check_writable(output, (trace, options["current"], *options["maps"]))
    topology = Topology.uniform(
        ranks=options["ranks"], nodes=options["nodes"], slots_per_rank=options["slots_per_rank"]
    )
    file = _read(trace, options)
    before = _before(file, topology, options["current"], options["current_from"])
    if options["holdout"] is not None:
        check_fraction(options["holdout"], file.trace.slices)
    ask = Ask(
        topology,
        before,
        tuple(_map(path, file, topology, options["map_from"]) for path in options["maps"]),
        plan=options["plan"],
        hold_out=HOLDOUT if options["holdout"] is None else options["holdout"],
        effort=options["effort"],
        seed=options["seed"],
        top_k=top_k_of(file, options["top_k"])[0],
        cost=None if options["cost"] is None else COSTS[options["cost"]],
    )
    page = build(study(file, ask, say), trace.name)
    write_text(output, render(page))
    if as_json:
        click.echo(json.dumps({"verdict": asdict(page.verdict), "written": str(output)}, indent=2))
        return
    reasons = "".join(f"           {reason}\n" for reason in page.verdict.reasons)
    click.echo(f"verdict    {page.verdict.headline}\n{reasons}wrote      {output}")


def _read(trace: Path, options: dict[str, Any]) -> TraceFile:
    say(f"reading {trace}")
    file = registry.read_trace(trace, read_options(trace, options, MOST_ROUTES), options["name"])
    return replace(file, trace=for_ranks(file.trace, options["ranks"])[0])


def _before(file: TraceFile, topology: Topology, current: Path | None, name: str | None) -> Named | None:
    if current is not None:
        return _map(current, file, topology, name)
    live = file.live_map
    if live is None or live.placement.slots != topology.slots or live.ranks != topology.ranks:
        return None
    return Named("live map of the trace", live.placement)


def _map(path: Path, file: TraceFile, topology: Topology, name: str | None) -> Named:
    trace = file.trace
    found = _map_rows(path, MapFacts(topology.ranks, topology.nodes, trace.experts), file, name)
    ours, theirs = found.model_layer, file.layers.model_layer
    if ours is not None and theirs is not None and ours != theirs:
        raise FileError(
            f"{path}: its rows are not the same layers of the model as those of the trace; give the right ones with --moe-layers"
        )
    asked = (topology.ranks, topology.slots // topology.ranks, trace.experts, trace.layers)
    held = (found.ranks, found.slots_per_rank, found.experts, found.placement.layers)
    if asked != held:
        raise FileError(
            f"{path}: the map has (ranks, slots per rank, experts, layers) = {held}, the command line and the trace {asked}"
        )
    lost = np.argwhere((found.placement.replicas(trace.experts) == 0) & trace.tokens.any(axis=0))
    if len(lost):
        row, expert = lost[0].tolist()
        raise FileError(
            f"{path}: row {row} has no slot for expert {expert}, which has load in the trace ({len(lost)} such): it cannot be scored"
        )
    return Named(path.name, found.placement)


def _map_rows(path: Path, facts: MapFacts, file: TraceFile, name: str | None) -> NeutralMap:
    """The map by what its file says of its layers; only where that does not give the trace's rows, by what the trace says."""
    told = replace(facts, layers=file.layers)
    try:
        own = registry.read_map(path, facts, name)
    except FileError:
        return registry.read_map(path, told, name)
    return own if own.placement.layers == file.trace.layers else registry.read_map(path, told, name)
