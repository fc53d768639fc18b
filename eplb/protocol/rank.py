"""One rank's part as a table: in which state what event leads where, under which guards, and what is then to be done.

``ROWS`` is all there is: :func:`decide_rank` looks a row up and asks its guards in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from eplb.errors import ProtocolError
from eplb.protocol.facts import NOTHING_ASKED, NOTHING_KNOWN, Asked, Known, Profile, RankState
from eplb.protocol.guards import BY_NAME

if TYPE_CHECKING:
    from eplb.protocol.refusals import Refusal

SERVING, STAGING, PREPARED = RankState.SERVING, RankState.STAGING, RankState.PREPARED
COMMITTING, REFUSED = RankState.COMMITTING, RankState.REFUSED
SWITCHED, STUCK = RankState.SWITCHED, RankState.STUCK

ANY = tuple(RankState)
RESTING = (SERVING, REFUSED, SWITCHED)
ABORTABLE = (STAGING, PREPARED)
NOT_STUCK = (*RESTING, *ABORTABLE)


class Event(StrEnum):
    """What can happen to a rank."""

    LOOKED = "looked"
    """Rank 0, at a gate, looks at its cache of the store."""
    FOUND = "found"
    """Rank 0 has nothing in hand and finds an offer."""
    FOUND_LIVE = "found_live"
    """What the found offer asks for is served already."""
    WEIGHED = "weighed"
    """The found offer asks for something: is there time left to ask the group?"""
    COMPARED = "compared"
    """Rank 0 compares the offer in hand with what the store asks for."""
    CALL_DUE = "call_due"
    """Rank 0 has an offer in hand that the store still asks for."""
    UNNAMED = "unnamed"
    """The header names another offer than the one in hand, or none."""
    ASKED = "asked"
    """The header says PREPARE and the offer follows: can this rank take it?"""
    UNABLE = "unable"
    """The offer cannot be read, or there is no room for it."""
    VOTED_TO_STAGE = "voted_to_stage"
    """This rank said yes to the offer; the vote's result is there."""
    ARRIVED = "arrived"
    """One expert lies in staging."""
    TRANSFER_ENDED = "transfer_ended"
    """The transfer's result is known here."""
    CALLED = "called"
    """The header says APPLY: can this rank switch?"""
    VOTED_TO_SWITCH = "voted_to_switch"
    """This rank said yes to the switch; the vote's result is there."""
    SAID_NO = "said_no"
    """This rank said no, so that the vote failed."""
    LAYER_COMMITTED = "layer_committed"
    """The engine has committed one layer of the offer."""
    WRITTEN = "written"
    """All slots of the offer are written, or all its layers are committed."""
    TIME_PASSED = "time_passed"
    """The rank looks at its own clock."""
    GROUP_FAILED = "group_failed"
    """A collective failed: the group is broken, or this rank is not in step with it."""


class Effect(StrEnum):
    """What the agent is to do."""

    ASK_GROUP = "ask_group"
    """Send PREPARE and the offer."""
    CALL_VOTE = "call_vote"
    """Send APPLY."""
    SAY_YES = "say_yes"
    SAY_NO = "say_no"
    BEGIN_TRANSFER = "begin_transfer"
    """Bring the weights into staging, in the background."""
    BEGIN_MOVE = "begin_move"
    """Hand the changes to the engine."""
    WRITE_SLOTS = "write_slots"
    READ_BACK = "read_back"
    SERVE = "serve"
    """Route by the new rows, or, where the engine routes, report what it was read back to route by."""
    RELEASE = "release"
    """Free what is staged, now or when no parcel can come into it any more."""
    REMEMBER = "remember"
    """Never take this offer again in this run."""
    REPORT = "report"
    LEAVE_GROUP = "leave_group"


LET_GO = (Effect.RELEASE, Effect.REMEMBER, Effect.REPORT)


@dataclass(frozen=True, slots=True)
class Row:
    """In ``states``, ``event`` leads to ``to`` if all guards hold, else to ``otherwise``; None = the state stays."""

    profiles: tuple[Profile, ...]
    states: tuple[RankState, ...]
    event: Event
    guards: tuple[str, ...] = ()
    to: RankState | None = None
    effects: tuple[Effect, ...] = ()
    otherwise: RankState | None = None
    otherwise_effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Transition:
    """The next state, what is to be done, and the guard's no if one stood against it."""

    state: RankState
    effects: tuple[Effect, ...] = ()
    refusal: Refusal | None = None


BOTH, STAGED, DELEGATED = tuple(Profile), (Profile.STAGED,), (Profile.DELEGATED,)
_CAN_TAKE = (
    "same_pool", "row_sound", "term_not_old", "same_run", "same_model", "base_live", "target_right", "members_only",
    "not_stuck", "not_closed", "not_busy", "same_step",
)  # fmt: skip
_CAN_MEND = tuple("mends_broken" if name == "not_stuck" else name for name in _CAN_TAKE)
_CAN_SWITCH = (
    "same_step", "same_offer", "term_not_old", "same_model", "not_expired", "base_live", "transfer_complete",
)  # fmt: skip
_SWITCH = (Effect.WRITE_SLOTS, Effect.READ_BACK, Effect.SERVE, *LET_GO)
_MOVE = (Effect.BEGIN_MOVE, Effect.REPORT)
_YES, _NO = (Effect.SAY_YES,), (Effect.SAY_NO,)

