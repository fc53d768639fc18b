"""What a run came to: the numbers as plain data, and a summary for a reader who knows none of this."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eplb.demo.errors import LimitsMissed
from eplb.demo.setup import EASED_PAUSE_S

PLACED_EXCESS_MAX, SHIFTED_EXCESS_MIN, REPLACED_EXCESS_MAX = 0.35, 1.8, 0.6
"""Limits of the excesses: placed <= .35 x start; shifted >= 1.8 x placed; replaced <= .6 x shifted."""


@dataclass(frozen=True, slots=True)
class Report:
    """The readings are means over steps and layers of max/mean tokens received per rank, by the runtime's counters at the destination.

    ``finished`` all four readings were taken. ``fault`` word of a fault that was found, "" = none. ``steps_read`` steps of the readings.
    ``kept`` readings of a map that the daemon kept because nothing was worth moving.
    ``waves`` switches of the group. ``tokens_sent``, ``tokens_combined``: (token, expert) contributions dispatched, and added back.
    ``outputs_checked`` hidden states of a token after a layer, each compared with the reference. Times in milliseconds; ``step_ms_*``
    and ``gate_ms_worst`` the slowest rank's, a step's time with the gate before it; the parts are means over ranks. ``startup_s`` until the
    first step. ``limits_binding`` the limits are a promise for this setting, so that missing one is an error.
    ``last_decision_before_pause`` the daemon's last decision that is not ``paused``, which is what the demo itself asks of it; "" = none.
    """

    trace: str
    domains: tuple[str, str]
    layers: tuple[int, ...]
    batch: int
    ranks: int
    nodes: int
    slots_per_rank: int
    experts: int
    top_k: int
    dispatch: str
    store: str
    seed: int
    finished: bool
    limits_binding: bool
    fault: str
    ratio_start: float | None
    ratio_placed: float | None
    ratio_shifted: float | None
    ratio_replaced: float | None
    steps_read: dict[str, int]
    kept: tuple[str, ...]
    map_version: int
    waves: int
    moves: int
    moved_bytes: int
    steps: int
    tokens: int
    tokens_sent: int
    tokens_combined: int
    outputs_checked: int
    output_mismatches: int
    worst_output_error: float
    step_ms_median: float | None
    step_ms_worst: float | None
    gate_ms_worst: float | None
    dispatch_ms_median: float | None
    expert_ms_median: float | None
    combine_ms_median: float | None
    wait_ms_median: float | None
    startup_s: float
    seconds: float
    last_decision_before_pause: str
    rank_notes: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``, the limits' verdicts included."""
        return {**asdict(self), "limits": limits(self)}


def limits(report: Report) -> dict[str, bool] | None:
    """Whether each limit on the readings is met; None when a reading is missing."""
    ratios = (report.ratio_start, report.ratio_placed, report.ratio_shifted, report.ratio_replaced)
    if any(ratio is None for ratio in ratios):
        return None
    start, placed, shifted, replaced = (float(ratio or 0) - 1 for ratio in ratios)
    return {
        "placed_at_most_0.35_start": placed <= PLACED_EXCESS_MAX * start,
        "shifted_at_least_1.8_placed": shifted >= SHIFTED_EXCESS_MIN * placed,
        "replaced_at_most_0.6_shifted": replaced <= REPLACED_EXCESS_MAX * shifted,
    }


def missed(report: Report) -> list[str]:
    """The limits that were not met, in words."""
    return [name.replace("_", " ") for name, met in (limits(report) or {}).items() if not met]


def judge(report: Report) -> None:
    """Hold a finished run to the limits where they are binding.

    Raises:
        LimitsMissed: names the limits that were not met, with the excesses.
    """
    if not report.limits_binding or not missed(report):
        return
    ratios = (report.ratio_start, report.ratio_placed, report.ratio_shifted, report.ratio_replaced)
    excesses = ", ".join(
        f"{name} {float(ratio or 0) - 1:.1%}"
        for name, ratio in zip(("start", "placed", "shifted", "replaced"), ratios, strict=True)
    )
    raise LimitsMissed(
        f"every output was right, but the excess is not {', '.join(missed(report))}: {excesses}"
    )


