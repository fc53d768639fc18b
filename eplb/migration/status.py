"""Where a migration stands, computed afresh each time from what is desired and what ranks report: nothing is remembered.

``TABLE`` is the whole truth: the first row whose condition holds gives the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from eplb.migration.desired import of_one_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.facts import PoolFacts
    from eplb.agent.refusal import Refusals
    from eplb.agent.wire import LayerChange, LiveRecord, Offer
    from eplb.migration.desired import Desired
    from eplb.migration.plan import Plan

GRACE_S = 10.0
"""Ranks count an offer's time from when they first see it, and report every 5 s."""

_HOLDING = frozenset({"staging", "prepared"})


class State(StrEnum):
    """States of a migration in the ``staged`` profile."""

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


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """What is known of the wave on offer.

    ``refusals`` (rank, code, sentence). ``layers_live`` positions of the plan's layers that all ranks serve;
    ``layers_in_flight`` of the wave on offer that not all do. ``waiting`` ranks whose live map is not the wave's.
    ``map_version`` the smallest that ranks report.
    """

    state: State
    code: str
    sentence: str
    offer: str = ""
    wave: int = 0
    waves: int = 0
    refusals: Refusals = ()
    layers_live: tuple[int, ...] = ()
    layers_in_flight: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    map_version: int = 0

    @property
    def busy(self) -> bool:
        """True while no other plan may be offered."""
        return self.state in (State.MOVING, State.IN_DOUBT, State.WAVE_LIVE)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What desired and live say, reduced to what the table asks.

    ``switched``, ``waiting`` ranks that serve the wave's targets, and those that do not or are silent; ``mixed`` ranks with
    some of the wave's layers on target; ``stuck`` ranks that could not go on; ``lost`` ranks that serve neither base nor
    target; ``holding`` ranks that report staging or prepared for this offer; ``overdue`` its time and the grace are over.
    """

    offer: Offer | None
    plan_live: bool
    switched: tuple[int, ...]
    mixed: tuple[int, ...]
    waiting: tuple[int, ...]
    stuck: tuple[int, ...]
    lost: tuple[int, ...]
    holding: tuple[int, ...]
    refusals: Refusals
    overdue: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: the state, its code, when it holds, and how it is said."""

    state: State
    code: str
    holds: Callable[[Evidence], bool]
    sentence: Callable[[Evidence], str]


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def _refusal(evidence: Evidence) -> str:
    said = "; ".join(f"rank {rank} ({code}): {sentence}" for rank, code, sentence in evidence.refusals[:4])
    return f"refused, nobody switched: {said}"


def _only_expired(evidence: Evidence) -> bool:
    return bool(evidence.refusals) and all(code == "expired" for _, code, _ in evidence.refusals)


TABLE: tuple[Row, ...] = (
    Row(State.IDLE, "idle", lambda e: e.offer is None, lambda _: "nothing is on offer"),
    Row(
        State.UNVERIFIED,
        "apply_unverified",
        lambda e: bool(e.stuck),
        lambda e: (
            f"{_ranks(e.stuck)} stuck: what was read back is not what was asked for, or the group was left"
        ),
    ),
    Row(
        State.ALL_LIVE,
        "applied",
        lambda e: not e.waiting and e.plan_live,
        lambda _: "all ranks serve the plan",
    ),
    Row(
        State.WAVE_LIVE,
        "wave_live",
        lambda e: not e.waiting,
        lambda e: f"all ranks serve wave {e.offer.wave + 1} of {e.offer.waves}" if e.offer else "",
    ),
    Row(
        State.IN_DOUBT,
        "stalled",
        lambda e: bool(e.switched or e.mixed) and e.overdue,
        lambda e: (
            f"switched on {len(e.switched)} ranks, no live map from {_ranks(e.waiting)}: overdue, look at them"
        ),
    ),
    Row(
        State.IN_DOUBT,
        "in_doubt",
        lambda e: bool(e.switched or e.mixed),
        lambda e: f"switched on {len(e.switched)} ranks, waiting for the live map of {_ranks(e.waiting)}",
    ),
    Row(State.EXPIRED, "expired", _only_expired, _refusal),
    Row(State.REFUSED, "refused", lambda e: bool(e.refusals), _refusal),
    Row(
        State.REFUSED,
        "base_lost",
        lambda e: bool(e.lost),
        lambda e: (
            f"{_ranks(e.lost)} serve neither the offer's base nor its target; plan anew from the live map"
        ),
    ),
    Row(
        State.IN_DOUBT,
        "stalled",
        lambda e: bool(e.holding) and e.overdue,
        lambda e: (
            f"{_ranks(e.holding)} still hold an overdue offer, so the vote may have been taken: look at them"
        ),
    ),
    Row(State.EXPIRED, "expired", lambda e: e.overdue, lambda _: "no rank voted on the offer in its time"),
    Row(
        State.MOVING,
        "in_flight",
        lambda _: True,
        lambda e: f"wave {e.offer.wave + 1} of {e.offer.waves} is on offer" if e.offer else "",
    ),
)


