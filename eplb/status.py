"""What the store knows about a pool, as plain data and as text for a person."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from eplb.ranks import LiveRanks
from eplb.store.control import is_paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectors.facts import PoolFacts
    from eplb.store.client import Store


def read_status(store: Store, facts: PoolFacts) -> dict[str, Any]:
    """Desired, live, control and the last decision of a pool."""
    ranks = LiveRanks.read(store.read_live(), facts)
    desired = store.read_desired()
    last = store.read_log(1)
    states: dict[str, int] = {}
    for record in ranks.records.values():
        states[record.state] = states.get(record.state, 0) + 1
    return {
        "pool": store.pool,
        "term": int(desired.get("term", b"0")),
        "paused": is_paused(store),
        "ranks_reporting": len(ranks.records),
        "rank_states": states,
        "map_version": ranks.map_version,
        "live_digest": f"{ranks.live_digest:016x}" if ranks.live_digest else None,
        "live_maps_agree": ranks.agree,
        "problem": ranks.mismatch or next(iter(ranks.damaged.values()), ""),
        "decision": json.loads(last[0]) if last else None,
    }


def status_text(facts: dict[str, Any]) -> str:
    """The same for a reader at a terminal."""
    states = ", ".join(f"{count} {name}" for name, count in sorted(facts["rank_states"].items())) or "none"
    agree = "all the same map" if facts["live_maps_agree"] else "NOT all the same map"
    lines = [
        f"pool {facts['pool']}   term {facts['term']}   {'PAUSED' if facts['paused'] else 'not paused'}",
        f"ranks reporting {facts['ranks_reporting']} ({states}), {agree}",
        f"map_version {facts['map_version']}   live digest {facts['live_digest'] or 'unknown'}",
        *([f"PROBLEM: {facts['problem']}"] if facts["problem"] else []),
        decision_line(facts["decision"]) if facts["decision"] else "no decision yet: is `eplb run` running?",
    ]
    return "\n".join(lines)


def decision_lines(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Decisions in the order of the log, one line each.

    Any daemon may add to the log, so a leader that was replaced can still write what it had not sent: its lines are marked.
    """
    newest = 0
    for record in records:
        late = record["term"] < newest
        newest = max(newest, record["term"])
        yield decision_line(record) + (" [sent late by a former leader]" if late else "")


def decision_line(record: dict[str, Any]) -> str:
    """One decision in one line: when, in which state, the code and why."""
    excess = record.get("excess")
    shown = "" if excess is None else f" excess {excess:.3f},"
    change = f" [would change: {record['would_change']}]" if record.get("would_change") else ""
    return (
        f"cycle {record['cycle']:>5} term {record['term']} {record['state']:<9} map {record['map_version']}{shown} "
        f"{record['code']}: {record['sentence']}{change}"
    )
