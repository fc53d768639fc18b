"""``eplb convert``: the same map, or the same trace, in another format."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli.layer_options import layers_from
from eplb.cli.map_files import write_map, written_lines, written_report
from eplb.cli.printing import note_lines, notes_report
from eplb.cli.progress import progress, say
from eplb.cli.targets import check_writable
from eplb.cli.trace_options import FILE, PATH, RANKS, current_options, read_options, trace_options
from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import MapFacts
from eplb.formats.same_pool import in_place
from eplb.report.words import some

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.formats.facts import Format, TraceFile, Written

TARGETS = tuple(sorted({*registry.abilities("write_map"), *registry.abilities("write_trace")}))


@click.command()
@click.argument("source", type=PATH)
@click.argument("target", type=FILE)
@click.option("--to", "to", type=click.Choice(TARGETS), required=True, help="Format of TARGET.")
@trace_options
@click.option("--ranks", type=RANKS, help="Ranks of a map that does not name them.")
@click.option("--nodes", type=RANKS, help="Nodes of a map that does not name them.")
@current_options(
    "Map that is live now: experts that stay on their rank keep its slots, as vllm-ascend demands of a running engine."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def convert(source: Path, target: Path, to: str, as_json: bool, **options: Any) -> None:
    """Write SOURCE (a map or a trace, in any known format) as TARGET, read that back, and say how to start the engine with it.

    Picks stay picks, request by request. What SOURCE does not say and TARGET needs is asked for by name.
    """
    check_writable(target, (source, options["current"]))
    form = registry.recognise(source) if options["name"] is None else registry.named(options["name"])
    aim = registry.named(to)
    say(f"reading {source} as {form.title}")
    if aim.write_map is not None:
        report = _map(source, target, (form, aim), options)
    else:
        report = _trace(source, target, (form, aim), options)
    click.echo(json.dumps(report, indent=2) if as_json else _text(report))


def _map(source: Path, target: Path, forms: tuple[Format, Format], options: dict[str, Any]) -> dict[str, Any]:
    form, aim = forms
    if form.read_map is None:
        raise FileError(
            f"{source}: is {form.title}, which holds no map: make one with 'eplb place', or convert it to "
            f"{', '.join(registry.abilities('write_trace'))}"
        )
    facts = MapFacts(options["ranks"], options["nodes"], options["experts"], layers_from(options))
    neutral = form.read_map(source, facts)
    if options["current"] is not None:
        known = MapFacts(neutral.ranks, None, neutral.experts, neutral.layers)
        neutral = in_place(neutral, registry.read_map(options["current"], known, options["current_from"]))
    registry.check_map(target, neutral, aim.name)
    shape = f"{neutral.placement.layers} layers of {neutral.placement.slots} slots, {neutral.experts} experts"
    return {
        "kind": "map",
        "source": str(source),
        "from": form.name,
        "holds": f"{shape} on {some(neutral.ranks, 'rank')} and {some(neutral.nodes, 'node')}",
        "written": written_report(write_map(target, neutral, aim.name), aim.name),
        "notes": [],
    }


def _trace(
    source: Path, target: Path, forms: tuple[Format, Format], options: dict[str, Any]
) -> dict[str, Any]:
    form, aim = forms
    if options["current"] is not None:
        raise click.UsageError("--current is about maps, and --to names a format of traces")
    if form.read_trace is None:
        raise FileError(
            f"{source}: is {form.title}, which holds no trace: convert it to {', '.join(registry.abilities('write_map'))}"
        )
    # One set of experts is enough to tell picks from counts.
    how = read_options(source, options, most_routes=1)
    file = form.read_trace(source, how)
    as_picks = file.trace.routes is not None and form.read_sequences is not None
    written = (
        _write_trace(source, target, file, forms, options)
        if as_picks
        else registry.write_trace(target, file, aim.name)
    )
    say(f"reading {target} back")
    told = progress(f"reading {target.name}")
    again = replace(how, experts=file.trace.experts, layers=file.layers, phase=None, progress=told)
    _check_same(target, file, registry.read_trace(target, again, aim.name))
    return {
        "kind": "trace",
        "source": str(source),
        "from": form.name,
        "holds": (
            f"{'picks' if as_picks else 'counts'} of {file.trace.layers} layers x {file.trace.experts} experts, "
            f"{file.trace.slices} slices ({file.slices_from})"
        ),
        "written": written_report(written, aim.name),
        "notes": notes_report(file.notes),
    }


def _write_trace(
    source: Path, target: Path, file: TraceFile, forms: tuple[Format, Format], options: dict[str, Any]
) -> Written:
    form, aim = forms
    how = replace(
        read_options(source, options, most_routes=0), layers=file.layers, experts=file.trace.experts
    )
    sequences = registry.read_sequences(source, how, form.name)
    return registry.write_sequences(
        target, sequences, aim.name, layers=file.layers, experts=file.trace.experts
    )


def _check_same(target: Path, one: TraceFile, two: TraceFile) -> None:
    same = (
        np.array_equal(one.trace.tokens, two.trace.tokens)
        and one.layers.model_layer == two.layers.model_layer
    )
    same = same and (one.domain, one.phase) == (two.domain, two.phase)
    if not same:
        raise FileError(f"{target}: reads back as another trace than was written: do not use it")


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"read       {report['source']} ({report['from']}): {report['kind']}, {report['holds']}",
        *note_lines(report["notes"]),
        *written_lines(report["written"]),
    ]
    return "\n".join(lines)
