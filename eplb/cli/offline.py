"""``eplb place`` and ``eplb eval``: compute and score a placement from a routing trace, without a daemon."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli import exits
from eplb.cli.progress import progress, say
from eplb.errors import FileError
from eplb.formats.facts import SEQUENCES_PER_SLICE, ReadOptions
from eplb.formats.neutral import NeutralMap, read_map, write_map
from eplb.formats.registry import read_trace
from eplb.skew import id_order
from placement import Limits, LoadTrace, Placement, Topology, evaluate, solve, violations

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.formats.facts import TraceFile
    from placement import Result

WORST_LAYERS = 5
RANKS_MAX = 4096
"""More ranks than any expert-parallel group has; beyond it a number is a slip of the pen."""
FILE = click.Path(path_type=Path, dir_okay=False)
TRACE = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """A map planned on every second slice, scored on the others."""

    planned: int
    scored: int
    before: float
    after: float


@click.command()
@click.argument("trace", type=TRACE)
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
    "--experts",
    type=click.IntRange(min=1),
    help="Experts of the model, if the trace does not name the last ones.",
)
@click.option("--current", type=FILE, help="Map that is live now: the new one keeps what it can.")
@click.option("--moves", type=click.IntRange(min=0), help="Most slots to change, over all layers.")
@click.option(
    "--bytes-per-expert",
    type=click.IntRange(min=1),
    help="Bytes of one expert of one layer, to price the moves.",
)
@click.option(
    "--effort", type=click.Choice(["fast", "normal", "thorough"]), default="normal", show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--sequences-per-slice",
    type=click.IntRange(min=1),
    default=SEQUENCES_PER_SLICE,
    show_default=True,
    help="Sequences of one domain that make one slice of a trace of picks.",
)
@click.option("--holdout", is_flag=True, help="Also plan on every second slice and score on the others.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("-o", "--output", type=FILE, required=True, help="Map file to write.")
def place(trace: Path, output: Path, **options: Any) -> int:
    """Compute a placement from TRACE (a file or folder in any known format) and write it as a map file.

    With --current the map is written only when it moves something; otherwise the exit code is 3.
    """
    if options["moves"] is not None and options["current"] is None:
        raise click.UsageError("--moves limits what changes of a live map; give it with --current")
    topology = Topology.uniform(
        ranks=options["ranks"], nodes=options["nodes"], slots_per_rank=options["slots_per_rank"]
    )
    file = _read(trace, options["experts"], options["sequences_per_slice"])
    current = None if options["current"] is None else _current(options["current"], file, topology)
    limits = Limits(moves=options["moves"], bytes_per_expert=options["bytes_per_expert"])

    def planned(part: LoadTrace) -> Result:
        return solve(part, topology, current, limits=limits, effort=options["effort"], seed=options["seed"])

    result = _timed(planned, file.trace)
    held_out = _held_out(planned, file.trace, topology, current) if options["holdout"] else None
    idle = current is not None and result.moves == 0
    if not idle:
        write_map(output, _neutral(file, topology, result.placement))
    report = _place_report(file, topology, current, result, held_out)
    report["written"] = None if idle else str(output)
    click.echo(json.dumps(report, indent=2) if options["as_json"] else _place_text(report))
    return exits.NOTHING_TO_DO if idle else exits.OK


@click.command("eval")
@click.argument("map_file", metavar="MAP", type=FILE)
@click.argument("trace", type=TRACE)
@click.option(
    "--dispatch",
    type=click.Choice(["even", "weighted"]),
    default="even",
    show_default=True,
    help="How replicas share their expert's tokens: evenly, or by the map's shares.",
)
@click.option(
    "--sequences-per-slice",
    type=click.IntRange(min=1),
    default=SEQUENCES_PER_SLICE,
    show_default=True,
    help="Sequences of one domain that make one slice of a trace of picks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def evaluate_cmd(map_file: Path, trace: Path, dispatch: str, sequences_per_slice: int, as_json: bool) -> None:
    """Score MAP on TRACE: how much hotter than the mean the hottest rank is, slice by slice and layer by layer."""
    neutral = read_map(map_file, live=True)
    file = _read(trace, neutral.experts, sequences_per_slice)
    _check_layers(map_file, neutral, file)
    report = _eval_report(neutral, file, dispatch)
    click.echo(json.dumps(report, indent=2) if as_json else _eval_text(report))


def _read(trace: Path, experts: int | None, sequences_per_slice: int) -> TraceFile:
    say(f"reading {trace}")
    options = ReadOptions(
        experts=experts, sequences_per_slice=sequences_per_slice, progress=progress(f"reading {trace.name}")
    )
    return read_trace(trace, options)


def _timed(planned: Callable[[LoadTrace], Result], trace: LoadTrace) -> Result:
    say(f"solving {trace.layers} layers x {trace.experts} experts on {trace.slices} slices")
    start_s = time.monotonic()
    result = planned(trace)
    say(f"solved in {time.monotonic() - start_s:.1f} s")
    return result


def _current(path: Path, file: TraceFile, topology: Topology) -> Placement:
    neutral = read_map(path, live=True)
    _check_layers(path, neutral, file)
    asked = (topology.ranks, topology.slots // topology.ranks, file.trace.experts)
    found = (neutral.ranks, neutral.slots_per_rank, neutral.experts)
    if found != asked:
        names = "ranks, slots per rank, experts"
        raise FileError(f"{path}: the map has ({names}) = {found}, the command line and the trace {asked}")
    return neutral.placement


def _check_layers(path: Path, neutral: NeutralMap, file: TraceFile) -> None:
    ours, theirs = neutral.model_layer, file.layers.model_layer
    rows = neutral.placement.physical_to_logical.shape[0]
    if ours is not None and theirs is not None and ours != theirs:
        raise FileError(f"{path}: rows are model layers {_short(ours)}, the trace has {_short(theirs)}")
    if rows != file.trace.layers:
        raise FileError(f"{path}: the map has {rows} layers, the trace {file.trace.layers}")


def _short(layers: tuple[int, ...]) -> str:
    shown = ", ".join(str(layer) for layer in layers[:6])
    return f"{len(layers)} ({shown}{', ...' if len(layers) > 6 else ''})"


def _before(trace: LoadTrace, topology: Topology, current: Placement | None) -> Placement | None:
    if current is None:
        return id_order(trace, topology)
    lost = any(v.code == "missing_expert" for v in violations(current, topology, trace.experts))
    return None if lost else current


def _held_out(
    planned: Callable[[LoadTrace], Result], trace: LoadTrace, topology: Topology, current: Placement | None
) -> _HeldOut:
    if trace.slices < 2:
        raise FileError("--holdout needs at least 2 slices: use a longer trace or smaller slices")
    seen, unseen = LoadTrace(trace.tokens[::2]), LoadTrace(trace.tokens[1::2])
    after = evaluate(_timed(planned, seen).placement, unseen, topology).mean_ratio
    old = _before(trace, topology, current)
    before = float("nan") if old is None else evaluate(old, unseen, topology).mean_ratio
    return _HeldOut(seen.slices, unseen.slices, before, after)


def _neutral(file: TraceFile, topology: Topology, placement: Placement) -> NeutralMap:
    return NeutralMap(
        ranks=topology.ranks,
        nodes=topology.nodes,
        slots_per_rank=topology.slots // topology.ranks,
        experts=file.trace.experts,
        model_layer=file.layers.model_layer,
        placement=placement,
        hidden_layers=file.layers.hidden_layers,
    )


def _number(value: float | None) -> float | None:
    return None if value is None or isnan(value) else round(value, 6)


def _place_report(
    file: TraceFile,
    topology: Topology,
    current: Placement | None,
    result: Result,
    held_out: _HeldOut | None,
) -> dict[str, Any]:
    old = _before(file.trace, topology, current)
    before = None if old is None else evaluate(old, file.trace, topology).mean_ratio
    chosen = next(point for point in result.frontier if point.moves == result.moves)
    return {
        **_inputs(file, topology),
        "before_map": "id order" if current is None else "current",
        "ratio_before": _number(before),
        "ratio_after": _number(result.objective),
        "bound": _number(result.bound),
        "bound_reason": {"code": result.bound_reason.code, "sentence": result.bound_reason.sentence},
        "held_out": None if held_out is None else _held_out_report(held_out),
        "moves": result.moves,
        "slots": topology.slots * file.trace.layers,
        "bytes": chosen.bytes,
        "reasons": [{"code": reason.code, "sentence": reason.sentence} for reason in result.reasons],
        "frontier": [
            {"moves": p.moves, "bytes": p.bytes, "ratio": _number(p.objective)} for p in result.frontier
        ],
    }


def _inputs(file: TraceFile, topology: Topology) -> dict[str, Any]:
    return {
        "trace": {
            "slices": file.trace.slices,
            "layers": file.trace.layers,
            "experts": file.trace.experts,
            "slices_from": file.slices_from,
        },
        "pool": {
            "ranks": topology.ranks,
            "nodes": topology.nodes,
            "slots_per_rank": topology.slots // topology.ranks,
            "redundant_slots": topology.slots - file.trace.experts,
        },
    }


def _held_out_report(held_out: _HeldOut) -> dict[str, Any]:
    return {
        "slices_planned": held_out.planned,
        "slices_scored": held_out.scored,
        "ratio_before": _number(held_out.before),
        "ratio_after": _number(held_out.after),
    }


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"


def _place_text(report: dict[str, Any]) -> str:
    trace, pool, held = report["trace"], report["pool"], report["held_out"]
    lines = [
        (
            f"trace      {trace['layers']} layers x {trace['experts']} experts, "
            f"{trace['slices']} slices ({trace['slices_from']})"
        ),
        (
            f"pool       {pool['ranks']} ranks on {pool['nodes']} nodes x {pool['slots_per_rank']} slots, "
            f"{pool['redundant_slots']} redundant"
        ),
        (
            f"ratio      {_ratio(report['ratio_before'])} before ({report['before_map']}), "
            f"{_ratio(report['ratio_after'])} after  (hottest rank / mean; 1.0 = even)"
        ),
        f"bound      {_ratio(report['bound'])}  {report['bound_reason']['code']}: {report['bound_reason']['sentence']}",
    ]
    if held is not None:
        lines.append(
            f"held out   {_ratio(held['ratio_before'])} before, {_ratio(held['ratio_after'])} after  "
            f"(planned on {held['slices_planned']} slices, scored on {held['slices_scored']} others)"
        )
    price = "bytes unknown" if report["bytes"] is None else f"{report['bytes']:,} bytes"
    of_what = "cold start, no live map to keep" if report["before_map"] == "id order" else price
    lines.append(f"moves      {report['moves']} of {report['slots']} slots ({of_what})")
    lines.extend(f"note       {reason['code']}: {reason['sentence']}" for reason in report["reasons"])
    written = report["written"]
    lines.append(
        f"wrote      {written}"
        if written
        else "wrote      nothing: no move is worth making, the current map stays"
    )
    return "\n".join(lines)


def _eval_report(neutral: NeutralMap, file: TraceFile, dispatch: str) -> dict[str, Any]:
    topology = neutral.topology()
    score = evaluate(neutral.placement, file.trace, topology, dispatch=dispatch)
    known = score.ratio[~np.isnan(score.ratio)]
    mean = score.mean_ratio
    numbers = file.layers.model_layer or neutral.model_layer or (None,) * file.trace.layers
    layers = enumerate(zip(numbers, score.layer_ratio().tolist(), strict=True))
    return {
        "slices": file.trace.slices,
        "slices_from": file.slices_from,
        "dispatch": dispatch,
        "ratio_mean": _number(mean),
        "ratio_p95": _number(float(np.quantile(known, 0.95))) if known.size else None,
        "ratio_worst": _number(float(known.max())) if known.size else None,
        "excess": None if isnan(mean) else _number(mean - 1),
        "waste_share": None if isnan(mean) else _number(1 - 1 / mean),
        "layers": [
            {"row": row, "model_layer": layer, "ratio": _number(ratio)} for row, (layer, ratio) in layers
        ],
        "violations": [
            {"code": v.code, "sentence": v.sentence}
            for v in violations(neutral.placement, topology, neutral.experts)
        ],
    }


def _eval_text(report: dict[str, Any]) -> str:
    lines = [
        f"slices     {report['slices']} ({report['slices_from']}), dispatch {report['dispatch']}",
        (
            f"ratio      mean {_ratio(report['ratio_mean'])}, p95 {_ratio(report['ratio_p95'])}, "
            f"worst {_ratio(report['ratio_worst'])}  (hottest rank / mean; 1.0 = even)"
        ),
    ]
    if report["waste_share"] is not None:
        lines.append(f"waste      {report['waste_share']:.1%} of the time of these layers is spent waiting")
    loaded = [layer for layer in report["layers"] if layer["ratio"] is not None]
    worst = sorted(loaded, key=lambda layer: -layer["ratio"])[:WORST_LAYERS]
    key = "row" if any(layer["model_layer"] is None for layer in worst) else "model_layer"
    shown = ", ".join(f"{layer[key]} ({layer['ratio']:.3f})" for layer in worst)
    what = "rows" if key == "row" else "model layers"
    lines.append(f"hottest    {what} {shown}" if worst else "hottest    no layer has load")
    lines.extend(f"violation  {found['code']}: {found['sentence']}" for found in report["violations"])
    return "\n".join(lines)
