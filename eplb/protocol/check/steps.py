"""All steps from a state: of ranks, daemons, messages and faults, worked out once for the parts that each concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eplb.protocol.check.commits import Commits
from eplb.protocol.check.daemons import GONE, Daemons
from eplb.protocol.check.faults import strays
from eplb.protocol.check.lives import reforms
from eplb.protocol.check.ranks import Ranks, crashed
from eplb.protocol.check.rules import broken_rule
from eplb.protocol.check.transfers import Transfers
from eplb.protocol.check.world import Cache, Daemon, Left, Store, shape_of, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from eplb.protocol.check.world import Bounds, Group, Rank

Key = tuple[int, ...]


class Step(NamedTuple):
    """One step: its name, where it leads, whether it comes without a fault and without being asked for, what rule it broke."""

    name: str
    key: Key
    free: bool
    wrong: str = ""


class _Change(NamedTuple):
    """What a step does to parts: new keys by place in the state."""

    name: str
    parts: tuple[tuple[int, int], ...]
    free: bool = True
    wrong: str = ""
    claim: tuple[int, int, object] | None = None


class Steps:
    """Successors of states. A state is the keys of its ranks, cache, store, daemons, group and what is left, in this order."""

    def __init__(self, bounds: Bounds, guards: frozenset[str]) -> None:
        self.bounds, self.shape, self.size = bounds, shape_of(bounds), bounds.ranks
        self._ranks = Ranks(self.shape, guards, bounds.profile)
        self._daemons = Daemons(self.shape, bounds, guards)
        self._commits = Commits(self._ranks)
        self._transfers = Transfers(guards)
        self._parts: list[Any] = []
        self._ids: dict[type, dict[Any, int]] = {}
        self._memo: dict[tuple[object, ...], tuple[_Change, ...]] = {}
        self._rules: dict[Key, str] = {}
        self._twins: dict[int, int] = {}
        self._reduced: dict[tuple[object, ...], int] = {}
        self.cache, self.store = self.size, self.size + 1
        self.first_daemon = self.size + 2
        self.group, self.left = self.first_daemon + bounds.daemons, self.first_daemon + bounds.daemons + 1

    def start(self) -> Key:
        """The first state: all ranks have reported, and one daemon leads."""
        state = start(self.bounds)
        records = tuple(self._ranks.record(rank, n, state.group) for n, rank in enumerate(state.ranks))
        daemons = (*state.daemons[:-1], Daemon(term=1))
        store = state.store._replace(records=records, fence=1, holder=len(daemons))
        state = state._replace(store=store, daemons=daemons)
        parts = (*state.ranks, state.cache, state.store, *state.daemons, state.group, state.left)
        return tuple(self._key(part) for part in parts)

    def part(self, key: int) -> Any:
        """The part with this key."""
        return self._parts[key]

    def rule_broken(self, state: Key) -> str:
        """The rule that a state breaks, "" = none."""
        concerned = (*state[: self.size], state[self.group])
        found = self._rules.get(concerned)
        if found is None:
            ranks = tuple(self._parts[key] for key in state[: self.size])
            group = self._parts[state[self.group]]
            found = self._rules[concerned] = broken_rule(self.shape, ranks, group, self.bounds.profile)
        return found

    def ended(self, state: Key) -> bool:
        """Whether nothing is on offer to this pool, being written, in hand or lost."""
        store: Store = self._parts[state[self.store]]
        ranks = (self._parts[key] for key in state[: self.size])
        daemons = (self._parts[key] for key in state[self.first_daemon : self.group])
        return (
            (store.offer is None or store.offer.pool != 0)
            and all(daemon.write is None for daemon in daemons)
            and all(rank.alive and not rank.left and rank.hand is None for rank in ranks)
        )

    def after(self, state: Key) -> Iterator[Step]:
        """Every step from a state."""
        for change in self._changes(state):
            key = list(state)
            for place, part in change.parts:
                key[place] = part
            wrong = change.wrong
            if change.claim is not None and not wrong:
                wrong = self._false_claim(state, change.claim)
            yield Step(change.name, self._canonical(key), change.free, wrong)

    # Parts.

    def _key(self, part: object) -> int:
        known = self._ids.setdefault(type(part), {})
        found = known.get(part)
        if found is None:
            found = known[part] = len(self._parts)
            self._parts.append(part)
        return found

    def _canonical(self, key: list[int]) -> Key:
        """One state for all that differ in nothing which a later step could ask.

        Daemons are alike. A daemon without lease and without a write can only begin anew. Without stale reads there is no
        past. What a rank has answered matters for offers that may still come.
        """
        if not self._parts[key[self.left]].messages:
            key[self.store] = self._without_past(key[self.store])
        first, group = self.first_daemon, key[self.group]
        for place in range(first, self.group):
            key[place] = self._deposed(key[place], place - first, key[self.store])
        if self.bounds.daemons == 2 and key[first] > key[first + 1]:
            key[first], key[first + 1] = key[first + 1], key[first]
            key[self.store] = self._twin(key[self.store])
        open_offers = self._open(tuple(key[self.cache : self.group]))
        for number in range(self.size):
            key[number] = self._plain(key[number], number, group, open_offers)
        return tuple(key)

    def _deposed(self, key: int, number: int, store_key: int) -> int:
        concerned = ("deposed", key, number, store_key)
        found = self._reduced.get(concerned)
        if found is None:
            daemon, store = self._parts[key], self._parts[store_key]
            deposed = daemon.alive and daemon.write is None and store.holder != number + 1
            found = self._reduced[concerned] = self._key(Daemon()) if deposed else key
        return found

    def _open(self, keys: Key) -> int:
        concerned = ("open", keys)
        found = self._reduced.get(concerned)
        if found is None:
            cache, store, *daemons = (self._parts[key] for key in keys)
            offers = [
                cache.offer,
                store.offer,
                store.before.offer,
                *(d.write.offer for d in daemons if d.write),
            ]
            found = self._reduced[concerned] = self._key(frozenset(offers))
        return found

    def _plain(self, key: int, number: int, group_key: int, open_key: int) -> int:
        concerned = ("plain", key, number, group_key, open_key)
        found = self._reduced.get(concerned)
        if found is None:
            rank = self._ranks.plain(self._parts[key], number, self._parts[group_key])
            rank = rank._replace(closed=rank.closed & self._parts[open_key])
            found = self._reduced[concerned] = self._key(rank)
        return found

    def _without_past(self, key: int) -> int:
        store: Store = self._parts[key]
        if store.before == Cache() and not any(store.older):
            return key
        return self._key(store._replace(before=Cache(), older=(None,) * self.size))

    def _twin(self, key: int) -> int:
        found = self._twins.get(key)
        if found is None:
            store: Store = self._parts[key]
            holder = 3 - store.holder if store.holder in (1, 2) else store.holder
            found = self._twins[key] = self._key(store._replace(holder=holder))
        return found

    def _false_claim(self, state: Key, claim: tuple[int, int, object]) -> str:
        group: Group = self._parts[state[self.group]]
        run, layer, row = claim
        if run != group.run:
            return ""
        members: Iterable[Rank] = (self._parts[state[number]] for number in group.members)
        if all((layer, row) in rank.served for rank in members):
            return ""
        return "took a wave for live that not all ranks have served"

    # Steps by what they look at.

    def _changes(self, state: Key) -> Iterator[_Change]:
        yield from self._remembered(
            ("ranks", *state[: self.size], state[self.cache], state[self.group], state[self.left]),
            self._group_steps,
        )
        for number in range(self.size):
            looks_at = (state[number], state[self.store], state[self.group], state[self.left])
            yield from self._remembered(("rank", number, *looks_at), self._rank_steps)
        yield from self._remembered(
            ("store", state[self.cache], state[self.store], state[self.left]), self._store_steps
        )
        if self._parts[state[self.left]].strays:
            first = state[self._parts[state[self.group]].members[0]]
            looks_at = (first, state[self.store], state[self.group], state[self.left])
            yield from self._remembered(("stray", *looks_at), self._stray_steps)
        for number in range(self.bounds.daemons):
            daemon = state[self.first_daemon + number]
            seen = ("daemon", number, daemon, state[self.store], state[self.left])
            yield from self._remembered(seen, self._daemon_steps)

    def _remembered(
        self, concerned: tuple[Any, ...], make: Callable[..., Iterator[_Change]]
    ) -> tuple[_Change, ...]:
        found = self._memo.get(concerned)
        if found is None:
            found = self._memo[concerned] = tuple(make(*concerned[1:]))
        return found

    def _all_ranks(self, before: tuple[Rank, ...], after: tuple[Rank, ...]) -> list[tuple[int, int]]:
        return [(n, self._key(rank)) for n, rank in enumerate(after) if rank != before[n]]

    def _group_steps(self, *keys: int) -> Iterator[_Change]:
        ranks = tuple(self._parts[key] for key in keys[: self.size])
        cache, group, left = (self._parts[key] for key in keys[self.size :])
        steps = list(self._transfers.ends(ranks, group, left))
        if all(ranks[number].alive and not ranks[number].left for number in group.members):
            steps += self._ranks.gate(ranks, cache, group, left)
            steps += self._commits.ends(ranks, group, left)
        else:
            steps += self._ranks.group_fails(ranks, group, left)
        for step in steps:
            parts = self._all_ranks(ranks, step.ranks)
            if step.fault:
                parts.append((self.left, self._key(step.left)))
            if parts or step.wrong:
                yield _Change(step.name, tuple(parts), not step.fault, step.wrong)
        for name, now, life in reforms(self.shape, self.bounds.waves, ranks, group):
            parts = self._all_ranks(ranks, now)
            yield _Change(name, (*parts, (self.group, self._key(life))))

    def _rank_steps(
        self, number: int, rank_key: int, store_key: int, group_key: int, left_key: int
    ) -> Iterator[_Change]:
        rank, store, group, left = (self._parts[key] for key in (rank_key, store_key, group_key, left_key))
        if not rank.alive or number not in group.members:
            return
        for late in (False, True):
            settled = self._ranks.settle(rank, late=late)
            if settled != rank:
                name = f"the time of rank {number} is over" if late else f"rank {number} settles"
                yield _Change(name, ((number, self._key(settled)),))
        record = self._ranks.record(rank, number, group)
        if store.records[number] != record:
            records = _put(store.records, number, record)
            older = _put(store.older, number, store.records[number])
            yield _Change(
                f"rank {number} reports",
                ((self.store, self._key(store._replace(records=records, older=older))),),
            )
        if store.older[number] is not None and store.older[number] != store.records[number]:
            yield from self._fault(
                left, "messages", f"an older record of rank {number} comes again", self.store,
                store._replace(records=_put(store.records, number, store.older[number])),
            )  # fmt: skip
        yield from self._fault(left, "crashes", f"rank {number} crashes", number, crashed(rank))
        if number != group.members[0] and not rank.skewed:
            yield from self._fault(
                left, "skews", f"rank {number} counts other steps", number, rank._replace(skewed=True)
            )

    def _store_steps(self, cache_key: int, store_key: int, left_key: int) -> Iterator[_Change]:
        cache, store, left = (self._parts[key] for key in (cache_key, store_key, left_key))
        fresh = Cache(store.offer, store.fence)
        if fresh != cache:
            yield _Change("rank 0 reads", ((self.cache, self._key(fresh)),))
        if store.holder == GONE:
            yield _Change("a lease runs out", ((self.store, self._key(store._replace(holder=0))),))
        if store.before not in (fresh, cache):
            yield from self._fault(left, "messages", "rank 0 reads an older offer", self.cache, store.before)
        empty = Store(records=(None,) * self.size, older=(None,) * self.size, before=fresh)
        yield from self._fault(left, "losses", "the store loses all keys", self.store, empty)

    def _stray_steps(
        self, first_key: int, store_key: int, group_key: int, left_key: int
    ) -> Iterator[_Change]:
        first, store, group, left = (self._parts[key] for key in (first_key, store_key, group_key, left_key))
        for offer in strays(self.shape, first.serves, store, group) if first.alive else ():
            stray = store._replace(offer=offer)
            yield from self._fault(left, "strays", f"a stray offer: {offer.flaw}", self.store, stray)

    def _daemon_steps(self, number: int, daemon_key: int, store_key: int, left_key: int) -> Iterator[_Change]:
        daemon, store, left = (self._parts[key] for key in (daemon_key, store_key, left_key))
        place, holds = self.first_daemon + number, store.holder == number + 1
        turns = [
            *self._daemons.acquire(daemon, store, number),
            *self._daemons.step_down(daemon, store, number),
            *self._daemons.cycle(daemon, store, number, left),
            *self._daemons.write(daemon, store),
        ]
        for turn in turns:
            parts = [(place, self._key(turn.daemon))]
            if turn.store is not store:
                parts.append((self.store, self._key(turn.store)))
            if turn.left is not None:
                parts.append((self.left, self._key(turn.left)))
            yield _Change(turn.name, tuple(parts), turn.due, turn.wrong, turn.claim)
        if not daemon.alive:
            yield _Change("a daemon starts", ((place, self._key(Daemon())),))
            return
        if (less := left.spend("crashes")) is not None:
            after = store._replace(holder=GONE) if holds else store
            gone = ((place, self._key(Daemon(alive=False))), (self.store, self._key(after)))
            yield _Change("a daemon crashes", (*gone, (self.left, self._key(less))), free=False)
        if daemon.write is not None:
            yield from self._fault(left, "messages", "a write is lost", place, daemon._replace(write=None))
        if holds and (less := left.spend("pauses")) is not None:
            paused = daemon if daemon.write is not None else Daemon()
            late = ((place, self._key(paused)), (self.store, self._key(store._replace(holder=0))))
            yield _Change(
                "a leader is paused past its lease", (*late, (self.left, self._key(less))), free=False
            )

    def _fault(self, left: Left, kind: str, name: str, place: int, part: object) -> Iterator[_Change]:
        less = left.spend(kind)
        if less is not None:
            yield _Change(name, ((place, self._key(part)), (self.left, self._key(less))), free=False)


def _put(records: tuple[Any, ...], number: int, record: object) -> tuple[Any, ...]:
    return (*records[:number], record, *records[number + 1 :])
