"""One state for all that differ in nothing that a later step or rule could ask.

Each reduction keeps what can follow: a state and its representative allow the same steps, up to the same reduction.

* Daemons are alike. One without lease and without a write can only begin anew, as one that has just started.
* Without messages to spend, nothing that was overwritten in the store is read again.
* An answer to an offer, and a record about it, matter only while the offer can come: it is in the store, in a cache or about
  to be written, or a plan that is there could make it again under a term that is still granted. A new life of the group forgets
  the answers of the one before: whoever switches such an offer breaks the rule on offers of another life.
* A plan without an offer is never looked at: the next plan replaces it.
* While nothing can be offered any more, daemons look at terms only.
* A rank's term in the store matters only above the term that the store has granted; a term in the cache only above rank 0's.
* Lives of the group are compared for order and equality, and a new one is above all: they are numbered anew, without gaps.
  So are terms, when the store cannot be lost any more and has granted the highest: a term of a rank that no offer at hand is
  below counts as none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eplb.protocol.check.rename import SAME, names, renamed, sign
from eplb.protocol.check.world import Cache, Daemon, Record
from eplb.protocol.facts import Profile, RankState

if TYPE_CHECKING:
    from eplb.protocol.check.parts import Parts
    from eplb.protocol.check.ranks import Ranks
    from eplb.protocol.check.world import Bounds, Left, Offer, Rank, Shape, Store

Key = tuple[int, ...]


class _View(NamedTuple):
    """Offers at hand, numbers of plans at hand, and the lowest term under which one of them can be made again."""

    offers: frozenset[Offer]
    plans: frozenset[int]
    floor: int

    def may_come(self, offer: Offer | None) -> bool:
        """Whether an offer can still come before ranks or into the store."""
        if offer is None:
            return False
        return offer in self.offers or (offer.plan in self.plans and offer.term >= self.floor)


class Alike:
    """Representatives of states, worked out once for the parts that each reduction looks at."""

    def __init__(self, bounds: Bounds, shape: Shape, ranks: Ranks, parts: Parts) -> None:
        self.bounds, self.shape, self.size = bounds, shape, bounds.ranks
        self.first_daemon = self.size + 2
        self.group = self.first_daemon + bounds.daemons
        self._ranks, self._parts = ranks, parts
        self._rests: dict[Key, tuple[Key, int]] = {}
        self._reduced: dict[Key, int] = {}
        self._terms: dict[int, int] = {}
        self._kinds: dict[int, int] = {}
        self._signs: dict[tuple[object, ...], int] = {}
        self._names: dict[Key, int] = {}
        self._renamed: dict[tuple[int, int], int] = {}
        self._twins: dict[int, int] = {}

    def of(self, key: list[int]) -> Key:
        """The representative of a state given as keys of its parts."""
        size, reduced, left = self.size, self._reduced, key[-1]
        first = key[self._parts[key[self.group]].members[0]]
        kind = self._kind(left)
        concerned = (*key[size:-1], self._term(first), kind)
        found = self._rests.get(concerned)
        if found is None:
            found = self._rests[concerned] = self._rest(key[size:], self._parts[first].term)
        rest, view = found
        now = []
        for number in range(size):
            asked = (key[number], number, rest[self.group - size], view)
            rank = reduced.get(asked)
            if rank is None:
                rank = reduced[asked] = self._rank(key[number], number, rest[self.group - size], view)
            now.append(rank)
        now.extend(rest)
        if not self.bounds.strays:
            now = self._numbered(now, kind)
        now.append(left)
        return self._daemons_in_order(now)

    def _kind(self, left_key: int) -> int:
        """A number for what is left as far as a reduction asks; 1 = the store may still be lost."""
        found = self._kinds.get(left_key)
        if found is None:
            left: Left = self._parts[left_key]
            asked = (left.losses, left.messages, left.strays, left.plans)
            found = self._kinds[left_key] = sum((number > 0) << bit for bit, number in enumerate(asked))
        return found

    def _term(self, rank: int) -> int:
        found = self._terms.get(rank)
        if found is None:
            found = self._terms[rank] = self._parts[rank].term
        return found

    # All but the ranks.

    def _rest(self, keys: list[int], first_term: int) -> tuple[Key, int]:
        parts = [self._parts[key] for key in keys]
        cache, store, *daemons, group, left = parts
        store = self._without_past(store, left)
        daemons = [self._daemon(daemon, n, store, left) for n, daemon in enumerate(daemons)]
        view = self._view(cache, store, daemons, left)
        # Without an offer, a write of one, a plan to make or a stray, daemons look at nothing but terms.
        silent = not (
            left.plans or left.strays or store.offer or any(d.write and d.write.offer for d in daemons)
        )
        store = store._replace(
            records=tuple(record and heard(record, store.fence, view, silent) for record in store.records),
            older=tuple(record and heard(record, store.fence, view, silent) for record in store.older),
            before=_read(store.before, first_term),
        )
        store = store._replace(
            older=tuple(
                None if old == new else old for old, new in zip(store.older, store.records, strict=True)
            )
        )
        now = (_read(cache, first_term), store, *daemons, group)
        return tuple(self._parts.key(part) for part in now), self._parts.key(view)

    def _without_past(self, store: Store, left: Left) -> Store:
        if not left.messages:
            store = store._replace(before=Cache(), older=(None,) * self.size)
        return store._replace(plan=None) if store.offer is None and not left.strays else store

    @staticmethod
    def _daemon(daemon: Daemon, number: int, store: Store, left: Left) -> Daemon:
        write = daemon.write
        if write is None and store.holder != number + 1:
            return Daemon()
        if write is not None and write.offer is None and not left.strays:
            write = write._replace(plan=None)
        return daemon._replace(write=write, idea=daemon.idea if left.plans else None)

    @staticmethod
    def _view(cache: Cache, store: Store, daemons: list[Daemon], left: Left) -> _View:
        writes = [daemon.write for daemon in daemons if daemon.write is not None]
        offers = [cache.offer, store.offer, store.before.offer, *(write.offer for write in writes)]
        plans = [store.plan, *(write.plan for write in writes)]
        return _View(
            frozenset(offer for offer in offers if offer is not None),
            frozenset(plan.number for plan in plans if plan is not None),
            0 if left.losses else store.fence,
        )

    # Ranks.

    def _rank(self, key: int, number: int, group_key: int, view_key: int) -> int:
        view, group = self._parts[view_key], self._parts[group_key]
        rank: Rank = self._ranks.plain(self._parts[key], number, group)
        if rank.state is RankState.REFUSED and not view.may_come(rank.about):
            rank = rank._replace(state=RankState.SERVING, about=None, codes=frozenset())
        served = rank.served
        if (
            not self.bounds.strays and self.bounds.profile is Profile.STAGED
        ):  # daemons claim the plan's targets only
            served = frozenset((layer, row) for layer, row in served if row == self.shape.target)
        closed = frozenset(offer for offer in rank.closed if view.may_come(offer))
        return self._parts.key(rank._replace(closed=closed, served=served))

    # Numbers of terms and lives.

    def _numbered(self, now: list[int], kind: int) -> list[int]:
        signs = [self._sign((key,)) for key in now[: self.size]]
        signs.append(self._sign(tuple(now[self.size :])))
        concerned = (*signs, kind & 1)
        found = self._names.get(concerned)
        if found is None:
            given = names([self._parts[key] for key in signs], losses=bool(kind & 1))
            found = self._names[concerned] = self._parts.key(given)
        if self._parts[found] == SAME:
            return now
        return [self._rename(key, found) for key in now]

    def _sign(self, keys: Key) -> int:
        found = self._signs.get(keys)
        if found is None:
            found = self._signs[keys] = self._parts.key(sign([self._parts[key] for key in keys]))
        return found

    def _rename(self, key: int, names_key: int) -> int:
        found = self._renamed.get((key, names_key))
        if found is None:
            after = renamed(self._parts[key], self._parts[names_key])
            found = self._renamed[key, names_key] = self._parts.key(after)
        return found

    def _daemons_in_order(self, now: list[int]) -> Key:
        first = self.first_daemon
        if self.bounds.daemons == 2 and now[first] > now[first + 1]:
            now[first], now[first + 1] = now[first + 1], now[first]
            now[first - 1] = self._twin(now[first - 1])
        return tuple(now)

    def _twin(self, key: int) -> int:
        found = self._twins.get(key)
        if found is None:
            store: Store = self._parts[key]
            holder = 3 - store.holder if store.holder else 0
            found = self._twins[key] = self._parts.key(store._replace(holder=holder))
        return found


def heard(record: Record, fence: int, view: _View, silent: bool) -> Record | None:
    """A record without what no daemon asks; ``silent``: all daemons ask for its term only."""
    if record.term <= fence:
        record = record._replace(term=0)
    if silent:
        return (
            Record(0, (-1,), RankState.SERVING, None, frozenset(), (), record.term) if record.term else None
        )
    if record.about is None or record.state is RankState.STUCK or view.may_come(record.about):
        return record
    return record._replace(state=RankState.SERVING, about=None, codes=frozenset())


def _read(cache: Cache, first_term: int) -> Cache:
    return cache._replace(term=0) if cache.term <= first_term else cache
