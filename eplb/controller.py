"""The loop's mind: one pure function from (state, what is known) to (next state, one action, one decision).

    standby ── elected ──▶ observing ── trigger ──▶ planning ── accepted ──▶ moving ── all live ──▶ settling ──▶ observing
                               ▲                        │ refused, failed,    ▲ │ refused, expired,   │ (gain measured)
                               └────────────────────────┘ advised             │ └─▶ observing         │
                                                                              └──── not delivered ────┘

``TRANSITIONS`` (:mod:`eplb.states`) is the whole truth about which state may follow which; :mod:`eplb.findings` only finds the event. Nothing here reads
a clock, a store or a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eplb import watchdog
from eplb.decisions import Code, Decision, PlanFacts
from eplb.findings import find
from eplb.gate import Rest
from eplb.states import TRANSITIONS, Action, Event, Name, State, Step

if TYPE_CHECKING:
    from eplb.config import GateConfig
    from eplb.findings import Finding
    from eplb.states import Inputs


def decide(state: State, inputs: Inputs, settings: GateConfig) -> Step:
    """One cycle: find the event, look the transition up, and say why."""
    finding = find(state, inputs, settings)
    name, action = TRANSITIONS[state.name, finding.event]
    plan = finding.plan or state.plan
    after = State(
        name=name,
        cycle=state.cycle + 1,
        rest=_rest(state.rest, inputs, finding, settings),
        plan=plan if name in (Name.MOVING, Name.SETTLING) else None,
        progress=watchdog.observe(
            state.progress, _watched(state, name, inputs, finding), _patience(settings)
        ),
    )
    return Step(after, action, _record(after, inputs, finding, plan))


def _rest(rest: Rest, inputs: Inputs, finding: Finding, settings: GateConfig) -> Rest:
    now_ms = inputs.time_ms
    cooldown_ms, interval_ms = round(settings.cooldown_s * 1000), round(settings.min_interval_s * 1000)
    if finding.event is Event.ELECTED:
        began_ms = min(inputs.applied_ms, now_ms)
        return Rest(began_ms + cooldown_ms, began_ms + interval_ms) if inputs.applied_ms else Rest()
    # A store whose clock stepped back must not stretch a rest.
    cooldown_until_ms = min(rest.cooldown_until_ms, now_ms + cooldown_ms)
    interval_until_ms = min(rest.interval_until_ms, now_ms + interval_ms)
    offered = finding.event in (Event.PLAN_ACCEPTED, Event.UNDELIVERED)
    return Rest(
        now_ms + cooldown_ms if finding.cooldown else cooldown_until_ms,
        now_ms + interval_ms if offered else interval_until_ms,
        finding.code if finding.cooldown else rest.after,
    )


_UNANSWERED = frozenset(
    {
        Code.PLANNING_FAILED, Code.PLANNING_TIMEOUT, Code.PLAN_STALE, Code.OFFER_REFUSED, Code.OFFER_EXPIRED,
        Code.NO_PRICE, Code.NEEDS_STAGING, Code.SHARES_IGNORED,
    }
)  # fmt: skip
"""Ends that leave a wanted placement wanted, until somebody mends what stood against it."""

_WAITING = frozenset(
    {
        Code.COOLDOWN, Code.MIN_INTERVAL, Code.LOW_COVERAGE, Code.NOT_ENOUGH_DATA, Code.MISALIGNED, Code.RANKS_STUCK,
        Code.FRAMES_REFUSED,
    }
)  # fmt: skip
"""Reasons to wait that do not answer whether a placement is still wanted."""


def _watched(state: State, name: Name, inputs: Inputs, finding: Finding) -> watchdog.Seen:
    moving = name is Name.MOVING and finding.code is not Code.PAUSED
    # An idle pool wants nothing, however long the night is.
    idle = inputs.assessment is not None and not inputs.assessment.tokens
    kept = state.progress.wanted_ms is not None and finding.code in _WAITING and not idle
    answer = inputs.answer
    return watchdog.Seen(
        time_ms=inputs.time_ms,
        moving=moving,
        wanted=moving or name is Name.PLANNING or finding.code in _UNANSWERED or kept,
        place=inputs.movement.place,
        waiting=inputs.movement.waiting,
        advanced=finding.event is Event.WAVE_LIVE,
        solver_failed=finding.code in (Code.PLANNING_FAILED, Code.PLANNING_TIMEOUT),
        solved=answer is not None and answer.plan is not None,
    )


def _patience(settings: GateConfig) -> watchdog.Patience:
    """A wish may outlive two intervals between plans: one attempt may fail, and the next must come to something."""
    return watchdog.Patience(
        moving_s=settings.progress_s,
        wanted_s=2.0 * settings.interval_s + settings.progress_s,
        solver_failures=settings.solver_failures,
    )


def abandoned(outcome: Step, code: Code, sentence: str, cooldown_s: float) -> Step:
    """The step when its action turned out to be impossible: back to observing after a cooldown, and said so."""
    decision = replace(
        outcome.decision,
        state=str(Name.OBSERVING),
        code=code,
        sentence=f"{outcome.decision.sentence}; not done: {sentence}",
        would_change="a new plan after the cooldown",
    )
    until_ms = outcome.decision.time_ms + round(cooldown_s * 1000)
    rest = replace(outcome.state.rest, cooldown_until_ms=until_ms, after=code)
    state = replace(outcome.state, name=Name.OBSERVING, rest=rest, plan=None)
    return Step(state, Action.NONE, decision)


def _record(after: State, inputs: Inputs, finding: Finding, plan: PlanFacts | None) -> Decision:
    code, sentence = _said(after, finding)
    decision = Decision(
        pool=inputs.pool,
        time_ms=inputs.time_ms,
        cycle=after.cycle,
        term=inputs.term,
        state=str(after.name),
        code=code,
        sentence=sentence,
        would_change=finding.would_change,
        map_version=inputs.map_version,
        plan=plan,
        realised_gain=None if inputs.realised is None else inputs.realised.gain,
        correction=inputs.gains.correction,
        half_life_s=inputs.gains.half_life_s,
        next_plan_s=after.rest.left_s(inputs.time_ms),
        stalled_s=after.progress.stalled_s(inputs.time_ms),
        stalled_ranks=after.progress.ranks,
        outcome=inputs.outcome,
        departed=inputs.departed,
    )
    seen = inputs.assessment
    if seen is None:
        return decision
    return replace(
        decision,
        coverage=seen.coverage,
        slices=seen.slices,
        excess=seen.excess,
        recoverable_excess=seen.recoverable_excess,
        ratio_by_layer=tuple(round(float(x), 4) for x in seen.ratio_by_layer),
    )


def _said(after: State, finding: Finding) -> tuple[Code, str]:
    """A cycle that would only say that it waits says instead that nothing moves."""
    if not after.progress.stalled or finding.event is not Event.HOLD:
        return finding.code, finding.sentence
    code = Code.REBALANCE_STALLED if after.name is Name.MOVING else Code.NO_PROGRESS
    return code, f"{after.progress.sentence}; {finding.sentence}"
