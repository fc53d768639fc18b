"""What of the parts of a state can still matter: functions on parts in full, see :mod:`eplb.protocol.check.alike`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eplb.protocol.check.world import Cache, Control, Daemon, Live, Record
from eplb.protocol.facts import RankState
from eplb.protocol.lives import weights_in_doubt

if TYPE_CHECKING:
    from eplb.protocol.check.world import Left, Offer, Plan, Row, Write

LOSSES, STRAYS, PLANS, ROWS = 1, 2, 4, 8
"""What may still come, as bits; ``ROWS``: a plan can lead back to any row."""
UNKNOWN = ()
"""A row that no plan names."""


class View(NamedTuple):
    """Offers at hand, numbers of plans at hand, and the lowest term under which one of them can be made again.

    ``stored``: offers that are in the store or about to be written; ``read``: those that a cache has, or a stale read brings.
    """

    stored: frozenset[Offer]
    read: frozenset[Offer]
    plans: frozenset[int]
    floor: int

    def may_be_stored(self, offer: Offer | None) -> bool:
        """Whether an offer can still be what daemons find in the store."""
        if offer is None:
            return False
        return offer in self.stored or (offer.plan in self.plans and offer.term >= self.floor)

    def may_be_asked(self, offer: Offer) -> bool:
        """Whether an offer can still come before ranks."""
        return offer in self.read or self.may_be_stored(offer)


class Hearing(NamedTuple):
    """What a record matters for: ``silent`` daemons ask for terms only; ``rows`` that they tell from all others, None = all."""

    view: View
    fence: int
    silent: bool
    rows: frozenset[Row] | None


def may_come(left: Left) -> int:
    """What may still come."""
    return LOSSES * bool(left.losses) | STRAYS * bool(left.strays) | PLANS * bool(left.plans)


def led(daemon: Daemon, number: int, control: Control, may_come: int) -> Daemon:
    """A daemon without what nobody asks; one without lease and write is as one that begins."""
    write = daemon.write
    if write is None and control.holder != number + 1:
        return Daemon()
    if write is not None and write.offer is None and not may_come & STRAYS:
        write = write._replace(plan=None)
    return daemon._replace(write=write, idea=daemon.idea if may_come & PLANS else None)


def _written(control: Control, daemons: list[Daemon]) -> tuple[list[Offer], list[Plan]]:
    """Offers and plans that are in the store or about to be written."""
    written: list[Control | Write] = [
        control,
        *(daemon.write for daemon in daemons if daemon.write is not None),
    ]
    offers = [found.offer for found in written if found.offer is not None]
    return offers, [found.plan for found in written if found.plan is not None]


def view(cache: Cache, control: Control, daemons: list[Daemon], may_come: int) -> View:
    """Offers and plans at hand."""
    stored, plans = _written(control, daemons)
    cached = [cache.offer, control.before and control.before.offer]
    return View(
        frozenset(stored),
        frozenset(offer for offer in cached if offer is not None),
        frozenset(plan.number for plan in plans),
        0 if may_come & LOSSES else control.fence,
    )


def read(cache: Cache, first_term: int) -> Cache:
    """A cache, or what a stale read would bring, without a term that the first rank is at or above."""
    return cache if cache.term > first_term else cache._replace(term=0)


def twin(control: Control) -> Control:
    """The same with the lease held by the other of two daemons."""
    return control._replace(holder=3 - control.holder if control.holder else 0)


def _rows(control: Control, daemons: list[Daemon]) -> frozenset[Row]:
    """Rows that a plan or an offer at hand names: without another plan, daemons take all others for stale."""
    offers, plans = _written(control, daemons)
    rows = [row for plan in plans for row in (*plan.base, *plan.target)]
    rows += [row for offer in offers for row in (offer.base, offer.named, offer.target, *offer.bases)]
    return frozenset(rows)


def asked(found: Live, offer: Offer | None) -> Live:
    """A record without what a daemon that reads this offer does not ask."""
    record = found.record
    if record is None:
        return Live()
    record = record._replace(term=0)
    about = record.about
    same = about is not None and offer is not None and about._replace(term=offer.term) == offer
    if same or weights_in_doubt(record.state, record.codes):
        return Live(record)
    return Live(record._replace(state=RankState.SERVING, about=None, codes=frozenset()))


def live(found: Live, hearing: Hearing) -> Live:
    """Records without what no daemon asks."""
    record, older = (each and _heard(each, hearing) for each in found)
    return Live(record, older if older != record else None)


def _heard(record: Record, hearing: Hearing) -> Record | None:
    if record.term <= hearing.fence:
        record = record._replace(term=0)
    if hearing.silent:
        return (
            Record(0, (-1,), RankState.SERVING, None, frozenset(), (), record.term) if record.term else None
        )
    if hearing.rows is not None:
        record = record._replace(
            digests=tuple(row if row in hearing.rows else UNKNOWN for row in record.digests)
        )
    in_doubt = weights_in_doubt(record.state, record.codes)
    stuck = record.state is RankState.STUCK
    if in_doubt or (not stuck and (record.about is None or hearing.view.may_be_stored(record.about))):
        return record
    return record._replace(state=RankState.SERVING, about=None, codes=frozenset())


def rest(
    cache: Cache, control: Control, daemons: list[Daemon], first_term: int, may_come: int
) -> tuple[Cache, Control, list[Daemon], View, Hearing]:
    """All but ranks and records, and what of these matters; ``first_term`` that the first rank has seen."""
    if control.offer is None and not may_come & STRAYS:
        control = control._replace(plan=None)
    daemons = [led(daemon, number, control, may_come) for number, daemon in enumerate(daemons)]
    at_hand = view(cache, control, daemons, may_come)
    # Without an offer, a write of one, a plan to make or a stray, daemons look at nothing but terms.
    silent = not (
        may_come & (PLANS | STRAYS) or control.offer or any(d.write and d.write.offer for d in daemons)
    )
    every = may_come & (PLANS | STRAYS | ROWS) or any(daemon.idea is not None for daemon in daemons)
    hearing = Hearing(at_hand, control.fence, silent, None if every else _rows(control, daemons))
    if control.before is not None:
        control = control._replace(before=read(control.before, first_term))
    return read(cache, first_term), control, daemons, at_hand, hearing
