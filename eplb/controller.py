"""The loop's mind: one pure function from (state, what is known) to (next state, one action, one decision).

    standby ── elected ──▶ observing ── trigger ──▶ planning ── accepted ──▶ moving ── all live ──▶ settling ──▶ observing
                               ▲                        │ refused, failed,      │ refused, expired,     (gain measured)
                               └────────────────────────┘ advised               └─▶ observing

``TRANSITIONS`` is the whole truth about which state may follow which; :func:`decide` only finds the event. Nothing here reads
a clock, a store or a window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from eplb import gate
from eplb.decisions import Code, Decision, PlanFacts

if TYPE_CHECKING:
    from eplb.assess import Assessment
    from eplb.config import GateConfig
    from eplb.gate import Verdict


class Name(StrEnum):
    """States of the controller."""

    STANDBY = "standby"
    OBSERVING = "observing"
    PLANNING = "planning"
    MOVING = "moving"
    SETTLING = "settling"


class Event(StrEnum):
    """What a cycle found."""

    HOLD = "hold"
    ELECTED = "elected"
    LEAD_LOST = "lead_lost"
    ADOPTED = "adopted"
    TAKEN_OVER = "taken_over"
    UNWANTED = "unwanted"
    TRIGGERED = "triggered"
    PLAN_ACCEPTED = "plan_accepted"
    PLAN_ADVISED = "plan_advised"
    PLAN_DROPPED = "plan_dropped"
    WAVE_LIVE = "wave_live"
    ALL_LIVE = "all_live"
    MOVE_FAILED = "move_failed"
    UNVERIFIED = "unverified"
    MEASURED = "measured"


class Action(StrEnum):
    """What the daemon is to do about it; NONE is an answer too."""

    NONE = "none"
    ASK_PLAN = "ask_plan"
    CANCEL_PLAN = "cancel_plan"
    WRITE_ADVICE = "write_advice"
    OFFER_NEXT = "offer_next"
    OFFER_AGAIN = "offer_again"
    CLOSE = "close"
    WITHDRAW = "withdraw"
    WITHDRAW_AND_PAUSE = "withdraw_and_pause"


TRANSITIONS: dict[tuple[Name, Event], tuple[Name, Action]] = {
    (Name.STANDBY, Event.HOLD): (Name.STANDBY, Action.NONE),
    (Name.STANDBY, Event.ELECTED): (Name.OBSERVING, Action.NONE),
    (Name.OBSERVING, Event.HOLD): (Name.OBSERVING, Action.NONE),
    (Name.OBSERVING, Event.LEAD_LOST): (Name.STANDBY, Action.NONE),
    (Name.OBSERVING, Event.ADOPTED): (Name.MOVING, Action.NONE),
    (Name.OBSERVING, Event.TAKEN_OVER): (Name.MOVING, Action.OFFER_AGAIN),
    (Name.OBSERVING, Event.UNWANTED): (Name.OBSERVING, Action.WITHDRAW),
    (Name.OBSERVING, Event.TRIGGERED): (Name.PLANNING, Action.ASK_PLAN),
    (Name.PLANNING, Event.HOLD): (Name.PLANNING, Action.NONE),
    (Name.PLANNING, Event.LEAD_LOST): (Name.STANDBY, Action.CANCEL_PLAN),
    (Name.PLANNING, Event.PLAN_ACCEPTED): (Name.MOVING, Action.OFFER_NEXT),
    (Name.PLANNING, Event.PLAN_ADVISED): (Name.OBSERVING, Action.WRITE_ADVICE),
    (Name.PLANNING, Event.PLAN_DROPPED): (Name.OBSERVING, Action.NONE),
    (Name.MOVING, Event.HOLD): (Name.MOVING, Action.NONE),
    (Name.MOVING, Event.LEAD_LOST): (Name.STANDBY, Action.NONE),
    (Name.MOVING, Event.WAVE_LIVE): (Name.MOVING, Action.OFFER_NEXT),
    (Name.MOVING, Event.ALL_LIVE): (Name.SETTLING, Action.CLOSE),
    (Name.MOVING, Event.MOVE_FAILED): (Name.OBSERVING, Action.WITHDRAW),
    (Name.MOVING, Event.UNVERIFIED): (Name.OBSERVING, Action.WITHDRAW_AND_PAUSE),
    (Name.SETTLING, Event.HOLD): (Name.SETTLING, Action.NONE),
    (Name.SETTLING, Event.LEAD_LOST): (Name.STANDBY, Action.NONE),
    (Name.SETTLING, Event.MEASURED): (Name.OBSERVING, Action.NONE),
}


@dataclass(frozen=True, slots=True)
class State:
    """What the controller remembers between cycles.

    ``cooldown_until_ms`` store time before which no new plan is looked for. ``plan`` the plan that is being moved or measured.
    """

    name: Name = Name.STANDBY
    cycle: int = 0
    cooldown_until_ms: int = 0
    plan: PlanFacts | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the planner gave: a plan in numbers, or a code and a sentence why there is none."""

    plan: PlanFacts | None = None
    code: Code = Code.PLANNING_FAILED
    sentence: str = ""
    base_is_live: bool = True


