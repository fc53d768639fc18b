"""Numbers of terms and of lives of the group, given anew without gaps where only their order counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eplb.protocol.check.world import Cache, Daemon, Group, Offer, Rank, Record, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Sign(NamedTuple):
    """Numbers in parts of a state.

    ``terms`` of offers, daemons, records and the store, ``live`` those of offers that can still be voted on, ``seen`` by ranks
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


def sign(parts: Sequence[Any]) -> Sign:
    """The numbers in some parts together."""
    offers: list[Offer] = []
    live: list[Offer | None] = []
    terms, seen, runs, fence = set[int](), set[int](), set[int](), 0
    for part in parts:
        match part:
            case Rank():
                seen.add(part.term)
                live.append(part.hand)
                offers += [*part.closed, *filter(None, (part.about,))]
            case Cache():
                seen.add(part.term)
                live.append(part.offer)
            case Store():
                fence = part.fence
                seen.add(part.before.term)
                live += [part.offer, part.before.offer]
                records = [record for record in (*part.records, *part.older) if record is not None]
                terms |= {record.term for record in records}
                runs |= {record.run for record in records}
                offers += [record.about for record in records if record.about is not None]
            case Daemon():
                terms.add(part.term)
                live.append(part.write.offer if part.write is not None else None)
            case Group():
                runs.add(part.run)
    known = [offer for offer in live if offer is not None]
    return Sign(
        terms=frozenset(terms | {offer.term for offer in (*offers, *known)}),
        live=frozenset(offer.term for offer in known),
        seen=frozenset(seen),
        runs=frozenset(runs | {offer.run for offer in (*offers, *known)}),
        fence=fence,
    )


def names(signs: Iterable[Sign], *, losses: bool) -> Names:
    """New numbers for a state of which the signs of all parts are given; ``losses``: the store may still be lost."""
    parts = list(signs)
    runs = _ordered(frozenset[int]().union(*(part.runs for part in parts)))
    seen = frozenset[int]().union(*(part.seen for part in parts))
    terms = frozenset[int]().union(*(part.terms for part in parts))
    fence = max(part.fence for part in parts)
    if losses or fence < max(terms | seen):
        return SAME if _same(runs) else Names((), runs, 0)
    low = min((fence, *(term for part in parts for term in part.live)))
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
    terms, runs = dict(given.terms), dict(given.runs)

    def term(number: int) -> int:
        return terms.get(number, number)

    def seen(number: int) -> int:
        return 0 if number <= given.low else term(number)

    def offer(old: Offer) -> Offer:
        return old._replace(term=term(old.term), run=runs.get(old.run, old.run))

    def cache(old: Cache) -> Cache:
        return Cache(old.offer and offer(old.offer), seen(old.term))

    match part:
        case Rank():
            return part._replace(
                about=part.about and offer(part.about),
                hand=part.hand and offer(part.hand),
                closed=frozenset(map(offer, part.closed)),
                term=seen(part.term),
            )
        case Cache():
            return cache(part)
        case Store():
            return part._replace(
                fence=term(part.fence),
                offer=part.offer and offer(part.offer),
                records=_records(part.records, offer, term, runs),
                older=_records(part.older, offer, term, runs),
                before=cache(part.before),
            )
        case Daemon():
            write = part.write and part.write._replace(offer=part.write.offer and offer(part.write.offer))
            return part._replace(term=term(part.term), write=write)
        case Group():
            return part._replace(run=runs[part.run])
    return part


def _records(
    records: tuple[Record | None, ...],
    offer: Callable[[Offer], Offer],
    term: Callable[[int], int],
    runs: dict[int, int],
) -> tuple[Record | None, ...]:
    return tuple(
        record
        and record._replace(
            run=runs.get(record.run, record.run),
            about=record.about and offer(record.about),
            term=term(record.term),
        )
        for record in records
    )