def observe(facts: PoolFacts, desired: Desired, live: dict[int, LiveRecord], now_ms: int) -> MigrationStatus:
    """Where the migration stands; pure, so that any leader at any time finds the same. ``now_ms``: store time."""
    present = of_one_run(facts, live)
    evidence = _gather(facts, desired, present, now_ms)
    row = next(row for row in TABLE if row.holds(evidence))
    offer, sentence = evidence.offer, row.sentence(evidence)
    if desired.damaged:
        sentence += f"; unreadable in the store, taken as absent: {', '.join(desired.damaged)}"
    versions = [record.map_version for record in present.values()]
    status = MigrationStatus(row.state, row.code, sentence, map_version=min(versions, default=0))
    if offer is None:
        return status
    everywhere = len(present) == facts.ranks
    planned = desired.plan.changes if desired.plan else offer.changes
    return MigrationStatus(
        state=row.state,
        code=row.code,
        sentence=sentence,
        offer=offer.key,
        wave=offer.wave,
        waves=offer.waves,
        refusals=evidence.refusals,
        layers_live=tuple(c.layer for c in planned if everywhere and _serve(present, c)),
        layers_in_flight=tuple(c.layer for c in offer.changes if not (everywhere and _serve(present, c))),
        waiting=evidence.waiting,
        map_version=status.map_version,
    )


def _serve(records: dict[int, LiveRecord], change: LayerChange) -> bool:
    return all(record.digests[change.layer] == change.target_digest for record in records.values())


def _gather(facts: PoolFacts, desired: Desired, live: dict[int, LiveRecord], now_ms: int) -> Evidence:
    offer = desired.offer
    if offer is None or offer.pool != facts.pool or any(c.layer >= facts.layers for c in offer.changes):
        return Evidence(None, plan_live=False, overdue=False, refusals=(), **dict.fromkeys(_RANK_FIELDS, ()))
    places = {rank: _place(record, offer) for rank, record in live.items()}
    switched = tuple(sorted(rank for rank, place in places.items() if place == "target"))
    first = live.get(0)
    refusals = first.refusals if first and first.offer == offer.key and first.state == "refused" else ()
    limit_ms = desired.offered_ms + (offer.expires_after_s + GRACE_S) * 1000
    return Evidence(
        offer=offer,
        plan_live=_plan_live(facts, desired, live, offer),
        switched=switched,
        mixed=tuple(sorted(rank for rank, place in places.items() if place == "mixed")),
        waiting=tuple(rank for rank in range(facts.ranks) if rank not in switched),
        stuck=tuple(sorted(rank for rank, record in live.items() if record.state == "stuck")),
        lost=tuple(sorted(rank for rank, place in places.items() if place == "other")),
        holding=tuple(
            sorted(r for r, record in live.items() if record.offer == offer.key and record.state in _HOLDING)
        ),
        refusals=refusals,
        overdue=now_ms > limit_ms,
    )


_RANK_FIELDS = ("switched", "mixed", "waiting", "stuck", "lost", "holding")


def _plan_live(facts: PoolFacts, desired: Desired, live: dict[int, LiveRecord], offer: Offer) -> bool:
    if desired.plan is None:
        return offer.wave == offer.waves - 1
    return serves_plan(facts, desired.plan, live)


def serves_plan(facts: PoolFacts, plan: Plan, live: dict[int, LiveRecord]) -> bool:
    """Whether all ranks of the group report that they serve every layer of the plan."""
    return len(live) == facts.ranks and all(_serve(live, change) for change in plan.changes)


def _place(record: LiveRecord, offer: Offer) -> str:
    """Where one rank stands with the wave: base, target, mixed (some layers on target), or other."""
    moved = [c for c in offer.changes if c.base_digest != c.target_digest]
    if not moved:
        return "target" if record.offer == offer.key and record.state == "switched" else "base"
    on_target = sum(record.digests[c.layer] == c.target_digest for c in moved)
    on_base = sum(record.digests[c.layer] == c.base_digest for c in moved)
    if on_target == len(moved):
        return "target"
    if on_base == len(moved):
        return "base"
    return "mixed" if on_target else "other"
