"""What the store knows about a pool, as plain data and as text for a person.

What ranks and daemons wrote is not trusted: what cannot be read is said in its place, and nothing of it reaches a terminal as a control
character.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from eplb.migration import read_desired
from eplb.ranks import LiveRanks
from eplb.store.control import is_paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LiveRecord
    from eplb.store.client import Store

MOST_LINES = 16
"""Ranks that are told of one by one; a pool of hundreds in one plight needs no hundreds of lines."""

MOST_MS = int(datetime.max.replace(tzinfo=UTC).timestamp()) * 1000
"""Store times from there on are no dates."""

UNREADABLE = "a record of the decision log cannot be read"

_CALM = frozenset({"serving", "switched"})
_DECISION: dict[str, type] = {
    "time_ms": int, "cycle": int, "term": int, "map_version": int, "state": str, "code": str, "sentence": str,
}  # fmt: skip


def read_status(store: Store, facts: PoolFacts) -> dict[str, Any]:
    """Who leads, desired, live, control and the last decision of a pool.

    Raises:
        StoreError: the store does not answer, or refuses.
    """
    ranks = LiveRanks.read(store.read_live(), facts)
    desired = read_desired(store.read_desired())
    last = store.read_log(1)
    decision = read_decision(last[0]) if last else None
    states: dict[str, int] = {}
    for record in ranks.records.values():
        states[record.state] = states.get(record.state, 0) + 1
    return {
        "pool": store.pool,
        "term": desired.term,
        "leader": store.leader(),
        "paused": is_paused(store),
        "ranks_reporting": len(ranks.records),
        "ranks_expected": facts.ranks,
        "ranks_silent": sorted(set(range(facts.ranks)) - set(ranks.records)),
        "rank_states": states,
        "ranks": {rank: _rank(record) for rank, record in sorted(ranks.records.items())},
        "on_offer": None if desired.offer is None else desired.offer.key,
        "map_version": ranks.map_version,
        "live_digest": f"{ranks.live_digest:016x}" if ranks.live_digest else None,
        "live_maps_agree": ranks.agree,
        "problems": _problems(ranks, desired.damaged, unreadable=bool(last) and decision is None),
        "decision": decision,
        "decision_age_s": None if decision is None else (store.time_ms() - decision["time_ms"]) / 1000.0,
    }


def read_decision(raw: bytes) -> dict[str, Any] | None:
    """One record of the decision log; None where it is none, because any daemon may write there."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    sound = all(type(record.get(name)) is kind for name, kind in _DECISION.items())
    return record if sound and 0 <= record["time_ms"] < MOST_MS else None


def status_text(facts: dict[str, Any]) -> str:
    """The same for a reader at a terminal."""
    states = ", ".join(f"{count} {name}" for name, count in sorted(facts["rank_states"].items())) or "none"
    agree = "all the same map" if facts["live_maps_agree"] else "NOT all the same map"
    switch = "PAUSED" if facts["paused"] else "not paused"
    leader = f"led by {facts['leader']}" if facts["leader"] else "NOBODY LEADS: is `eplb run` running?"
    digest, offer = facts["live_digest"] or "unknown", facts["on_offer"] or "nothing"
    lines = [
        f"pool {facts['pool']}   term {facts['term']}   {switch}   {leader}",
        f"ranks reporting {facts['ranks_reporting']} of {facts['ranks_expected']} ({states}), {agree}",
        *_rank_lines(facts),
        f"map_version {facts['map_version']}   live digest {digest}   on offer: {offer}",
        *(f"PROBLEM: {problem}" for problem in facts["problems"]),
        _last_decision(facts),
    ]
    return "\n".join(map(_shown, lines))


def decision_lines(raw: Iterable[bytes]) -> Iterator[str]:
    """Decisions in the order of the log, one line for those of one code in a row, which is the newest of them.

    Any daemon may add to the log, so a leader that was replaced can still write what it had not sent: its lines are marked.
    """
    newest = 0
    for alike, records in groupby(map(read_decision, raw), key=_alike):
        if alike is None:
            yield f"({UNREADABLE})"
            continue
        same = [record for record in records if record is not None]
        late, newest = same[0]["term"] < newest, max(newest, same[0]["term"])
        again = f" (x{len(same)} since {_when(same[0])})" if len(same) > 1 else ""
        yield _shown(decision_line(same[-1])) + again + (" [sent late by a former leader]" if late else "")


def _alike(record: dict[str, Any] | None) -> tuple[int, str, str] | None:
    return None if record is None else (record["term"], record["state"], record["code"])


def decision_line(record: dict[str, Any]) -> str:
    """One decision in one line: when by the store's clock, in which state, the code and why."""
    excess = record.get("excess")
    shown = f" excess {excess:.3f}," if isinstance(excess, float) else ""
    change = f" [would change: {record['would_change']}]" if record.get("would_change") else ""
    return (
        f"{_when(record)} cycle {record['cycle']:>5} term {record['term']} {record['state']:<9} map {record['map_version']}{shown} "
        f"{record['code']}: {record['sentence']}{change}"
    )


def _when(record: dict[str, Any]) -> str:
    return datetime.fromtimestamp(record["time_ms"] / 1000.0, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _rank(record: LiveRecord) -> dict[str, Any]:
    return {
        "state": record.state,
        "offer": record.offer,
        "map_version": record.map_version,
        "term_seen": record.term_seen,
        "group_step": record.group_step,
        "refusals": [list(refusal) for refusal in record.refusals],
    }


def _rank_lines(facts: dict[str, Any]) -> Iterator[str]:
    """What is worth a line: ranks that are silent, and those that do anything but serve."""
    if facts["ranks_silent"]:
        yield f"  no record of ranks {', '.join(map(str, facts['ranks_silent'][:MOST_LINES]))}"
    told = {rank: said for rank, said in facts["ranks"].items() if said["state"] not in _CALM}
    for rank, said in list(told.items())[:MOST_LINES]:
        offer = f" {said['offer']}" if said["offer"] else ""
        yield f"  rank {rank}: {said['state']}{offer}, map_version {said['map_version']}, step {said['group_step']}"
        for refusing, code, sentence in said["refusals"][:MOST_LINES]:
            yield f"    rank {refusing} refused, {code}: {sentence}"
    if len(told) > MOST_LINES:
        yield f"  and {len(told) - MOST_LINES} more ranks (--json shows all)"


def _problems(ranks: LiveRanks, damaged: tuple[str, ...], *, unreadable: bool) -> list[str]:
    desired = f"of what the daemon asked for, {', '.join(damaged)} cannot be read" if damaged else ""
    return list(filter(None, (ranks.mismatch, ranks.damage, desired, UNREADABLE if unreadable else "")))


def _last_decision(facts: dict[str, Any]) -> str:
    if facts["decision"] is None:
        return "no decision yet"
    return f"{decision_line(facts['decision'])} ({facts['decision_age_s']:.0f} s ago)"


def _shown(line: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in line)
