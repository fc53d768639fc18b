"""``eplb place``: compute a map from a routing trace, and say what it will do on load that it has not seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from eplb.cli import exits
from eplb.cli.map_files import read_beside, write_map, written_report
from eplb.cli.numbers import Finite
from eplb.cli.place_report import place_report, place_text
from eplb.cli.progress import say
from eplb.cli.targets import check_writable
from eplb.cli.trace_options import (
    FILE,
    PATH,
    RANKS,
    current_options,
    for_ranks,
    holdout_option,
    load,
    top_k_of,
    trace_options,
)
from eplb.errors import FileError
from eplb.formats.facts import MapFacts
from eplb.formats.neutral import NeutralMap
from eplb.formats.registry import abilities, check_map, read_map
from eplb.offline.engines import NAMES, engine_of, usual_dispatch
from eplb.offline.holdout import HOLDOUT, check_fraction, kinds_of, seen_kinds, split
from eplb.offline.plan import Ask, plan
from eplb.offline.redundancy import choose, resized, slots_for
from eplb.skew import id_order
from placement import Limits, Topology, least_redundancy
from placement.models import EFFORTS
from placement.node_search import MOST_WEIGHT
from placement.policy import resolve
from placement.topology import POLICIES
from placement.traffic import DISPATCHERS

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.formats.facts import TraceFile
    from eplb.offline.redundancy import Choice
    from placement import Placement

AUTO = "auto"


class _Redundant(click.ParamType[str]):
    """``auto``, or a whole number."""

    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text != AUTO and not (text.isascii() and text.isdecimal() and len(text) < 8):
            self.fail(f"{text!r} is neither auto nor a number of slots", param, ctx)
        return text


@click.command()
@click.argument("trace", type=PATH)
@trace_options
@click.option("--ranks", type=RANKS, required=True, help="Ranks of the expert-parallel group.")
@click.option("--nodes", type=RANKS, help="Nodes that they stand on.  [default: those of --current, else 1]")
@click.option("--slots-per-rank", type=RANKS, help="Expert slots of a rank in one layer.")
@click.option(
    "--redundant",
    type=_Redundant(),
    help="In place of --slots-per-rank: slots of a layer beyond one for every expert; auto = the fewest that come close to the best.",
)
@click.option(
    "--groups", type=click.IntRange(min=1), help="Router groups of the model, to be kept on one node each."
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=AUTO,
    show_default=True,
    help="Whether groups must be kept whole (hierarchical), need not be (global), or are where they can (auto).",
)
@current_options("Map that is live now, in any known format: the new one keeps what it can.")
@click.option("--max-moves", type=click.IntRange(min=0), help="Most slots to change, over all layers.")
@click.option(
    "--bytes-per-expert",
    type=click.IntRange(min=1),
    help="Bytes of one expert of one layer, to price the moves.",
)
@click.option(
    "--dispatch",
    type=click.Choice(NAMES),
    help="Engine, or rule, that says which copy of an expert a token takes.  [default: the engine of --format, else even]",
)
@click.option(
    "--traffic",
    type=Finite(0, MOST_WEIGHT),
    default=0.0,
    show_default=True,
    help="Weight of tokens that touch few nodes beside balance; needs a trace of picks. 0.1 to 0.25 keeps balance first.",
)
@click.option(
    "--dispatcher",
    type=click.Choice(DISPATCHERS),
    help="What the engine sends over the links.  [default: the engine's]",
)
@click.option("--effort", type=click.Choice(EFFORTS), default="normal", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@holdout_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--format",
    "form",
    type=click.Choice(abilities("write_map")),
    default="neutral",
    show_default=True,
    help="Format of the map file.",
)
@click.option("-o", "--output", type=FILE, required=True, help="Map file to write.")
def place(trace: Path, output: Path, **options: Any) -> int:
    """Compute a placement from TRACE (a file or folder in any known format) and write it as a map file.

    The map is planned on all slices. What to expect of it is measured first: a plan on a part of the slices, scored on the others.
    With --current the map is written only when it moves something; otherwise the exit code is 3.
    """
    _check_usage(options)
    current = options["current"]
    check_writable(output, (trace, current))
    current_facts = MapFacts(ranks=options["ranks"], nodes=options["nodes"])
    first = None if current is None else read_map(current, current_facts, options["current_from"])
    nodes = options["nodes"] or (1 if first is None else first.nodes)
    options |= {"nodes": nodes}
    file = load(trace, options, experts=None if first is None else first.experts, nodes=nodes)
    here, notes = for_ranks(file.trace, options["ranks"])
    file = replace(file, trace=here, notes=(*file.notes, *notes))
    live = None if current is None else read_beside(current, file, current_facts, options["current_from"])
    ask = _ask(options, file, live)
    check_map(output, _neutral(file, ask.topology, id_order(file.trace, ask.topology)), options["form"])
    ask, choice = _sized(options, file, ask)
    found = plan(file.trace, kinds_of(file), ask)
    idle = live is not None and found.result.moves == 0
    report = place_report(file, ask, found, choice)
    report["written"] = None
    if not idle:
        neutral = _neutral(file, ask.topology, found.result.placement)
        report["written"] = written_report(write_map(output, neutral, options["form"]), options["form"])
    click.echo(json.dumps(report, indent=2) if options["as_json"] else place_text(report))
    return exits.NOTHING_TO_DO if idle else exits.OK


def _check_usage(options: dict[str, Any]) -> None:
    if options["max_moves"] is not None and options["current"] is None:
        raise click.UsageError("--max-moves limits what changes of a live map; give it with --current")
    given = [name for name in ("slots_per_rank", "redundant") if options[name] is not None]
    if len(given) == 2:
        raise click.UsageError("--slots-per-rank and --redundant say the same; give one of them")
    if not given and options["current"] is None:
        raise click.UsageError("give --slots-per-rank, or --redundant auto to try what pays")
    if options["redundant"] == AUTO and options["current"] is not None:
        raise click.UsageError(
            "--redundant auto chooses slots for a new pool; a live map (--current) has its own"
        )
    if options["policy"] == "hierarchical" and options["groups"] is None:
        raise click.UsageError(
            "--policy hierarchical keeps router groups whole; give their number with --groups"
        )


def _ask(options: dict[str, Any], file: TraceFile, live: NeutralMap | None) -> Ask:
    """What is asked for, with the fewest slots where they are still to be chosen."""
    if options["traffic"] and file.trace.routes is None:
        raise FileError(
            "--traffic needs the picks of tokens, and the trace holds counts: record picks, or leave --traffic away"
        )
    if options["holdout"] is not None:
        check_fraction(options["holdout"], file.trace.slices)
    topology = Topology.uniform(
        ranks=options["ranks"],
        nodes=options["nodes"],
        slots_per_rank=_slots(options, file.trace.experts, live),
        expert_groups=options["groups"] or 0,
        policy=options["policy"],
    )
    if options["redundant"] != AUTO:
        resolve(topology, file.trace.experts)
        topology.check_holds(file.trace.experts)
    if live is not None and live.placement.slots != topology.slots:
        raise FileError(
            f"{options['current']}: the map has {live.slots_per_rank} slots a rank, asked for "
            f"{topology.slots // topology.ranks}: leave --slots-per-rank and --redundant away"
        )
    engine = engine_of(options["dispatch"] or usual_dispatch(options["form"]))
    return Ask(
        topology=topology,
        engine=replace(engine, dispatcher=options["dispatcher"] or engine.dispatcher),
        limits=Limits(moves=options["max_moves"], bytes_per_expert=options["bytes_per_expert"]),
        current=None if live is None else live.placement,
        traffic=options["traffic"],
        effort=options["effort"],
        seed=options["seed"],
        holdout=HOLDOUT if options["holdout"] is None else options["holdout"],
        top_k=top_k_of(file, options["top_k"])[0],
        say=say,
    )


def _slots(options: dict[str, Any], experts: int, live: NeutralMap | None) -> int:
    given: int | None = options["slots_per_rank"]
    if given is not None:
        return given
    if options["redundant"] not in (None, AUTO):
        return slots_for(experts, options["ranks"], int(options["redundant"]))
    return least_redundancy(experts, options["ranks"])[1] if live is None else live.slots_per_rank


def _sized(options: dict[str, Any], file: TraceFile, ask: Ask) -> tuple[Ask, Choice | None]:
    """With ``--redundant auto``, the slots that pay, found on slices that the forecast does not use."""
    if options["redundant"] != AUTO:
        return ask, None
    kinds = kinds_of(file)
    parts = split(file.trace, kinds, ask.holdout)
    if parts is None:
        choice = choose(file.trace, kinds, ask)
    else:
        choice = choose(parts.seen, seen_kinds(kinds, ask.holdout), ask)
    return replace(ask, topology=resized(ask.topology, choice.chosen.slots_per_rank)), choice


def _neutral(file: TraceFile, topology: Topology, placement: Placement) -> NeutralMap:
    return NeutralMap(
        ranks=topology.ranks,
        nodes=topology.nodes,
        slots_per_rank=topology.slots // topology.ranks,
        experts=file.trace.experts,
        model_layer=file.layers.model_layer,
        placement=placement,
        hidden_layers=file.layers.hidden_layers,
        draft_layers=file.layers.draft_layers,
    )
