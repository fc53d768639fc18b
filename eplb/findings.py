"""What a cycle finds in each state of the controller: an event, a code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eplb import evacuation, gate
from eplb.decisions import Code, PlanFacts
from eplb.rollback import NOISE, kept_promise, missed
from eplb.states import Event, Name

if TYPE_CHECKING:
    from eplb.config import GateConfig
    from eplb.gate import Verdict
    from eplb.rollback import Realised
    from eplb.states import Answer, Inputs, State


@dataclass(frozen=True, slots=True)
class Finding:
    """What a cycle found: the event, why, and the plan that it is about."""

    event: Event
    code: Code
    sentence: str
    would_change: str = ""
    plan: PlanFacts | None = None
    cooldown: bool = False


def find(state: State, inputs: Inputs, settings: GateConfig) -> Finding:
    """The event of this cycle and the reason for it."""
    if not inputs.leader:
        event = Event.HOLD if state.name is Name.STANDBY else Event.LEAD_LOST
        return Finding(
            event, Code.STANDBY, "another process leads, or none does yet", "this process gets the lease"
        )
    return _FINDERS[state.name](state, inputs, settings)


def _in_standby(_state: State, _inputs: Inputs, _settings: GateConfig) -> Finding:
    return Finding(Event.ELECTED, Code.ELECTED, "this process leads now; it observes for one cycle first")


def _in_observing(state: State, inputs: Inputs, settings: GateConfig) -> Finding:
    if inputs.movement.state != "idle":
        return _taken_up(inputs, settings)
    if inputs.problem is not None:
        return _held(inputs.problem)
    if inputs.paused:
        return Finding(
            Event.HOLD, Code.PAUSED, "an operator paused this pool; it only observes", "eplb resume"
        )
    verdict = gate.before_planning(settings, inputs.assessment, time_ms=inputs.time_ms, rest=state.rest)
    verdict = evacuation.asked_for(inputs.need, verdict)
    if not verdict.passed:
        return _held(verdict)
    if settings.mode == "observe":
        sentence = f"{verdict.sentence}; the mode is observe, so nothing is proposed"
        return Finding(Event.HOLD, Code.OBSERVE_ONLY, sentence, "mode advise or auto")
    return Finding(Event.TRIGGERED, verdict.code, verdict.sentence)


def _taken_up(inputs: Inputs, settings: GateConfig) -> Finding:
    """A wave that is on offer although this state made none: a former leader's, or one whose writing went unanswered."""
    movement = inputs.movement
    sentence = f"a wave was found on offer: {movement.sentence}"
    if settings.mode != "auto" and movement.state in _STOPPABLE:
        sentence = f"{sentence}; the mode is {settings.mode}, so it is withdrawn"
        return Finding(Event.UNWANTED, Code.WITHDRAWN, sentence, "mode auto", cooldown=True)
    # A wave that no rank has switched carries the former leader's term, which ranks refuse by now.
    again = movement.state == "moving" or movement.term_refused
    event = Event.TAKEN_OVER if again else Event.ADOPTED
    return Finding(event, Code.ADOPTED, sentence, "the ranks' live maps")


def _held(verdict: Verdict) -> Finding:
    return Finding(Event.HOLD, verdict.code, verdict.sentence, verdict.would_change)


def _in_planning(_state: State, inputs: Inputs, settings: GateConfig) -> Finding:
    answer = inputs.answer
    if answer is None and inputs.solving:
        return Finding(Event.HOLD, Code.PLANNING, "the solver works", "its answer, or its deadline")
    if answer is None:
        sentence = "the solve that was asked for is not running; it is asked for anew"
        return Finding(Event.PLAN_DROPPED, Code.PLANNING_FAILED, sentence, "the next cycle")
    if (unusable := _unusable(inputs, answer)) is not None:
        return unusable
    if answer.plan is None:
        return Finding(Event.PLAN_DROPPED, answer.code, answer.sentence, "the next cycle", cooldown=True)
    return _judged(answer, answer.plan, inputs, settings)


def _unusable(inputs: Inputs, answer: Answer) -> Finding | None:
    if not answer.base_is_live:
        sentence = "the live map changed while the plan was made; it is dropped"
        return Finding(Event.PLAN_DROPPED, Code.PLAN_STALE, sentence, "the next cycle", answer.plan)
    if (problem := inputs.problem) is not None:
        sentence = f"the plan is dropped: {problem.sentence}"
        return Finding(Event.PLAN_DROPPED, problem.code, sentence, problem.would_change, answer.plan)
    if inputs.paused:
        sentence = "an operator paused this pool while the plan was made; it is dropped"
        return Finding(Event.PLAN_DROPPED, Code.PAUSED, sentence, "eplb resume", answer.plan)
    return None