@dataclass(frozen=True, slots=True)
class Movement:
    """Where the migration stands, from desired map and live records alone.

    ``state``: idle, moving, in_doubt, wave_live, all_live, refused, expired or unverified.
    ``term_refused``: the only reason of a refusal is that the offer carries a former leader's term.
    """

    state: str = "idle"
    sentence: str = ""
    term_refused: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything one cycle knows.

    ``problem`` why nothing may be planned whatever the load says. ``solving`` a solve is running. ``applied_ms`` store time of
    the last offer, 0 = unknown. ``realised_gain`` is there once enough slices followed the last switch.
    """

    pool: str
    time_ms: int
    term: int
    leader: bool
    paused: bool
    map_version: int
    assessment: Assessment | None = None
    problem: Verdict | None = None
    solving: bool = False
    applied_ms: int = 0
    answer: Answer | None = None
    movement: Movement = Movement()
    realised_gain: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The next state, what to do, and the record of why."""

    state: State
    action: Action
    decision: Decision


@dataclass(frozen=True, slots=True)
class _Finding:
    event: Event
    code: Code
    sentence: str
    would_change: str = ""
    plan: PlanFacts | None = None
    cooldown: bool = False


def decide(state: State, inputs: Inputs, settings: GateConfig) -> Outcome:
    """One cycle: find the event, look the transition up, and say why."""
    finding = _find(state, inputs, settings)
    name, action = TRANSITIONS[state.name, finding.event]
    cooldown_ms = round(settings.cooldown_s * 1000)
    # A store whose clock stepped back must not stretch the cooldown.
    cooldown_until_ms = min(state.cooldown_until_ms, inputs.time_ms + cooldown_ms)
    if finding.cooldown:
        cooldown_until_ms = inputs.time_ms + cooldown_ms
    if finding.event is Event.ELECTED:
        cooldown_until_ms = min(inputs.applied_ms, inputs.time_ms) + cooldown_ms if inputs.applied_ms else 0
    plan = finding.plan or state.plan
    after = State(
        name=name,
        cycle=state.cycle + 1,
        cooldown_until_ms=cooldown_until_ms,
        plan=plan if name in (Name.MOVING, Name.SETTLING) else None,
    )
    return Outcome(after, action, _record(after, inputs, finding, plan))


def abandoned(outcome: Outcome, code: Code, sentence: str, cooldown_s: float) -> Outcome:
    """The outcome when its action turned out to be impossible: back to observing after a cooldown, and said so."""
    decision = replace(
        outcome.decision,
        state=str(Name.OBSERVING),
        code=code,
        sentence=f"{outcome.decision.sentence}; not done: {sentence}",
        would_change="a new plan after the cooldown",
    )
    until_ms = outcome.decision.time_ms + round(cooldown_s * 1000)
    state = replace(outcome.state, name=Name.OBSERVING, cooldown_until_ms=until_ms, plan=None)
    return Outcome(state, Action.NONE, decision)


