"""The alert on imbalance as a pure state machine: the condition of EplbImbalanceHigh, judged in the daemon itself.

    quiet ──above──▶ pending ──held for_s──▶ high ──not above for HOLD_S + keep_s──▶ quiet
             ▲ not above for HOLD_S │

As in the rule, "above" means above at any time in the last :data:`HOLD_S` seconds (``max_over_time``), so that one
quiet cycle does not start the wait anew. No reading (idle pool, ranks missing) counts as not above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from eplb.snapshot import PoolSnapshot

HOLD_S = 300.0
"""How long one reading above the threshold counts, in seconds; the range of max_over_time in the rule."""


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Threshold as a ratio, waits in seconds."""

    recoverable_excess: float
    for_s: float
    keep_s: float


@dataclass(frozen=True, slots=True)
class AlertState:
    """``since_s`` begin of the present condition, ``above_s`` last reading above, ``ended_s`` end of the condition while
    the alert is kept; seconds of one monotonic clock, None = not so. ``worst`` the highest reading since it began.
    """

    since_s: float | None = None
    above_s: float | None = None
    ended_s: float | None = None
    worst: float = 0.0
    high: bool = False


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """One change: ``name`` is ``imbalance_high`` or ``imbalance_cleared``, ``duration_s`` the time since the condition began."""

    name: str
    phase: str | None
    recoverable_excess: float | None
    worst: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Excess:
    """The phase with the highest recoverable excess, as a ratio."""

    phase: str
    value: float


def worst_excess(snapshot: PoolSnapshot, coverage: float) -> Excess | None:
    """The pool's highest recoverable excess; None while it is idle or fewer than ``coverage`` of its ranks are seen.

    With ranks missing the number says more about the collectors than about the balance; they have an alert of their own.
    """
    if snapshot.coverage < coverage:
        return None
    loaded = [
        Excess(reading.phase, reading.recoverable_excess)
        for reading in snapshot.readings
        if reading.tokens > 0 and reading.recoverable_excess == reading.recoverable_excess
    ]
    return max(loaded, key=lambda excess: excess.value, default=None)


def observe(
    state: AlertState, excess: Excess | None, now_s: float, rule: AlertRule
) -> tuple[AlertState, AlertEvent | None]:
    """The state after one reading, and the event to log if it changed between quiet and high."""
    above_now = excess is not None and excess.value > rule.recoverable_excess
    above_s = now_s if above_now else state.above_s
    holds = above_s is not None and now_s - above_s < HOLD_S
    if holds:
        # A condition that returns while the alert is kept is the same one.
        since_s = state.since_s if state.since_s is not None else now_s
        worst = max(state.worst, excess.value) if excess is not None and above_now else state.worst
        present = AlertState(since_s, above_s, None, worst, state.high)
        if not state.high and now_s - since_s >= rule.for_s:
            return replace(present, high=True), _event("imbalance_high", excess, present, now_s)
        return present, None
    if not state.high:
        return AlertState(), None
    ended_s = state.ended_s if state.ended_s is not None else now_s
    if now_s - ended_s < rule.keep_s:
        return replace(state, ended_s=ended_s), None
    return AlertState(), _event("imbalance_cleared", excess, state, now_s)


def log_event(log: FilteringBoundLogger, pool: str, event: AlertEvent, rule: AlertRule) -> None:
    """Write the event as one structured line: a warning when it begins, information when it ends."""
    write = log.warning if event.name == "imbalance_high" else log.info
    write(
        event.name,
        pool=pool,
        phase=event.phase,
        recoverable_excess=event.recoverable_excess,
        threshold=rule.recoverable_excess,
        worst=event.worst,
        duration_s=event.duration_s,
    )


def _event(name: str, excess: Excess | None, state: AlertState, now_s: float) -> AlertEvent:
    return AlertEvent(
        name=name,
        phase=excess.phase if excess else None,
        recoverable_excess=excess.value if excess else None,
        worst=state.worst,
        duration_s=now_s - state.since_s if state.since_s is not None else 0.0,
    )
