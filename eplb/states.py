"""States of the controller, which may follow which, and what one cycle knows; :mod:`eplb.controller` decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from eplb.decisions import Code, Decision, PlanFacts
from eplb.gains import Gains
from eplb.gate import Rest
from eplb.watchdog import Progress

if TYPE_CHECKING:
    from eplb.assess import Assessment
    from eplb.evacuation import Need
    from eplb.gains import Departure, Outcome
    from eplb.gate import Verdict
    from eplb.rollback import Realised


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
    UNDELIVERED = "undelivered"
    PUT_BACK = "put_back"
    REVERTED = "reverted"


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
    ROLL_BACK = "roll_back"
    ROLL_BACK_AND_PAUSE = "roll_back_and_pause"


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
    (Name.MOVING, Event.REVERTED): (Name.MOVING, Action.ROLL_BACK_AND_PAUSE),
    (Name.MOVING, Event.PUT_BACK): (Name.OBSERVING, Action.CLOSE),
    (Name.SETTLING, Event.HOLD): (Name.SETTLING, Action.NONE),
    (Name.SETTLING, Event.LEAD_LOST): (Name.STANDBY, Action.NONE),
    (Name.SETTLING, Event.MEASURED): (Name.OBSERVING, Action.NONE),
    (Name.SETTLING, Event.UNDELIVERED): (Name.MOVING, Action.ROLL_BACK),
}


@dataclass(frozen=True, slots=True)
class State:
    """What the controller remembers between cycles.

    ``rest`` store times before which no new plan is looked for. ``plan`` the plan that is being moved or measured. ``progress`` what the watchdog knows.
    """

    name: Name = Name.STANDBY
    cycle: int = 0
    rest: Rest = field(default_factory=Rest)
    plan: PlanFacts | None = None
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the planner gave: a plan in numbers, or a code and a sentence why there is none.

    ``shares_plan`` changes shares alone, from the same solve, for when the moves of ``plan`` do not pay.
    """

    plan: PlanFacts | None = None
    shares_plan: PlanFacts | None = None
    code: Code = Code.PLANNING_FAILED
    sentence: str = ""
    base_is_live: bool = True


@dataclass(frozen=True, slots=True)
class Movement:
    """Where the migration stands, from desired map and live records alone.

    ``state``: idle, moving, in_doubt, wave_live, all_live, refused, expired or unverified.
    ``term_refused``: the only reason of a refusal is that the offer carries a former leader's term. ``place`` changes with every progress, ``waiting`` are
    the ranks that it waits for. ``delegated``: the engine moves by itself, so that a failed read-back can be taken back only by a plan.
    ``going_back``: the plan that is asked for puts an earlier map back.
    """

    state: str = "idle"
    sentence: str = ""
    term_refused: bool = False
    place: tuple[object, ...] = ()
    waiting: tuple[int, ...] = ()
    delegated: bool = False
    going_back: bool = False

    @property
    def unverified(self) -> bool:
        """Whether only a plan back answers a failed read-back."""
        return self.delegated and self.state == "unverified"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything one cycle knows.

    ``problem`` why nothing may be planned whatever the load says. ``solving`` a solve is running. ``applied_ms`` store time of
    the last offer, 0 = unknown. ``gains`` what earlier plans brought. ``realised`` is there once enough slices followed the last switch, and ``rollback`` with it:
    the plan that would put the map before back. ``outcome`` and ``departed``: what this cycle found of a plan, for the log. ``need`` what membership asks for.
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
    gains: Gains = field(default_factory=Gains)
    realised: Realised | None = None
    rollback: PlanFacts | None = None
    outcome: Outcome | None = None
    departed: Departure | None = None
    need: Need | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The next state, what to do, and the record of why."""

    state: State
    action: Action
    decision: Decision
