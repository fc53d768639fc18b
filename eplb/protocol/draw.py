"""``python -m eplb.protocol.draw > docs/protocol.md``: the protocol as a document, drawn from its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol.check.controls import TOGETHER
from eplb.protocol.facts import Profile
from eplb.protocol.guards import RANK_GUARDS
from eplb.protocol.leader import STORE_GUARDS
from eplb.protocol.rank import ROWS, Row
from eplb.protocol.wave import ACT_GUARDS, ACTS, DUE, STATES, WAITS_FOR

if TYPE_CHECKING:
    from collections.abc import Iterable

_INTRODUCTION = """\
# The migration protocol

Printed by `python -m eplb.protocol.draw` from the tables that the running agent and daemon execute; a test fails when this
page is not what the command prints. Words are those of [ARCHITECTURE.md](../ARCHITECTURE.md).

A rank and a daemon decide by looking a row up. A row names the guards that must hold; the first that does not gives the
refusal that is reported. `python -m eplb.protocol.check --controls` walks through every interleaving of ranks, daemons, store
and faults within its bounds on these same functions, then takes each guard away in turn and shows the rule that breaks
without it. `--ranks`, `--faults` and `--profile` choose the bounds; `--main` keeps to crashes, a lost store and messages: `--main
--faults 5` walks through two crashes, a lost store and two messages in one run, in under a minute; with `--ranks 3` it is
137,490,454 states, about an hour of one core and 11 GB. States that differ in nothing which can still matter count as one, and
reports and reads come just before a step to which they matter; a test holds the check with these reductions against one
without them.
"""
_PROFILES = {
    Profile.STAGED: (
        "The agent brings weights into staging while the old map is served. All ranks switch between the same two forwards, or "
        "nobody does. It can be stopped until the vote on the switch."
    ),
    Profile.DELEGATED: (
        "The engine moves and commits layers by itself once the group has agreed to the offer. It cannot be stopped from then on: each "
        "layer is read back when it is committed, and what the engine really routes by is what the rank reports. A layer that was read "
        "back otherwise than asked makes the rank `stuck` once the engine is done with the offer, and the wave `unverified`. The answer "
        "is an offer that leads back from whatever each rank serves; a stuck rank takes it only if it rewrites all its broken layers."
    ),
}


def document() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, "## A rank\n"]
    for profile, sentence in _PROFILES.items():
        parts += [f"### Profile `{profile}`\n", sentence + "\n", _diagram(profile), _rows(profile)]
    parts += ["## The wave on offer, as a daemon sees it\n", _states(), _acts(), "## Guards\n", _guards()]
    return "\n".join(parts)


def _diagram(profile: Profile) -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    for row in ROWS:
        if profile not in row.profiles:
            continue
        for state in row.states:
            if row.to not in (None, state):
                edges.setdefault((state, str(row.to)), []).append(row.event)
            if row.guards and row.otherwise not in (None, state):
                edges.setdefault((state, str(row.otherwise)), []).append(f"{row.event}, guard fails")
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> serving"]
    for (source, target), events in edges.items():
        lines.append(f"    {source} --> {target}: {', '.join(dict.fromkeys(events))}")
    return "\n".join([*lines, "```\n"])


def _rows(profile: Profile) -> str:
    rows = [row for row in ROWS if profile in row.profiles]
    return _table(
        ("in state", "event", "guards, in order", "then", "do", "if a guard fails", "do"),
        ((_names(row.states), f"`{row.event}`", _names(row.guards), *_ends(row)) for row in rows),
    )


def _ends(row: Row) -> tuple[str, str, str, str]:
    fails = "" if not row.guards else f"`{row.otherwise}`" if row.otherwise else "the same"
    then = f"`{row.to}`" if row.to else "the same"
    return then, _names(row.effects), fails, _names(row.otherwise_effects)


def _states() -> str:
    table = _table(
        ("state", "code", "when", "what is due"),
        ((f"`{row.state}`", f"`{row.code}`", row.when, f"`{DUE[row.state] or 'wait'}`") for row in STATES),
    )
    return "The first row whose condition holds gives the state; nothing is remembered.\n\n" + table


def _acts() -> str:
    return _table(
        ("act", "guards, in order", "waits for"),
        (
            (f"`{act}`", _names(guards), f"`{WAITS_FOR[act]}`" if act in WAITS_FOR else "")
            for act, guards in ACTS.items()
        ),
    )


def _guards() -> str:
    found = [("rank", guard.name, guard.hazard, guard.codes) for guard in RANK_GUARDS]
    found += [("daemon", guard.name, guard.hazard, guard.codes) for guard in ACT_GUARDS]
    found += [("store", guard.name, guard.hazard, guard.codes) for guard in STORE_GUARDS]
    table = _table(
        ("guard", "held by", "without it", "refusal"),
        ((f"`{name}`", where, hazard, _names(codes)) for where, name, hazard, codes in found),
    )
    pairs = [
        f"* `{name}` covers the same hazard as `{other}`: {why}." for name, (other, why) in TOGETHER.items()
    ]
    return (
        table
        + "\nGuards that cover one hazard together, so that it comes only when both are gone:\n\n"
        + "\n".join(pairs)
        + "\n"
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
