"""``eplb report``: one page on what a trace holds, what a better placement would bring, and whether that pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli.layer_options import layer_options, layers_from
from eplb.cli.progress import progress, say
from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import PHASES, SEQUENCES_PER_SLICE, MapFacts, ReadOptions
from eplb.formats.files import write_text
from eplb.report.build import build
from eplb.report.page import render
from eplb.report.study import Ask, Named, study
from placement import Topology
from placement.cost import H200_DEEPSEEK_V3_FP8, H200_DEEPSEEK_V3_FP8_DECODE

if TYPE_CHECKING:
    from eplb.formats.facts import TraceFile
    from eplb.formats.neutral import NeutralMap

RANKS_MAX = 4096
MOST_MAPS = 4
"""Maps that one page can show apart."""
ROUTES = 20_000
"""Tokens whose sets of experts are kept, for fan-out."""
COSTS = {"h200-decode": H200_DEEPSEEK_V3_FP8_DECODE, "h200": H200_DEEPSEEK_V3_FP8}
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--ranks", type=click.IntRange(1, RANKS_MAX), required=True, help="Ranks of the expert-parallel group."
)
@click.option(
    "--nodes",
    type=click.IntRange(1, RANKS_MAX),
    default=1,
    show_default=True,
    help="Nodes that they stand on.",
)
@click.option(
    "--slots-per-rank",
    type=click.IntRange(1, RANKS_MAX),
    required=True,
    help="Expert slots of a rank in one layer.",
)
@click.option(
    "--map",
    "maps",
    type=click.Path(path_type=Path),
    multiple=True,
    help=f"Map to compare, at most {MOST_MAPS}; instead of a new plan.",
)
@click.option("--plan", is_flag=True, help="Also make a new plan where maps are given.")
@click.option(
    "--current", type=click.Path(path_type=Path), help="Map that is live now; default: the order of ids."
)
@click.option(
    "--holdout",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.5,
    show_default=True,
    help="Part of the slices that the plan never sees.",
)
@click.option(
    "--effort", type=click.Choice(["fast", "normal", "thorough"]), default="normal", show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--cost",
    type=click.Choice(list(COSTS)),
    help="Also show microseconds by a preset of measured kernels (DeepSeek-V3 fp8 on one H200).",
)
@click.option("--from", "name", metavar="FORMAT", help="Format of TRACE, where it is not recognised.")
@click.option(
    "--experts",
    type=click.IntRange(min=1),
    help="Experts of the model, if the trace does not name the last ones.",
)
@click.option(
    "--top-k",
    type=click.IntRange(min=1),
    help="Experts that a token picks in a layer, if the trace holds counts.",
)
@click.option("--phase", type=click.Choice(PHASES), help="Look at slices of this phase only.")
@click.option(
    "--sequences-per-slice",
    type=click.IntRange(min=1),
    default=SEQUENCES_PER_SLICE,
    show_default=True,
    help="Sequences of one domain that make one slice of a trace of picks.",
)
@layer_options
@click.option("-o", "--output", type=FILE, required=True, help="HTML file to write.")
def report(trace: Path, output: Path, **options: Any) -> None:
    """Show what TRACE (a file or folder in any known format) holds and what a better map would bring, as one HTML page."""
    if len(options["maps"]) > MOST_MAPS:
        raise click.UsageError(f"{len(options['maps'])} maps are given, one page shows at most {MOST_MAPS}")
    topology = Topology.uniform(
        ranks=options["ranks"], nodes=options["nodes"], slots_per_rank=options["slots_per_rank"]
    )
    file = _read(trace, options)
    before = _before(file, topology, options["current"])
    ask = Ask(
        topology,
        before,
        tuple(_map(path, file, topology) for path in options["maps"]),
        plan=options["plan"],
        hold_out=options["holdout"],
        effort=options["effort"],
        seed=options["seed"],
        top_k=options["top_k"],
        cost=None if options["cost"] is None else COSTS[options["cost"]],
    )
    page = build(study(file, ask, say), trace.name)
    write_text(output, render(page))
    click.echo(
        f"verdict    {page.verdict.headline}\n           {page.verdict.reasons[0]}\nwrote      {output}"
    )


def _read(trace: Path, options: dict[str, Any]) -> TraceFile:
    say(f"reading {trace}")
    read = ReadOptions(
        experts=options["experts"],
        layers=layers_from(options),
        phase=options["phase"],
        sequences_per_slice=options["sequences_per_slice"],
        most_routes=ROUTES,
        progress=progress(f"reading {trace.name}"),
    )
    return registry.read_trace(trace, read, options["name"])


def _before(file: TraceFile, topology: Topology, current: Path | None) -> Named | None:
    if current is not None:
        return _map(current, file, topology)
    live = file.live_map
    if live is None or live.placement.slots != topology.slots or live.ranks != topology.ranks:
        return None
    return Named("live map of the trace", live.placement)


def _map(path: Path, file: TraceFile, topology: Topology) -> Named:
    trace = file.trace
    found = _map_rows(path, MapFacts(topology.ranks, topology.nodes, trace.experts), file)
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


def _map_rows(path: Path, facts: MapFacts, file: TraceFile) -> NeutralMap:
    """The map by what its file says of its layers; only where that does not give the trace's rows, by what the trace says."""
    told = replace(facts, layers=file.layers)
    try:
        own = registry.read_map(path, facts)
    except FileError:
        return registry.read_map(path, told)
    return own if own.placement.layers == file.trace.layers else registry.read_map(path, told)
