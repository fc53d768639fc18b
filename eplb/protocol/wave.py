"""The wave on offer as a daemon sees it, and what a daemon may do about it, as tables.

``STATES`` is read from the top: the first row whose condition holds gives the state. ``ACTS`` says in which of these
states an act is allowed; what it writes is then fenced by the store (see :mod:`eplb.protocol.leader`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from eplb.protocol.refusals import Code, Refusal, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable


class WaveState(StrEnum):
    """Where a migration stands."""

    IDLE = "idle"
    """Nothing is on offer."""
    MOVING = "moving"
    """A wave is on offer; no rank has switched; it can be withdrawn."""
    IN_DOUBT = "in_doubt"
    """The vote was taken, or may have been, and not all live maps have come: no abort, no retry."""
    WAVE_LIVE = "wave_live"
    """All ranks serve the wave; the plan has more."""
    ALL_LIVE = "all_live"
    """All ranks serve the plan."""
    REFUSED = "refused"
    """A rank said no, so nobody switched."""
    EXPIRED = "expired"
    """No vote was taken in time; nobody switched."""
    UNVERIFIED = "unverified"
    """A rank switched and what it read back is not what was asked for, or it left the group."""


BUSY = frozenset({WaveState.MOVING, WaveState.IN_DOUBT, WaveState.WAVE_LIVE})
"""While no other plan may be offered."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What desired and live say, reduced to what the tables ask.

    ``on_offer`` an offer for this pool is there, ``wave`` and ``waves`` its place. ``switched``, ``waiting`` ranks that serve
    the wave's targets, and those that do not or are silent; ``mixed`` ranks with some of the wave's layers on target;
    ``stuck`` ranks that could not go on; ``lost`` ranks that serve neither base nor target; ``holding`` ranks that report
    staging or prepared for this offer; ``committing`` ranks whose engine commits it; ``overdue`` its time and the grace are
    over; ``plan_live`` all ranks serve the whole plan.
    """

    on_offer: bool = False
    wave: int = 0
    waves: int = 0
    plan_live: bool = False
    switched: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    holding: tuple[int, ...] = ()
    committing: tuple[int, ...] = ()
    refusals: Refusals = ()
    overdue: bool = False

    @property
    def only_expired(self) -> bool:
        """Whether every refusal says that the time was over."""
        return bool(self.refusals) and all(code == "expired" for _, code, _ in self.refusals)

    @property
    def begun(self) -> bool:
        """Whether a rank serves a part of the wave, or its engine is at it."""
        return bool(self.switched or self.mixed or self.committing)


@dataclass(frozen=True, slots=True)
class StateRow:
    """A state, its code, when it holds, in words and as a test, and how it is said."""

    state: WaveState
    code: str
    when: str
    holds: Callable[[Evidence], bool]
    sentence: Callable[[Evidence], str]


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def _refusal(evidence: Evidence) -> str:
    said = "; ".join(f"rank {rank} ({code}): {sentence}" for rank, code, sentence in evidence.refusals[:4])
    return f"refused, nobody switched: {said}"


def _progress(e: Evidence) -> str:
    done = f"switched on {len(e.switched)} ranks"
    if e.mixed or e.committing:
        done += f", in part on {len(set(e.mixed) | set(e.committing))}"
    return done


STATES: tuple[StateRow, ...] = (
    StateRow(
        WaveState.IDLE, "idle", "nothing is on offer",
        lambda e: not e.on_offer,
        lambda _: "nothing is on offer",
    ),
    StateRow(
        WaveState.UNVERIFIED, "apply_unverified", "a rank is stuck, and no engine commits any more",
        lambda e: bool(e.stuck) and not e.committing,
        lambda e: f"{_ranks(e.stuck)} stuck: what was read back is not what was asked for, or the group was left",
    ),
    StateRow(
        WaveState.ALL_LIVE, "applied", "no rank is waited for, and all serve the whole plan",
        lambda e: not e.waiting and e.plan_live,
        lambda _: "all ranks serve the plan",
    ),
    StateRow(
        WaveState.WAVE_LIVE, "wave_live", "no rank is waited for",
        lambda e: not e.waiting,
        lambda e: f"all ranks serve wave {e.wave + 1} of {e.waves}",
    ),
    StateRow(
        WaveState.IN_DOUBT, "stalled", "a rank serves a part of the wave, or its engine commits it, and it is overdue",
        lambda e: e.begun and e.overdue,
        lambda e: f"{_progress(e)}, no live map from {_ranks(e.waiting)}: overdue, look at them",
    ),
    StateRow(
        WaveState.IN_DOUBT, "in_doubt", "a rank serves a part of the wave, or its engine commits it",
        lambda e: e.begun,
        lambda e: f"{_progress(e)}, waiting for the live map of {_ranks(e.waiting)}",
    ),
    StateRow(
        WaveState.EXPIRED, "expired", "rank 0 reports refusals, all because the time was over",
        lambda e: e.only_expired,
        _refusal,
    ),
    StateRow(
        WaveState.REFUSED, "refused", "rank 0 reports refusals",
        lambda e: bool(e.refusals),
        _refusal,
    ),
    StateRow(
        WaveState.REFUSED, "base_lost", "a rank serves neither base nor target",
        lambda e: bool(e.lost),
        lambda e: f"{_ranks(e.lost)} serve neither the offer's base nor its target; plan anew from the live map",
    ),
    StateRow(
        WaveState.IN_DOUBT, "stalled", "a rank still holds the offer, and it is overdue",
        lambda e: bool(e.holding) and e.overdue,
        lambda e: f"{_ranks(e.holding)} still hold an overdue offer, so the vote may have been taken: look at them",
    ),
    StateRow(
        WaveState.EXPIRED, "expired", "it is overdue",
        lambda e: e.overdue,
        lambda _: "no rank voted on the offer in its time",
    ),
    StateRow(
        WaveState.MOVING, "in_flight", "always",
        lambda _: True,
        lambda e: f"wave {e.wave + 1} of {e.waves} is on offer",
    ),
)  # fmt: skip


def observe_wave(evidence: Evidence) -> StateRow:
    """The row that holds; pure, so that any leader at any time finds the same."""
    return next(row for row in STATES if row.holds(evidence))


class Act(StrEnum):
    """What a daemon may do to the desired map."""

    BEGIN = "begin"
    """Offer the first wave of a new plan."""
    OFFER_NEXT = "offer_next"
    """Offer the plan's next wave."""
    OFFER_AGAIN = "offer_again"
    """Offer the same wave under a new leader's term."""
    CLOSE = "close"
    """Take the last offer off; the plan stays on record as what is desired."""
    WITHDRAW = "withdraw"
    """Take the offer and its plan off."""