def summary(report: Report) -> str:
    """The run in words: what happened, the readings, what moved, what was checked, how long a step took."""
    parts = [
        _fault(report),
        _what(report),
        _readings(report),
        _moves(report),
        _checks(report),
        _times(report),
    ]
    return "\n\n".join(part for part in parts if part)


def _fault(report: Report) -> str:
    if report.fault:
        return f"A FAULT WAS FOUND ({report.fault}) and the run was stopped after {report.steps} steps."
    return (
        ""
        if report.finished
        else f"The run ended early, after {report.steps} steps; this is what it reached."
    )


def _what(report: Report) -> str:
    first, second = report.domains
    return (
        f"{report.ranks} rank processes on {report.nodes} node(s) served {report.tokens:,} tokens of {report.batch} requests in flight "
        f"through {len(report.layers)} MoE layers\n({report.experts} experts, top-{report.top_k}, {report.slots_per_rank} slots a rank; "
        f"picks from {report.trace}, dispatch {report.dispatch}, store {report.store}, seed {report.seed}).\n"
        f"Requests come from {first} and, after the change of domain, from {second}. The daemon watches the ranks' counters and moves\n"
        "experts by itself. The demo lets it act only after the first reading and again after the third, until a new map is live or it\n"
        "finds nothing worth moving; otherwise it is paused, so that every reading belongs to one map."
    )


def _reading(words: str, name: str, ratio: float | None, report: Report) -> str:
    if ratio is None:
        return f"  {words:<52} not reached"
    kept = ", the daemon found nothing worth moving" if name in report.kept else ""
    return f"  {words:<52} {ratio:5.3f}   {ratio - 1:6.1%}   ({report.steps_read.get(name, 0)} steps{kept})"


def _readings(report: Report) -> str:
    first, second = report.domains
    rows = [
        (
            "Imbalance ratio: load of the busiest rank / mean load, mean over steps and layers. 1.000 is perfect; what is above\n"
            "is time that the other ranks wait in every MoE layer."
        ),
        f"  {'':<52} ratio   excess",
        _reading(f"start map, {first}", "start", report.ratio_start, report),
        _reading("after the daemon's first placement", "placed", report.ratio_placed, report),
        _reading(f"same placement, now {second}", "shifted", report.ratio_shifted, report),
        _reading("after the daemon's second placement", "replaced", report.ratio_replaced, report),
    ]
    if limits(report) is not None:
        failed = missed(report)
        rows.append(
            f"  expected of the excess: {'all limits met' if not failed else 'NOT met: ' + ', '.join(failed)}"
        )
    return "\n".join(rows)


def _moves(report: Report) -> str:
    kept = (
        ""
        if report.fault or not report.waves
        else f"\nIn each of {report.steps:,} steps, those of the switches included, every request in flight was served its next token."
    )
    return (
        f"Moved: {report.moves} expert copies, {report.moved_bytes / 1e6:.2f} MB, in {report.waves} wave(s) that all ranks switched together; "
        f"map version {report.map_version}.{kept}"
    )


def _checks(report: Report) -> str:
    same = report.tokens_sent == report.tokens_combined
    equal, meaning = ("=", "no token lost an expert") if same else ("IS NOT", "a token lost an expert")
    return (
        f"Checked: contributions sent {report.tokens_sent:,} {equal} combined {report.tokens_combined:,}: {meaning}.\n"
        f"Outputs compared with a single-process model without placement: {report.outputs_checked:,}, wrong: "
        f"{report.output_mismatches:,} (largest error {report.worst_output_error:.1e})."
    )


def _times(report: Report) -> str:
    if report.step_ms_median is None:
        return ""
    return (
        f"Step time: median {report.step_ms_median:.1f} ms, worst {report.step_ms_worst:.1f} ms, both with the gate before the step (vote, "
        f"slots written and read back: worst {report.gate_ms_worst:.1f} ms).\nOf the median dispatch "
        f"{report.dispatch_ms_median:.1f} ms, expert compute {report.expert_ms_median:.1f} ms, combine {report.combine_ms_median:.1f} ms "
        f"(waiting in it {report.wait_ms_median:.1f} ms).\nTimes are those of all ranks sharing this machine's cores, not of GPUs.\nWhile the solver worked, "
        f"the demo paused {EASED_PAUSE_S} s before each step to leave it a core; these pauses are left out.\n"
        f"First step after {report.startup_s:.1f} s, {report.seconds:.0f} s in all."
    )
