"""Where a migration stands, computed afresh each time from what is desired and what ranks report: nothing is remembered.

This module reads the evidence out of records; what it means is decided by ``eplb.protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.migration.desired import of_one_run
from eplb.migration.membership import first_of, members_of
from eplb.migration.plan import last_changes, plan_is_live
from eplb.protocol import ALL_GUARDS, BUSY, Evidence, observe_wave, weights_in_doubt
from eplb.protocol import WaveState as State

if TYPE_CHECKING:
    from collectors.facts import PoolFacts
    from eplb.agent.refusal import Refusals
    from eplb.agent.wire import LayerChange, LiveRecord, Offer
    from eplb.migration.desired import Desired
    from eplb.migration.plan import Plan

__all__ = ["MigrationStatus", "State", "observe", "serves_plan"]

GRACE_S = 10.0
"""Ranks count an offer's time from when they first see it, and report every 5 s."""

_HOLDING = frozenset({"staging", "prepared"})


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
        return self.state in BUSY


def observe(
    facts: PoolFacts,
    desired: Desired,
    live: dict[int, LiveRecord],
    now_ms: int,
    *,
    guards: frozenset[str] = ALL_GUARDS,
) -> MigrationStatus:
    """Where the migration stands; pure, so that any leader at any time finds the same. ``now_ms``: store time."""
    present = of_one_run(facts, live, guards=guards)
    offer = _offer_of(facts, desired)
    evidence = Evidence() if offer is None else _gather(facts, desired, offer, present, now_ms)
    row = observe_wave(evidence)
    sentence = row.sentence(evidence)
    if desired.damaged:
        sentence += f"; unreadable in the store, taken as absent: {', '.join(desired.damaged)}"
    versions = [record.map_version for record in present.values()]
    status = MigrationStatus(row.state, row.code, sentence, map_version=min(versions, default=0))
    if offer is None:
        return status
    everywhere = _all_told(facts, present)
    planned = last_changes(desired.plan) if desired.plan else offer.changes
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


def _all_told(facts: PoolFacts, present: dict[int, LiveRecord]) -> bool:
    return set(members_of(facts, present)) <= set(present)


def in_doubt_of_weights(record: LiveRecord) -> bool:
    """Whether a rank is stuck with weights that failed their read-back; one that only lost its group waits for it to form again."""
    codes = {code for rank, code, _ in record.refusals if rank == record.rank}
    return weights_in_doubt(record.state, codes)


def _serve(records: dict[int, LiveRecord], change: LayerChange) -> bool:
    return all(record.digests[change.layer] == change.target_digest for record in records.values())


def _offer_of(facts: PoolFacts, desired: Desired) -> Offer | None:
    """What is on offer, if it is for this pool."""
    offer = desired.offer
    if offer is None or offer.pool != facts.pool or any(c.layer >= facts.layers for c in offer.changes):
        return None
    return offer


def _gather(
    facts: PoolFacts, desired: Desired, offer: Offer, live: dict[int, LiveRecord], now_ms: int
) -> Evidence:
    places = {rank: _place(record, offer) for rank, record in live.items()}
    switched = tuple(sorted(rank for rank, place in places.items() if place == "target"))
    first = first_of(facts, live)
    refusals = first.refusals if first and first.offer == offer.key and first.state == "refused" else ()
    limit_ms = desired.offered_ms + (offer.expires_after_s + GRACE_S) * 1000
    here = {rank: record.state for rank, record in live.items() if record.offer == offer.key}
    # A new leader offers a way back again before all have said what became of it under the old one.
    told = {rank for rank, record in live.items() if offer.same_wave(record.offer)}
    stuck = {
        rank
        for rank, record in live.items()
        if in_doubt_of_weights(record) and (rank in told or not offer.puts_back)
    }
    # One rank was stuck by it, so that all have agreed to it: who says nothing of it has not reported yet.
    untold = set(live) - told if stuck & told else set()
    return Evidence(
        on_offer=True,
        wave=offer.wave,
        waves=offer.waves,
        plan_live=_plan_live(facts, desired, live, offer),
        switched=switched,
        mixed=tuple(sorted(rank for rank, place in places.items() if place == "mixed")),
        waiting=tuple(rank for rank in members_of(facts, live) if rank not in switched),
        stuck=tuple(sorted(stuck)),
        lost=tuple(sorted(rank for rank, place in places.items() if place == "other")),
        holding=tuple(sorted(rank for rank, state in here.items() if state in _HOLDING)),
        committing=tuple(sorted(untold | {rank for rank, state in here.items() if state == "committing"})),
        refusals=refusals,
        overdue=now_ms > limit_ms,
    )


def _plan_live(facts: PoolFacts, desired: Desired, live: dict[int, LiveRecord], offer: Offer) -> bool:
    if desired.plan is None:
        return offer.wave == offer.waves - 1
    return serves_plan(facts, desired.plan, live)


def serves_plan(facts: PoolFacts, plan: Plan, live: dict[int, LiveRecord]) -> bool:
    """Whether all ranks of the group report that they serve every layer of the plan."""
    return _all_told(facts, live) and all(plan_is_live(plan, record.digests) for record in live.values())


def _place(record: LiveRecord, offer: Offer) -> str:
    """Where one rank stands with the wave: base, target, mixed (some layers on target), or other."""
    served = [(change, record.digests[change.layer]) for change in offer.changes]
    arrived = {change.layer for change, digest in served if digest == change.target_digest}
    left = {change.layer for change, digest in served if digest not in (change.base_digest, *change.bases)}
    if len(arrived) == len(served) and (left or (record.offer == offer.key and record.state == "switched")):
        return "target"
    if not left:
        return "base"
    return "mixed" if arrived & left else "other"