@dataclass(frozen=True, slots=True)
class ActFacts:
    """What a daemon knows when it acts.

    ``due`` the state that the act waits for, ``silent`` ranks that have not reported; ``other`` ranks that serve another map than rank 0; ``base_is_live`` rank 0
    serves the map that the plan was made for; ``sentence`` how the state is said.
    """

    state: WaveState
    due: WaveState = WaveState.WAVE_LIVE
    offer: str = ""
    sentence: str = ""
    silent: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    base_is_live: bool = True


def _no_refusal(_facts: ActFacts) -> Refusal | None:
    return None


@dataclass(frozen=True, slots=True)
class ActGuard:
    """A named condition of a daemon's act, with the hazard that it stands against."""

    name: str
    hazard: str
    codes: tuple[Code, ...]
    refusal: Callable[[ActFacts], Refusal | None]


def _one_wave(facts: ActFacts) -> Refusal | None:
    if facts.state in (WaveState.IDLE, WaveState.UNVERIFIED):
        return None  # a plan that leads back takes the place of a wave that was read back wrong
    return Refusal(Code.ONE_WAVE, f"{facts.offer} is {facts.state}; one wave at a time")


def _all_ranks_live(facts: ActFacts) -> Refusal | None:
    if facts.state is facts.due:
        return None
    return Refusal(Code.NOT_LIVE, f"{facts.state}: {facts.sentence}")


def _no_abort_in_doubt(facts: ActFacts) -> Refusal | None:
    if facts.state is not WaveState.IN_DOUBT:
        return None
    return Refusal(
        Code.IN_DOUBT,
        f"{facts.offer} is in doubt, so it is neither taken off nor offered again: {facts.sentence}",
    )


def _base_checked(facts: ActFacts) -> Refusal | None:
    if facts.silent:
        return Refusal(
            Code.STALE,
            f"no live map: ranks {list(facts.silent)} have not reported what they serve; wait for them",
        )
    if facts.other:
        return Refusal(
            Code.STALE,
            f"ranks {list(facts.other)} serve another map than rank 0; wait until they agree or restart them",
        )
    if not facts.base_is_live:
        return Refusal(Code.STALE, "the live map is no longer its base; plan anew")
    return None


ACT_GUARDS: tuple[ActGuard, ...] = (
    ActGuard(
        "one_wave", "a second plan is written over one that ranks are moving", (Code.ONE_WAVE,), _one_wave
    ),
    ActGuard(
        "all_ranks_live", "a wave is offered on rows that not all ranks serve yet, or a plan is called applied that is not",
        (Code.NOT_LIVE,), _all_ranks_live,
    ),
    ActGuard(
        "no_abort_in_doubt", "a wave that ranks have switched is reported as not applied", (Code.IN_DOUBT,), _no_abort_in_doubt
    ),
    ActGuard(
        "base_checked", "a plan is offered on a map that it was not judged on", (Code.STALE,), _base_checked
    ),
    ActGuard(
        "one_run", "a record of an earlier life of the group stands for a rank that has not reported in this one",
        (), _no_refusal,
    ),
)  # fmt: skip
_ACT_GUARD = {guard.name: guard for guard in ACT_GUARDS}

ACTS: dict[Act, tuple[str, ...]] = {
    Act.BEGIN: ("one_wave", "base_checked"),
    Act.OFFER_NEXT: ("all_ranks_live", "base_checked"),
    Act.OFFER_AGAIN: ("no_abort_in_doubt",),
    Act.CLOSE: ("all_ranks_live",),
    Act.WITHDRAW: ("no_abort_in_doubt",),
}
"""Guards of each act, in order."""

WAITS_FOR = {Act.OFFER_NEXT: WaveState.WAVE_LIVE, Act.CLOSE: WaveState.ALL_LIVE}
"""The state in which all ranks serve what the act builds on."""

DUE: dict[WaveState, Act | None] = {
    WaveState.IDLE: None,
    WaveState.MOVING: None,
    WaveState.IN_DOUBT: None,
    WaveState.WAVE_LIVE: Act.OFFER_NEXT,
    WaveState.ALL_LIVE: Act.CLOSE,
    WaveState.REFUSED: Act.WITHDRAW,
    WaveState.EXPIRED: Act.WITHDRAW,
    WaveState.UNVERIFIED: Act.WITHDRAW,
}
"""What ends or goes on with a plan in each state; None = wait, or look for a plan."""


def decide_act(act: Act, facts: ActFacts, *, guards: frozenset[str]) -> Refusal | None:
    """The first reason against an act, or None; pure."""
    for name in ACTS[act]:
        if name in guards and (refusal := _ACT_GUARD[name].refusal(facts)) is not None:
            return refusal
    return None
