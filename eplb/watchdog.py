"""The watchdog on progress as a pure state machine: whatever is under way must move on within a time, or it is said.

    quiet ──the same place for too long, or the solver fails again and again──▶ stalled ──it moved on, or ended──▶ quiet

Two clocks run: one for a plan in flight, which every wave sets back, and one for a placement that is wanted, which stops only when a wave is live or
nothing is wanted any more. So offers that are refused for ever do not pass for progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits: seconds that a plan in flight may stand still and that a placement may be wanted, failures of the solver in a row."""

    moving_s: float
    wanted_s: float
    solver_failures: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One cycle as the watchdog sees it, at store time ``time_ms``.

    ``moving`` a plan is in flight, ``place`` where it stands, ``waiting`` the ranks that it waits for. ``wanted`` a better placement is
    wanted and not there. ``advanced`` a wave went live. ``solver_failed`` the solver's answer was a failure, ``solved`` it was a plan.
    """

    time_ms: int
    moving: bool = False
    wanted: bool = False
    place: tuple[object, ...] = ()
    waiting: tuple[int, ...] = ()
    advanced: bool = False
    solver_failed: bool = False
    solved: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What is remembered: store times at which ``place`` was reached and at which a placement began to be wanted; None = not so.

    ``failures`` of the solver in a row. ``stalled_ms`` since when nothing moves, None = all is well; ``ranks`` that are waited for and ``sentence`` what
    does not move.
    """

    place: tuple[object, ...] = ()
    moving_ms: int | None = None
    wanted_ms: int | None = None
    failures: int = 0
    stalled_ms: int | None = None
    ranks: tuple[int, ...] = ()
    sentence: str = ""

    @property
    def stalled(self) -> bool:
        """Whether something stands still for too long."""
        return self.stalled_ms is not None

    def stalled_s(self, time_ms: int) -> float:
        """Seconds since it was first said, 0 while all is well."""
        return 0.0 if self.stalled_ms is None else max(0.0, (time_ms - self.stalled_ms) / 1000.0)


def observe(before: Progress, seen: Seen, patience: Patience) -> Progress:
    """The state after one cycle; a store whose clock stepped back starts the waits anew."""
    if not (seen.moving or seen.wanted):
        return Progress()
    now = Progress(
        place=seen.place,
        moving_ms=_began(before.moving_ms, seen, kept=seen.place == before.place) if seen.moving else None,
        wanted_ms=_began(before.wanted_ms, seen, kept=not seen.advanced),
        failures=before.failures + 1 if seen.solver_failed else 0 if seen.solved else before.failures,
    )
    found = _standing_still(now, seen, patience)
    if found is None:
        return now
    since_ms = before.stalled_ms if before.stalled_ms is not None else seen.time_ms
    return replace(now, stalled_ms=since_ms, ranks=seen.waiting if seen.moving else (), sentence=found)


def _began(before_ms: int | None, seen: Seen, *, kept: bool) -> int:
    return before_ms if kept and before_ms is not None and before_ms <= seen.time_ms else seen.time_ms


def _standing_still(now: Progress, seen: Seen, patience: Patience) -> str | None:
    moving_s = 0.0 if now.moving_ms is None else (seen.time_ms - now.moving_ms) / 1000.0
    wanted_s = 0.0 if now.wanted_ms is None else (seen.time_ms - now.wanted_ms) / 1000.0
    if moving_s >= patience.moving_s and seen.moving:
        return f"the plan in flight has not moved on for {moving_s:.0f} s{_waits(seen.waiting)}"
    if now.failures >= patience.solver_failures:
        return f"the solver failed {now.failures} times in a row"
    if wanted_s >= patience.wanted_s:
        return f"a better placement has been wanted for {wanted_s:.0f} s and none went live"
    return None


def _waits(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"; it waits for rank{'' if len(ranks) == 1 else 's'} {shown}"
