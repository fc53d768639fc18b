"""What a daemon reads in one cycle, reduced to evidence as ``eplb.migration.status`` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eplb.protocol.facts import RankState
from eplb.protocol.lives import Told, ranks_of_run, serving_run, weights_in_doubt
from eplb.protocol.wave import WAITS_FOR, Act, ActFacts, Evidence, WaveState

if TYPE_CHECKING:
    from eplb.protocol.check.world import Control, Offer, Record, Row
    from eplb.protocol.refusals import Refusals


class Sight(NamedTuple):
    """What daemons wrote, the records that count, the members that they name, and the first if it has reported."""

    control: Control
    present: dict[int, Record]
    members: tuple[int, ...]
    first: int | None

    @classmethod
    def of(cls, control: Control, records: tuple[Record | None, ...], guards: frozenset[str]) -> Sight:
        """Read the store; ``records`` by rank."""
        known = {number: record for number, record in enumerate(records) if record is not None}
        run = serving_run(
            Told(record.run, record.members, record.members[0] == number) for number, record in known.items()
        )
        kept = ranks_of_run({number: record.run for number, record in known.items()}, run, guards=guards)
        present = {number: record for number, record in known.items() if number in kept}
        members = next((record.members for record in present.values()), ())
        first = members[0] if members and members[0] in present else None
        return cls(control, present, members, first)

    @property
    def head(self) -> Record | None:
        """The record that carries the map."""
        return None if self.first is None else self.present[self.first]

    def evidence(self) -> Evidence:
        """What the tables ask."""
        offer, members = self.control.offer, self.members
        if offer is None or offer.pool:
            return Evidence()
        places = {n: _place(record, offer) for n, record in self.present.items() if n in members}
        here = {n: self.present[n].state for n in places if self.present[n].about == offer}
        # A new leader offers a way back again before all have said what became of it under the old one.
        told = {n for n in places if _same_wave(self.present[n].about, offer)}
        return Evidence(
            on_offer=True,
            wave=offer.wave,
            waves=offer.waves,
            plan_live=len(places) == len(members) > 0 and self._plan_live(offer, tuple(places)),
            switched=tuple(n for n, place in places.items() if place == "target"),
            waiting=tuple(n for n in members if places.get(n) != "target") or (() if members else (0,)),
            stuck=tuple(
                n
                for n in places
                if (n in told or not offer.bases)
                and weights_in_doubt(self.present[n].state, self.present[n].codes)
            ),
            lost=tuple(n for n, place in places.items() if place == "other"),
            holding=tuple(n for n, state in here.items() if state is RankState.STAGING),
            committing=tuple(n for n, state in here.items() if state is RankState.COMMITTING),
            refusals=self._refusals(offer),
        )

    def _refusals(self, offer: Offer) -> Refusals:
        head = self.head
        if head is None or self.first is None or head.about != offer or head.state is not RankState.REFUSED:
            return ()
        return tuple((self.first, code, "") for code in sorted(head.codes))

    def _plan_live(self, offer: Offer, ranks: tuple[int, ...]) -> bool:
        plan = self.control.plan
        if plan is None:
            return offer.wave == offer.waves - 1
        return all(self.present[n].digests == plan.target for n in ranks)

    def claim(self, state: WaveState) -> tuple[int, int, Row] | None:
        """What the state says that all members serve: run, layer and row."""
        offer, head = self.control.offer, self.head
        if offer is None or head is None or state not in (WaveState.WAVE_LIVE, WaveState.ALL_LIVE):
            return None
        return head.run, offer.layer, offer.named

    def act_facts(self, act: Act, state: WaveState, *, base_is_live: bool) -> ActFacts:
        """What the guards of an act ask."""
        served = None if self.head is None else self.head.digests
        return ActFacts(
            state=state,
            due=WAITS_FOR.get(act, state),
            silent=tuple(n for n in self.members if n not in self.present) or (() if self.head else (0,)),
            other=tuple(n for n in self.members if n in self.present and self.present[n].digests != served),
            base_is_live=base_is_live,
        )

    def given_up(self) -> Offer | None:
        """The offer, if a member is stuck with weights in doubt, so that another plan may take its place."""
        present = [self.present[n] for n in self.members if n in self.present]
        return self.control.offer if any(map(_in_doubt, present)) else None

    def rule_broken(self, act: Act) -> str:
        """The rule that an act breaks by what its daemon itself has read, "" = none."""
        present = [self.present[n] for n in self.members if n in self.present]
        rules = {
            "took a record of an earlier life of the group for a rank's word in this one": act
            in (Act.BEGIN, Act.OFFER_NEXT, Act.CLOSE)
            and len({record.run for record in present}) > 1,
            "took off, or offered again, a wave that it saw switched on some ranks": act
            in (Act.WITHDRAW, Act.OFFER_AGAIN)
            and self._half_switched(present),
            "called a plan applied that not all ranks serve": act is Act.CLOSE and not self._whole(present),
        }
        return next((name for name, broken in rules.items() if broken), "")

    def _half_switched(self, present: list[Record]) -> bool:
        offer = self.control.offer
        if offer is None or offer.flaw or any(map(_in_doubt, present)):
            return False
        return 0 < sum(_switched(record, offer) for record in present) < len(self.members)

    def _whole(self, present: list[Record]) -> bool:
        offer, plan = self.control.offer, self.control.plan
        if offer is None or offer.flaw:
            return True
        return plan is not None and [record.digests for record in present] == [plan.target] * len(
            self.members
        )


def _same_wave(about: Offer | None, offer: Offer) -> bool:
    return about is not None and about._replace(term=offer.term) == offer


def _in_doubt(record: Record) -> bool:
    return weights_in_doubt(record.state, record.codes)


def _place(record: Record, offer: Offer) -> str:
    if _switched(record, offer):
        return "target"
    return "base" if record.digests[offer.layer] in (offer.base, *offer.bases) else "other"


def _switched(record: Record, offer: Offer) -> bool:
    """Whether a rank serves what is asked for; a row that it may have served before tells nothing unless the rank says so."""
    if record.digests[offer.layer] != offer.named:
        return False
    said = record.about == offer and record.state is RankState.SWITCHED
    return said or offer.named not in (offer.base, *offer.bases)