ROWS: tuple[Row, ...] = (
    # Rank 0 chooses what the group does at this gate.
    Row(BOTH, ANY, Event.LOOKED, ("store_fresh",)),
    Row(STAGED, ANY, Event.FOUND, ("not_stuck", "not_closed", "not_busy")),
    Row(DELEGATED, ANY, Event.FOUND, ("not_closed", "not_busy")),
    Row(BOTH, ANY, Event.FOUND_LIVE, effects=(Effect.REMEMBER,)),
    Row(BOTH, NOT_STUCK, Event.WEIGHED, ("not_expired",), None, (Effect.ASK_GROUP,), REFUSED, LET_GO),
    Row(BOTH, (STUCK,), Event.WEIGHED, ("not_expired",), None, (Effect.ASK_GROUP,), STUCK, LET_GO),
    Row(STAGED, ABORTABLE, Event.COMPARED, ("still_wanted",), None, (), REFUSED, LET_GO),
    Row(STAGED, ABORTABLE, Event.CALL_DUE, ("transfer_complete",), None, (Effect.CALL_VOTE,)),
    # Every rank answers.
    Row(STAGED, ABORTABLE, Event.UNNAMED, to=REFUSED, effects=LET_GO),
    Row(STAGED, ANY, Event.ASKED, _CAN_TAKE, None, _YES, None, _NO),
    # What an engine wrote wrong only a plan can write anew: a stuck rank takes one that does.
    Row(DELEGATED, ANY, Event.ASKED, _CAN_MEND, None, _YES, None, _NO),
    Row(BOTH, ANY, Event.UNABLE, effects=_NO),
    Row(BOTH, NOT_STUCK, Event.SAID_NO, to=REFUSED, effects=LET_GO),
    Row(BOTH, (STUCK, COMMITTING), Event.SAID_NO, effects=(Effect.REMEMBER,)),
    Row(
        STAGED, (*NOT_STUCK, STUCK), Event.VOTED_TO_STAGE, ("unanimous_vote",),
        STAGING, (Effect.BEGIN_TRANSFER, Effect.REPORT), REFUSED, LET_GO,
    ),
    Row(DELEGATED, RESTING, Event.VOTED_TO_STAGE, ("unanimous_vote",), COMMITTING, _MOVE, REFUSED, LET_GO),
    Row(DELEGATED, (STUCK,), Event.VOTED_TO_STAGE, ("unanimous_vote",), COMMITTING, _MOVE, STUCK, LET_GO),
    # The staged profile moves, votes again, and switches.
    Row(STAGED, ABORTABLE, Event.ARRIVED, ("weights_right", "probe_right")),
    Row(STAGED, (STAGING,), Event.TRANSFER_ENDED, ("transfer_complete",), PREPARED, (Effect.REPORT,), REFUSED, LET_GO),
    Row(STAGED, ABORTABLE, Event.TIME_PASSED, ("not_expired",), None, (), REFUSED, LET_GO),
    Row(STAGED, ANY, Event.CALLED, _CAN_SWITCH, None, _YES, None, _NO),
    Row(STAGED, ABORTABLE, Event.VOTED_TO_SWITCH, ("unanimous_vote",), SWITCHED, _SWITCH, REFUSED, LET_GO),
    Row(STAGED, (SWITCHED,), Event.WRITTEN, ("read_back",), SWITCHED, (), STUCK),
    # The engine of the delegated profile commits layer by layer, and nobody can stop it.
    Row(DELEGATED, (COMMITTING,), Event.LAYER_COMMITTED, effects=(Effect.READ_BACK, Effect.SERVE, Effect.REPORT)),
    Row(DELEGATED, (COMMITTING,), Event.WRITTEN, ("read_back",), SWITCHED, LET_GO, STUCK, LET_GO),
    # A rank that cannot go on takes no further part; its map stays.
    Row(BOTH, ANY, Event.GROUP_FAILED, to=STUCK, effects=(Effect.RELEASE, Effect.REPORT, Effect.LEAVE_GROUP)),
)  # fmt: skip


@cache
def _row(profile: Profile, state: RankState, event: Event) -> Row:
    for row in ROWS:
        if profile in row.profiles and state in row.states and event is row.event:
            return row
    raise ProtocolError(f"{profile} rank in state {state}: the table has no row for event {event}")


def decide_rank(
    state: RankState,
    event: Event,
    asked: Asked = NOTHING_ASKED,
    known: Known = NOTHING_KNOWN,
    *,
    guards: frozenset[str],
    profile: Profile = Profile.STAGED,
) -> Transition:
    """What a rank does when ``event`` happens; pure. Guards are asked in the row's order, and the first no counts.

    Raises:
        ProtocolError: the table has no row for this event in this state.
    """
    row = _row(profile, state, event)
    for name in row.guards:
        if name in guards and (refusal := BY_NAME[name].refusal(asked, known)) is not None:
            return Transition(row.otherwise or state, row.otherwise_effects, refusal)
    return Transition(row.to or state, row.effects)
