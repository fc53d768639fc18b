"""Numbers of terms and of lives of the group, given anew without gaps where only their order counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eplb.protocol.check.world import Cache, Control, Daemon, Group, Live, Offer, Rank, Record, Write

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sign(NamedTuple):
    """Numbers in a part of a state.

    ``terms`` of offers, daemons and records, ``live`` those of offers that can still be voted on, ``seen`` by ranks
    and caches; ``runs``; ``fence`` the term that the store has granted.
    """

    terms: frozenset[int]
    live: frozenset[int]
    seen: frozenset[int]
    runs: frozenset[int]
    fence: int


class Names(NamedTuple):
    """New numbers as (old, new); ``low``: a term that a rank has seen counts as none up to here."""

    terms: tuple[tuple[int, int], ...]
    runs: tuple[tuple[int, int], ...]
    low: int


SAME = Names((), (), 0)
"""Nothing gets another number."""


def sign(part: Any) -> Sign:
    """The numbers in one part."""
    offers: list[Offer | None] = []
    live: list[Offer | None] = []
    terms, seen, runs, fence = set[int](), set[int](), set[int](), 0
    match part:
        case Rank():
            seen.add(part.term)
            live.append(part.hand)
            offers += [*part.closed, part.about]
        case Cache():
            seen.add(part.term)
            live.append(part.offer)
        case Control():
            fence = part.fence
            live.append(part.offer)
            if part.before is not None:
                seen.add(part.before.term)
                live.append(part.before.offer)
        case Live():
            records = [record for record in part if record is not None]
            terms |= {record.term for record in records}
            runs |= {record.run for record in records}
            offers += [record.about for record in records]
        case Daemon():
            terms.add(part.term)
            if part.write is not None:
                live.append(part.write.offer)
                offers.append(part.write.over)
        case Group():
            runs.add(part.run)
    at_hand = [offer for offer in live if offer is not None]
    known = [offer for offer in (*offers, *at_hand) if offer is not None]
    return Sign(
        terms=frozenset(terms | {offer.term for offer in known}),
        live=frozenset(offer.term for offer in at_hand),
        seen=frozenset(seen),
        runs=frozenset(runs | {offer.run for offer in known}),
        fence=fence,
    )


def joined(signs: Iterable[Sign]) -> Sign:
    """The numbers in some parts together."""
    parts = list(signs)
    union = frozenset[int]().union
    return Sign(
        terms=union(*(part.terms for part in parts)),
        live=union(*(part.live for part in parts)),
        seen=union(*(part.seen for part in parts)),
        runs=union(*(part.runs for part in parts)),
        fence=max(part.fence for part in parts),
    )


def names(signs: Iterable[Sign], *, losses: bool) -> Names:
    """New numbers for a state of which the signs of all parts are given; ``losses``: the store may still be lost."""
    terms, live, seen, runs_found, fence = joined(signs)
    runs = _ordered(runs_found)
    if losses or fence < max(terms | seen):
        return SAME if _same(runs) else Names((), runs, 0)
    low = min((fence, *live))
    high = _ordered(terms | {fence} | {term for term in seen if term > low})
    if _same(runs) and _same(high) and not any(0 < term <= low for term in seen):
        return SAME
    return Names(high, runs, low)


def _ordered(numbers: frozenset[int]) -> tuple[tuple[int, int], ...]:
    return tuple((old, new) for new, old in enumerate(sorted(numbers - {0}), start=1))


def _same(pairs: tuple[tuple[int, int], ...]) -> bool:
    return all(old == new for old, new in pairs)


def renamed(part: Any, given: Names) -> Any:
    """A part of a state under new numbers."""
    return _Renaming(given).part(part)


class _Renaming:
    """New numbers, applied."""

    def __init__(self, given: Names) -> None:
        self._terms, self._runs, self._low = dict(given.terms), dict(given.runs), given.low

    def part(self, part: Any) -> Any:
        after: Any
        match part:
            case Rank():
                after = self._rank(part)
            case Cache():
                after = self._cache(part)
            case Control():
                after = part._replace(
                    fence=self._term(part.fence),
                    offer=self._offer(part.offer),
                    before=part.before and self._cache(part.before),
                )
            case Live():
                after = Live(*map(self._record, part))
            case Daemon():
                after = part._replace(term=self._term(part.term), write=self._write(part.write))
            case Group():
                after = part._replace(run=self._runs[part.run])
            case _:
                after = part
        return after

    def _term(self, number: int) -> int:
        return self._terms.get(number, number)

    def _seen(self, number: int) -> int:
        return 0 if number <= self._low else self._term(number)

    def _named(self, old: Offer) -> Offer:
        return old._replace(term=self._term(old.term), run=self._runs.get(old.run, old.run))

    def _offer(self, old: Offer | None) -> Offer | None:
        return old and self._named(old)

    def _cache(self, old: Cache) -> Cache:
        return Cache(self._offer(old.offer), self._seen(old.term))

    def _rank(self, old: Rank) -> Rank:
        return old._replace(
            about=self._offer(old.about),
            hand=self._offer(old.hand),
            closed=frozenset(map(self._named, old.closed)),
            term=self._seen(old.term),
        )

    def _write(self, old: Write | None) -> Write | None:
        return old and old._replace(offer=self._offer(old.offer), over=self._offer(old.over))

    def _record(self, old: Record | None) -> Record | None:
        return old and old._replace(
            run=self._runs.get(old.run, old.run), about=self._offer(old.about), term=self._term(old.term)
        )