def _record(after: State, inputs: Inputs, finding: _Finding, plan: PlanFacts | None) -> Decision:
    decision = Decision(
        pool=inputs.pool,
        time_ms=inputs.time_ms,
        cycle=after.cycle,
        term=inputs.term,
        state=str(after.name),
        code=finding.code,
        sentence=finding.sentence,
        would_change=finding.would_change,
        map_version=inputs.map_version,
        plan=plan,
        realised_gain=inputs.realised_gain,
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


def _find(state: State, inputs: Inputs, settings: GateConfig) -> _Finding:
    if not inputs.leader:
        event = Event.HOLD if state.name is Name.STANDBY else Event.LEAD_LOST
        return _Finding(
            event, Code.STANDBY, "another process leads, or none does yet", "this process gets the lease"
        )
    return _FINDERS[state.name](state, inputs, settings)


def _in_standby(_state: State, _inputs: Inputs, _settings: GateConfig) -> _Finding:
    return _Finding(Event.ELECTED, Code.ELECTED, "this process leads now; it observes for one cycle first")


def _in_observing(state: State, inputs: Inputs, settings: GateConfig) -> _Finding:
    if inputs.movement.state != "idle":
        return _taken_up(inputs, settings)
    if inputs.problem is not None:
        return _held(inputs.problem)
    if inputs.paused:
        return _Finding(
            Event.HOLD, Code.PAUSED, "an operator paused this pool; it only observes", "eplb resume"
        )
    verdict = gate.before_planning(
        settings, inputs.assessment, time_ms=inputs.time_ms, cooldown_until_ms=state.cooldown_until_ms
    )
    if not verdict.passed:
        return _held(verdict)
    if settings.mode == "observe":
        sentence = f"{verdict.sentence}; the mode is observe, so nothing is proposed"
        return _Finding(Event.HOLD, Code.OBSERVE_ONLY, sentence, "mode advise or auto")
    return _Finding(Event.TRIGGERED, verdict.code, verdict.sentence)


def _taken_up(inputs: Inputs, settings: GateConfig) -> _Finding:
    """A wave that is on offer although this state made none: a former leader's, or one whose writing went unanswered."""
    movement = inputs.movement
    sentence = f"a wave was found on offer: {movement.sentence}"
    if settings.mode != "auto" and movement.state in _STOPPABLE:
        sentence = f"{sentence}; the mode is {settings.mode}, so it is withdrawn"
        return _Finding(Event.UNWANTED, Code.WITHDRAWN, sentence, "mode auto", cooldown=True)
    # A wave that no rank has switched carries the former leader's term, which ranks refuse by now.
    again = movement.state == "moving" or movement.term_refused
    event = Event.TAKEN_OVER if again else Event.ADOPTED
    return _Finding(event, Code.ADOPTED, sentence, "the ranks' live maps")


def _held(verdict: Verdict) -> _Finding:
    return _Finding(Event.HOLD, verdict.code, verdict.sentence, verdict.would_change)


def _in_planning(_state: State, inputs: Inputs, settings: GateConfig) -> _Finding:
    answer = inputs.answer
    if answer is None and inputs.solving:
        return _Finding(Event.HOLD, Code.PLANNING, "the solver works", "its answer, or its deadline")
    if answer is None:
        sentence = "the solve that was asked for is not running; it is asked for anew"
        return _Finding(Event.PLAN_DROPPED, Code.PLANNING_FAILED, sentence, "the next cycle")
    if answer.plan is None:
        return _Finding(Event.PLAN_DROPPED, answer.code, answer.sentence, "the next cycle", cooldown=True)
    return _unusable(inputs, answer) or _judged(answer.plan, settings)


def _unusable(inputs: Inputs, answer: Answer) -> _Finding | None:
    if not answer.base_is_live:
        sentence = "the live map changed while the plan was made; it is dropped"
        return _Finding(Event.PLAN_DROPPED, Code.PLAN_STALE, sentence, "the next cycle", answer.plan)
    if inputs.paused:
        sentence = "an operator paused this pool while the plan was made; it is dropped"
        return _Finding(Event.PLAN_DROPPED, Code.PAUSED, sentence, "eplb resume", answer.plan)
    return None


def _judged(plan: PlanFacts, settings: GateConfig) -> _Finding:
    verdict = gate.before_moving(settings, plan)
    code, sentence = verdict.code, verdict.sentence
    if not verdict.passed:
        return _Finding(Event.PLAN_DROPPED, code, sentence, verdict.would_change, plan, cooldown=True)
    if settings.mode == "auto":
        return _Finding(Event.PLAN_ACCEPTED, Code.OFFERED, sentence, "", plan)
    sentence = f"{sentence}; the mode is {settings.mode}, so nothing moves"
    return _Finding(Event.PLAN_ADVISED, Code.ADVISED, sentence, "mode auto", plan, cooldown=True)


_MOVEMENTS: dict[str, tuple[Event, Code, str, bool]] = {
    "idle": (Event.MOVE_FAILED, Code.PLAN_STALE, "a new plan", True),
    "moving": (Event.HOLD, Code.IN_FLIGHT, "the ranks' vote and their live maps", False),
    "in_doubt": (Event.HOLD, Code.IN_DOUBT, "live maps of all ranks", False),
    "wave_live": (Event.WAVE_LIVE, Code.WAVE_LIVE, "", False),
    "all_live": (Event.ALL_LIVE, Code.APPLIED, "", True),
    "refused": (Event.MOVE_FAILED, Code.OFFER_REFUSED, "a new plan after the cooldown", True),
    "expired": (Event.MOVE_FAILED, Code.OFFER_EXPIRED, "a new plan after the cooldown", True),
    "unverified": (Event.UNVERIFIED, Code.APPLY_UNVERIFIED, "a look at the ranks, then eplb resume", True),
}


_STOPPABLE = frozenset({"moving", "wave_live"})
"""Where a migration can still be stopped with every layer wholly on its old or its new row."""


def _in_moving(_state: State, inputs: Inputs, settings: GateConfig) -> _Finding:
    movement = inputs.movement
    event, code, would_change, cooldown = _MOVEMENTS[movement.state]
    if settings.mode != "auto" and movement.state in _STOPPABLE:
        sentence = f"{movement.sentence}; the mode is {settings.mode}, so it is withdrawn"
        return _Finding(Event.MOVE_FAILED, Code.WITHDRAWN, sentence, "mode auto", cooldown=True)
    if event is Event.WAVE_LIVE and inputs.paused:
        sentence = f"{movement.sentence}; an operator paused this pool, so the next wave waits"
        return _Finding(Event.HOLD, Code.PAUSED, sentence, "eplb resume")
    return _Finding(event, code, movement.sentence, would_change, cooldown=cooldown)


def _in_settling(state: State, inputs: Inputs, _settings: GateConfig) -> _Finding:
    gain = inputs.realised_gain
    if gain is None and inputs.time_ms < state.cooldown_until_ms:
        return _Finding(Event.HOLD, Code.SETTLING, "slices under the new map are being gathered", "time")
    if gain is None:
        sentence = "the cooldown ended without enough slices to compare with the map before; the gain stays unmeasured"
        return _Finding(Event.MEASURED, Code.SETTLED, sentence)
    promised = state.plan.gain if state.plan is not None else math.nan
    sentence = (
        f"the ratio fell by {gain:.3f} on the slices since the switch; the plan promised {promised:.3f}"
    )
    return _Finding(Event.MEASURED, Code.SETTLED, sentence)


_FINDERS = {
    Name.STANDBY: _in_standby,
    Name.OBSERVING: _in_observing,
    Name.PLANNING: _in_planning,
    Name.MOVING: _in_moving,
    Name.SETTLING: _in_settling,
}
