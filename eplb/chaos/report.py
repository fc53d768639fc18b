"""What a run came to, as a table, as JSON, and as one last line; and whether it passed."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eplb.chaos.faults import FRAME_KINDS, KILL_LEADER, KINDS
from eplb.chaos.judge_steps import COUNTS
from eplb.chaos.schedule import shares_alone
from eplb.chaos.watch import PROTOCOL_STATES, SHARES_STATES

if TYPE_CHECKING:
    from eplb.chaos.driver import Options, Outcome
    from eplb.chaos.injector import KindRecord
    from eplb.chaos.schedule import Scale


def missed(options: Options, outcome: Outcome) -> list[str]:
    """The minimums that the run did not reach, and what did not recover."""
    scale, records, tally = options.scale, outcome.injector.records, outcome.tally
    found = [
        f"{kind}: {records[kind].healed} of {count}"
        for kind, count in scale.least.items()
        if kind in records and records[kind].healed < count
    ]
    if KILL_LEADER in records:
        kills = records[KILL_LEADER].details
        found += [
            f"leader killed in {state}: {kills[state]} of {least}"
            for state, least in _kills(scale).items()
            if kills[state] < least
        ]
    whole = options.kinds == frozenset(KINDS)
    for name, reached, least in (
        ("faults", outcome.injector.counted, scale.faults if whole else 0),
        ("waves committed", tally.waves, scale.waves),
        ("waves of shares alone", tally.shares_only, scale.shares_only),
        ("waves refused or aborted", tally.refused + tally.aborted, scale.refused if whole else 0),
    ):
        if reached < least:
            found.append(f"{name}: {reached} of {least}")
    return [*found, *outcome.injector.unrecovered]


def _kills(scale: Scale) -> dict[str, int]:
    """How often the leader must have been killed in each state."""
    least = dict.fromkeys(PROTOCOL_STATES, scale.kills)
    return least | {shares_alone(state): scale.shares_kills for state in SHARES_STATES if scale.shares_kills}


def last_line(outcome: Outcome) -> str:
    """The one line that says it all; faults of frames are not among its faults."""
    kinds = sum(record.injected > 0 for record in outcome.injector.records.values())
    counts = ", ".join(f"{word} {outcome.tally.counts.get(word, 0)}" for word in COUNTS)
    return f"faults {outcome.injector.counted}, kinds {kinds}, waves {outcome.tally.waves}, {counts}"


def _kind_line(kind: str, record: KindRecord) -> str:
    rest, wave = _span("at rest", record.rest_s), _span("next wave", record.wave_s)
    codes = ", ".join(f"{code} {count}" for code, count in record.codes.most_common(5)) or "nothing unusual"
    return f"{kind:<15} injected {record.injected:3d}  healed {record.healed:3d}  {rest}  {wave}  led to: {codes}"


def _span(what: str, seconds: list[float]) -> str:
    if not seconds:
        return f"{what}: none"
    return f"{what} after {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"


def text(options: Options, outcome: Outcome) -> str:
    """The report for a reader: a line a kind, then the results."""
    tally, records = outcome.tally, outcome.injector.records
    order = [kind for kind in KINDS if kind in records]
    lines = [_kind_line(kind, records[kind]) for kind in order]
    if KILL_LEADER in records:
        kills = records[KILL_LEADER].details
        states = _kills(options.scale)
        lines.append("leader killed in: " + ", ".join(f"{state} {kills[state]}" for state in states))
    frames = sum(records[kind].injected for kind in FRAME_KINDS if kind in records)
    lines += [
        f"waves committed {tally.waves}, {tally.shares_only} of them of shares alone ({tally.shares_faulted} under a fault), refused {tally.refused}, aborted {tally.aborted}; {tally.offers} offers under {tally.terms} terms",
        f"steps {tally.steps}, tokens {tally.tokens}, outputs compared {tally.outputs}, worst error {tally.worst_error:.1e}",
        f"lives of the group {outcome.lives}, steps served again {outcome.replayed}, longest time without a step {tally.longest_gap_s:.1f} s",
        f"longest plan {tally.longest_plan_s:.1f} s; {outcome.seconds:.0f} s in all, faults of frames {frames}",
    ]
    lines += [f"MISSED {line}" for line in missed(options, outcome)]
    return "\n".join([*lines, last_line(outcome)])


def as_dict(options: Options, outcome: Outcome) -> dict[str, Any]:
    """The same for a program."""
    return {
        "seed": options.seed,
        "without": options.without,
        "dispatch": options.dispatch,
        "faults": outcome.injector.counted,
        "kinds": {
            kind: {
                "injected": record.injected,
                "healed": record.healed,
                "rest_s": [round(seconds, 2) for seconds in record.rest_s],
                "wave_s": [round(seconds, 2) for seconds in record.wave_s],
                "details": dict(record.details),
                "led_to": dict(record.codes),
            }
            for kind, record in outcome.injector.records.items()
        },
        "tally": asdict(outcome.tally),
        "findings": [asdict(finding) for finding in outcome.findings],
        "missed": missed(options, outcome),
        "lives": outcome.lives,
        "form_s": [round(seconds, 2) for seconds in outcome.form_s],
        "replayed": outcome.replayed,
        "seconds": round(outcome.seconds, 1),
        "line": last_line(outcome),
    }
