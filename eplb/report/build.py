"""The whole page as facts: its head, its verdict, its parts, and how it was worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.formats.suspicions import trace_suspicions
from eplb.report.drift_figures import drift_part
from eplb.report.forecast import gain_on
from eplb.report.forecast_figure import scored_words
from eplb.report.load_figures import load_part
from eplb.report.price_figures import price_part
from eplb.report.rank_figures import rank_part
from eplb.report.verdict import LEAST_GAIN, Verdict, verdict
from eplb.report.words import count, listed, percent, ratio, some

if TYPE_CHECKING:
    from eplb.formats.facts import Note
    from eplb.report.charts import Part
    from eplb.report.study import Study


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its name and what it is in few words."""

    name: str
    value: str
    words: str


@dataclass(frozen=True, slots=True)
class Page:
    """``facts``: what was looked at. ``method``: how, sentence by sentence. ``odd``: what looks wrong in the trace."""

    title: str
    facts: tuple[str, ...]
    verdict: Verdict
    tiles: tuple[Tile, ...]
    parts: tuple[Part, ...]
    words: tuple[tuple[str, str], ...]
    method: tuple[str, ...]
    odd: tuple[Note, ...]


WORDS = (
    ("Expert", "One of the many small networks of a layer. The router sends every token to a few of them."),
    (
        "Rank",
        "One GPU of the group that shares the experts. It holds some of them in its slots, in every layer.",
    ),
    ("Replica", "A further copy of an expert in another slot, so that two ranks share its tokens."),
    (
        "Map",
        "Which expert sits in which slot. A move loads an expert into a slot of a rank that did not hold it.",
    ),
    (
        "Ratio",
        "Tokens of the busiest rank over the mean rank, in one layer of one slice. All ranks wait for the busiest: 1.0 is perfect, at 1.5 the others wait a third of the time.",
    ),
    (
        "Slice",
        "A piece of the trace. Held-out slices are kept from the plan, so what it shows there is a forecast and not a fit.",
    ),
    (
        "Sampling floor",
        "The ratio that chance alone leaves on perfectly balanced ranks, if tokens are independent: the fewer tokens, the higher. Near it, nothing is left to win.",
    ),
)


def build(study: Study, name: str) -> Page:
    """Turn the numbers into a page; ``name``: what the trace is called there."""
    return Page(
        title=name,
        facts=_facts(study),
        verdict=verdict(study),
        tiles=_tiles(study),
        parts=(load_part(study), rank_part(study), price_part(study), drift_part(study)),
        words=WORDS,
        method=_method(study),
        odd=trace_suspicions(study.file, study.top_k),
    )


def _facts(study: Study) -> tuple[str, ...]:
    file, topology = study.file, study.ask.topology
    trace = file.trace
    spare = topology.slots - trace.experts
    return (
        f"{some(trace.layers, 'MoE layer')} × {some(trace.experts, 'expert')}"
        + ("" if study.top_k is None else f", {study.top_k} picked per token"),
        f"{some(topology.ranks, 'rank')} on {some(topology.nodes, 'node')}, {some(topology.slots // topology.ranks, 'slot')} each ({spare} redundant)",
        f"{some(trace.slices, 'slice')} ({file.slices_from}), {count(int(trace.tokens.sum()))} picks",
        *([f"phases: {_named(file.phase)}"] if file.phase else []),
        *([f"domains: {_named(file.domain)}"] if file.domain else []),
    )


def _named(names: tuple[str, ...]) -> str:
    return listed(list(dict.fromkeys(name or "not recorded" for name in names)), 8)


def _tiles(study: Study) -> tuple[Tile, ...]:
    gain = gain_on(study, "all", study.scored)
    where = "held-out slices" if study.held.any() else "not held out"
    fits = "fitted, not a forecast"
    if study.foreign:
        where, fits = "all slices", "a fit, if the map was planned on them"
    return (
        Tile("Ratio before", ratio(gain.before), f"map: {study.before.name}"),
        Tile("Ratio after", ratio(gain.after), f"map: {study.after.name}, {where}"),
        Tile("Sampling floor", ratio(1 + gain.floor), "what chance alone leaves"),
        Tile(
            "MoE time saved",
            percent(gain.saved),
            "if time follows the busiest rank" if study.held.any() else fits,
        ),
        Tile(
            "Moves",
            count(study.after.moves),
            f"of {count(study.ask.topology.slots * study.file.trace.layers)} slots",
        ),
    )


def _method(study: Study) -> tuple[str, ...]:
    ask, held = study.ask, int(study.held.sum())
    lines = [
        f"{some(held, 'slice')} of {len(study.held)} were held out, evenly spread within each domain and phase ({percent(ask.hold_out, 0)} asked for). "
        "Neighbouring slices are alike, so this tests chance and overfitting, not how a plan ages: see 'Will it last'."
        if held
        else _not_held_out(study),
        f"All ratios are means over {scored_words(study)} and over layers with load; every slice and layer counts equally. Replicas share their expert's tokens evenly.",
        "Ratios are predicted from the trace and the map, not measured on an engine.",
        f"The sampling floor is for independent tokens, {'one pick per token (top-k is not known)' if study.top_k is None else f'{study.top_k} picks per token'}; tokens of one request are alike, so the real floor may be higher, or lower where requests share text.",
        f"A gain counts from {LEAST_GAIN} on, and when it exceeds two standard errors over slices.",
    ]
    lines += [f"{_sentence(note.sentence)} {_sentence(note.fix)}".strip() for note in study.file.notes]
    if study.before.name == "order of ids":
        lines.append(
            "The map before is the one that engines start with: experts in the order of their ids. Give the live one with --current."
        )
    if study.result is not None:
        lines.append(
            f"The plan was solved from the map before, on the slices that were not held out, with effort {ask.effort} and seed {ask.seed}."
        )
        lines.append(
            f"No map of this pool can go below {ratio(study.result.bound)} on the slices of the plan: {study.result.bound_reason.sentence}."
        )
        lines += [_sentence(reason.sentence) for reason in study.result.reasons]
    return tuple(lines)


def _not_held_out(study: Study) -> str:
    if study.foreign:
        return (
            "Maps come from files, which do not say what they were planned on. If it was this trace, the numbers show a fit and not a forecast: "
            "give a trace that the planning did not see, or a new plan with --plan."
        )
    return "No slice was held out, so every number is in-sample: it shows a fit, not a forecast."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
