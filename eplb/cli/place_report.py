"""What ``eplb place`` found: the facts as JSON, and the same as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eplb.cli.map_files import written_lines
from eplb.cli.printing import note_lines, notes_report, number, shown
from eplb.offline.redundancy import TOLERANCE
from eplb.report.words import some

if TYPE_CHECKING:
    from eplb.formats.facts import TraceFile
    from eplb.offline.plan import Ask, FanOut, Plan, Ratios
    from eplb.offline.redundancy import Choice
    from placement import Topology


def place_report(file: TraceFile, ask: Ask, found: Plan, choice: Choice | None) -> dict[str, Any]:
    """The facts, without what was written."""
    result = found.result
    chosen = next(point for point in result.frontier if point.moves == result.moves)
    return {
        **inputs(file, ask.topology),
        "dispatch": ask.engine.dispatch,
        "redundancy": None if choice is None else _redundancy(choice),
        "before_map": "id order" if ask.current is None else "current",
        "in_sample": _ratios(found.in_sample),
        "held_out": None if found.held_out is None else _ratios(found.held_out),
        "bound": number(result.bound),
        "bound_reason": {"code": result.bound_reason.code, "sentence": result.bound_reason.sentence},
        "objective": number(result.objective),
        "policy": result.policy,
        "moves": result.moves,
        "slots": ask.topology.slots * file.trace.layers,
        "bytes": chosen.bytes,
        "seconds": round(found.seconds, 2),
        "fan_out": None if found.fan_out is None else fan_out_report(found.fan_out),
        "reasons": [{"code": reason.code, "sentence": reason.sentence} for reason in result.reasons],
        "notes": notes_report(file.notes),
        "frontier": [
            {"moves": p.moves, "bytes": p.bytes, "objective": number(p.objective)} for p in result.frontier
        ],
    }


def inputs(file: TraceFile, topology: Topology) -> dict[str, Any]:
    """The trace and the pool."""
    return {
        "trace": {
            "format": file.format,
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


def _redundancy(choice: Choice) -> dict[str, Any]:
    return {
        "held_out": choice.held_out,
        "tolerance": TOLERANCE,
        "chosen": choice.chosen.slots_per_rank,
        "tries": [
            {"slots_per_rank": each.slots_per_rank, "redundant": each.redundant, "ratio": number(each.ratio)}
            for each in choice.tries
        ],
    }


def _ratios(found: Ratios) -> dict[str, Any]:
    return {
        "slices_planned": found.planned,
        "slices_scored": found.slices,
        "ratio_before": number(found.before),
        "ratio_after": number(found.after),
        "ratio_floor": number(found.floor),
    }


def fan_out_report(found: FanOut) -> dict[str, Any]:
    """Fan-out as JSON."""
    return {
        "bins": found.bins,
        "requests": found.requests,
        "before": number(found.before),
        "after": number(found.after),
        "random": number(found.random),
    }


def place_text(report: dict[str, Any]) -> str:
    """The report as a table."""
    trace, pool = report["trace"], report["pool"]
    lines = [
        (
            f"trace      {trace['layers']} layers x {trace['experts']} experts, "
            f"{trace['slices']} slices ({trace['slices_from']})"
        ),
        (
            f"pool       {some(pool['ranks'], 'rank')} on {some(pool['nodes'], 'node')} x {some(pool['slots_per_rank'], 'slot')}, "
            f"{pool['redundant_slots']} redundant in a layer; tokens choose copies by the rule {report['dispatch']}"
        ),
        *_redundancy_lines(report["redundancy"]),
        *_table(report),
        f"bound      {shown(report['bound'])}  no map is below this: {report['bound_reason']['sentence']}",
        *fan_out_lines(report["fan_out"]),
        f"moves      {report['moves']} of {report['slots']} slots ({_price(report)})",
        f"seconds    {report['seconds']:.1f} for the plan and the forecast",
        *(f"reason     {reason['code']}: {reason['sentence']}" for reason in report["reasons"]),
        *note_lines(report["notes"]),
    ]
    if report["written"] is None:
        lines.append("wrote      nothing: no move is worth making, the current map stays")
    else:
        lines.extend(written_lines(report["written"]))
    return "\n".join(lines)


def _table(report: dict[str, Any]) -> list[str]:
    """Ratios before and after, on slices that the plan saw and on others."""
    held, whole = report["held_out"], report["in_sample"]
    before = report["before_map"]
    lines = [
        "ratio      hottest rank / mean rank, mean over slices and layers; 1.0 = even, and what is above is time spent waiting",
        f"           {'slices':<12}{'before':>10}{'after':>10}{'noise':>10}",
    ]
    if held is not None:
        lines.append(
            f"{_row('held out', held)}   forecast: planned on {held['slices_planned']} slices, scored on "
            f"{some(held['slices_scored'], 'other')}"
        )
    lines.append(
        f"{_row('in sample', whole)}   planned and scored on all {whole['slices_scored']} slices, as the map that is offered: "
        "too good to expect"
    )
    if held is None:
        lines.append("           nothing was held out: how the map does on other load is not known")
    live = "the map of --current" if before == "current" else "experts in the order of their ids"
    lines.append(
        f"           before = {live}; noise = what sampling alone shows when nothing is left to balance"
    )
    return lines


def _row(name: str, ratios: dict[str, Any]) -> str:
    cells = "".join(f"{shown(ratios[key]):>10}" for key in ("ratio_before", "ratio_after", "ratio_floor"))
    return f"           {name:<12}{cells}"


def _redundancy_lines(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    scored = "held out" if found["held_out"] else "in sample"
    lines = [f"slots      {'a rank':>9}{'redundant':>12}{'ratio':>10}   ({scored}, planned quickly)"]
    for each in found["tries"]:
        taken = ""
        if each["slots_per_rank"] == found["chosen"]:
            taken = f"   taken: the fewest within {found['tolerance']} of the best"
        lines.append(
            f"           {each['slots_per_rank']:>9}{each['redundant']:>12}{shown(each['ratio']):>10}{taken}"
        )
    return lines


def fan_out_lines(found: dict[str, Any] | None, words: tuple[str, str] = ("before", "after")) -> list[str]:
    """Fan-out as text; ``words``: what the two maps are."""
    if found is None:
        return []
    return [
        (
            f"fan-out    {shown(found['before'])} {found['bins']} a token {words[0]}, {shown(found['after'])} {words[1]}, "
            f"{shown(found['random'])} at random  (on {found['requests']} requests whose routes no plan sees)"
        )
    ]


def _price(report: dict[str, Any]) -> str:
    if report["before_map"] == "id order":
        return "cold start, no live map to keep"
    return (
        "bytes unknown without --bytes-per-expert"
        if report["bytes"] is None
        else f"{report['bytes']:,} bytes"
    )