def _judged(answer: Answer, plan: PlanFacts, inputs: Inputs, settings: GateConfig) -> Finding:
    if plan.degraded:
        verdict = evacuation.before_moving(plan)
    else:
        verdict = gate.before_moving(settings, plan, inputs.gains, inputs.assessment)
    if not verdict.passed and answer.shares_plan is not None:
        instead = gate.before_moving(settings, answer.shares_plan, inputs.gains, inputs.assessment)
        if instead.passed:
            sentence = f"{instead.sentence}; moves on top are refused ({verdict.code}): {verdict.sentence}"
            plan, verdict = answer.shares_plan, replace(instead, sentence=sentence)
    code, sentence = verdict.code, verdict.sentence
    if not verdict.passed:
        return Finding(Event.PLAN_DROPPED, code, sentence, verdict.would_change, plan, cooldown=True)
    if settings.mode == "auto":
        return Finding(Event.PLAN_ACCEPTED, code, sentence, "", plan)
    sentence = f"{sentence}; the mode is {settings.mode}, so nothing moves"
    return Finding(Event.PLAN_ADVISED, Code.ADVISED, sentence, "mode auto", plan, cooldown=True)


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


def _in_moving(state: State, inputs: Inputs, settings: GateConfig) -> Finding:
    movement = inputs.movement
    event, code, would_change, cooldown = _MOVEMENTS[movement.state]
    # A rollback that a former leader began is known by the plan in the store alone.
    going_back = movement.going_back if state.plan is None else state.plan.rollback
    if settings.mode != "auto" and movement.state in _STOPPABLE:
        sentence = f"{movement.sentence}; the mode is {settings.mode}, so it is withdrawn"
        return Finding(Event.MOVE_FAILED, Code.WITHDRAWN, sentence, "mode auto", cooldown=True)
    if going_back and event is Event.ALL_LIVE:
        sentence = f"{movement.sentence}; the map before the last plan is back"
        return Finding(
            Event.PUT_BACK, Code.ROLLED_BACK, sentence, "a new plan after the cooldown", cooldown=True
        )
    if event is Event.UNVERIFIED and movement.delegated and inputs.rollback is not None and not going_back:
        sentence = f"{movement.sentence}; the map before the plan is put back, and the pool is paused"
        return Finding(Event.REVERTED, code, sentence, would_change, inputs.rollback, cooldown=True)
    if event is Event.WAVE_LIVE and inputs.paused and not going_back:
        sentence = f"{movement.sentence}; an operator paused this pool, so the next wave waits"
        return Finding(Event.HOLD, Code.PAUSED, sentence, "eplb resume")
    return Finding(event, code, movement.sentence, would_change, cooldown=cooldown)


def _in_settling(state: State, inputs: Inputs, settings: GateConfig) -> Finding:
    found = inputs.realised
    if inputs.need is not None and inputs.need.urgent:
        sentence = f"{inputs.need.sentence}; the gain of the last plan stays unmeasured"
        return Finding(Event.MEASURED, Code.SETTLED, sentence)
    if state.plan is None:
        why = "the plan is a former leader's, who knew the map before"
        return Finding(Event.MEASURED, Code.SETTLED, f"{why}; the gain stays unmeasured")
    if found is None and inputs.time_ms < state.rest.cooldown_until_ms:
        return Finding(Event.HOLD, Code.SETTLING, "slices under the new map are being gathered", "time")
    if found is None:
        why = "too few slices followed, or the group was formed anew, so that nothing compares with the map before"
        return Finding(Event.MEASURED, Code.SETTLED, f"{why}; the gain stays unmeasured")
    return _measured(state.plan, found, inputs, settings)


def _measured(plan: PlanFacts, found: Realised, inputs: Inputs, settings: GateConfig) -> Finding:
    moved = "fell" if found.gain >= 0.0 else "rose"
    sentence = (
        f"the ratio {moved} by {abs(found.gain):.3f} (+-{NOISE * found.error:.3f}) on {found.slices} slices since the switch; "
        f"the plan promised a fall of {plan.gain:.3f}"
    )
    # What membership asked for was promised nothing, and the map before it is another group's.
    if not plan.degraded and not kept_promise(found, plan.gain, settings.least_delivered):
        return _undelivered(sentence, found, inputs, settings)
    if missed(found, plan.ratio_after):
        sentence = f"{sentence}; the ratio is {found.observed_ratio:.3f}, promised was {plan.ratio_after:.3f}"
        return Finding(
            Event.MEASURED, Code.GAIN_MISSED, sentence, "load like that which the plan was made on"
        )
    return Finding(Event.MEASURED, Code.SETTLED, sentence)


def _undelivered(sentence: str, found: Realised, inputs: Inputs, settings: GateConfig) -> Finding:
    """Taken back, unless somebody or something stands against it; then it is only said."""
    if found.gain - NOISE * found.error > 0.0:
        why = "what it brought is little but sure, and would be lost for as many moves again"
        return Finding(Event.MEASURED, Code.GAIN_MISSED, f"{sentence}; it is not taken back, because {why}")
    if settings.mode != "auto" or inputs.paused or inputs.rollback is None:
        why = "the pool is paused" if inputs.paused else f"the mode is {settings.mode}"
        why = "no way back to the map before is known" if inputs.rollback is None else why
        return Finding(Event.MEASURED, Code.GAIN_MISSED, f"{sentence}; it is not taken back, because {why}")
    return Finding(
        Event.UNDELIVERED, Code.ROLLING_BACK, f"{sentence}; the map before is put back", "", inputs.rollback
    )


_FINDERS = {
    Name.STANDBY: _in_standby,
    Name.OBSERVING: _in_observing,
    Name.PLANNING: _in_planning,
    Name.MOVING: _in_moving,
    Name.SETTLING: _in_settling,
}
