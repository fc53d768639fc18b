"""All steps from a state: of ranks, daemons, messages and faults, worked out once for the parts that each concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eplb.protocol.check.alike import Alike
from eplb.protocol.check.commits import Commits
from eplb.protocol.check.daemons import Daemons
from eplb.protocol.check.faults import strays
from eplb.protocol.check.lives import reforms
from eplb.protocol.check.parts import Parts
from eplb.protocol.check.ranks import Ranks, crashed
from eplb.protocol.check.rules import broken_rule
from eplb.protocol.check.transfers import Transfers
from eplb.protocol.check.world import KINDS, Cache, Daemon, Left, Store, shape_of, start, whole
from eplb.protocol.wave import Act

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from eplb.protocol.check.world import Bounds, Group, Rank

Key = tuple[int, ...]


class Step(NamedTuple):
    """One step: its names, where it leads, whether it comes without a fault and without being asked for, what rule it broke."""

    names: tuple[str, ...]
    key: Key
    free: bool
    wrong: str = ""


class _Change(NamedTuple):
    """What a step does to parts: new keys by place in the state; ``spends`` the kind of fault, or "plans", "" = nothing."""

    name: str
    parts: tuple[tuple[int, int], ...]
    free: bool = True
    wrong: str = ""
    claim: tuple[int, int, object] | None = None
    spends: str = ""


class Steps:
    """Successors of states. A state is the keys of its ranks, cache, store, daemons, group and what is left, in this order.

    ``reduced`` False: states that are alike stay apart, and every order of steps is taken; for a test of the reductions.
    """

    def __init__(self, bounds: Bounds, guards: frozenset[str], *, reduced: bool = True) -> None:
        self.bounds, self.shape, self.size = bounds, shape_of(bounds), bounds.ranks
        self._ranks = Ranks(self.shape, guards, bounds.profile)
        self._daemons = Daemons(self.shape, bounds, guards)
        self._commits = Commits(self._ranks)
        self._transfers = Transfers(guards)
        self._parts = Parts()
        self._key = self._parts.key
        self.reduced = reduced
        alike = Alike(bounds, self.shape, self._ranks, self._parts)
        self._state: Callable[[list[int]], Key] = alike.of if reduced else tuple
        self._less: dict[tuple[int, str], int] = {}
        self._whole = tuple(self._key(whole(bounds, plans)) for plans in range(bounds.plans + 2))
        self._memo: dict[tuple[object, ...], tuple[_Change, ...]] = {}
        self._rules: dict[Key, str] = {}
        self.cache, self.store = self.size, self.size + 1
        self.first_daemon = self.size + 2
        self.group, self.left = self.first_daemon + bounds.daemons, self.first_daemon + bounds.daemons + 1
        left = start(bounds).left
        self.faults_max = min(left.faults, sum(left) - left.plans - left.faults)

    def start(self) -> Key:
        """The first state: all ranks have reported, and one daemon leads."""
        state = start(self.bounds)
        records = tuple(self._ranks.record(rank, n, state.group) for n, rank in enumerate(state.ranks))
        daemons = (*state.daemons[:-1], Daemon(term=1))
        store = state.store._replace(records=records, fence=1, holder=len(daemons))
        state = state._replace(store=store, daemons=daemons)
        parts = (*state.ranks, state.cache, state.store, *state.daemons, state.group, state.left)
        return self._state([self._key(part) for part in parts])

    def part(self, key: int) -> Any:
        """The part with this key."""
        return self._parts[key]

    def no_less(self, has: int, asked: int) -> bool:
        """Whether of all kinds no less is left in ``has`` than in ``asked``, both keys of what is left."""
        return all(one >= other for one, other in zip(self._parts[has], self._parts[asked], strict=True))

    def faults_spent(self, state: Key) -> int:
        """Faults on the way to a state."""
        left: Left = self._parts[state[self.left]]
        return self.bounds.faults - left.faults

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
        """Every step from a state; a decision comes with the next step that it does not commute with (:func:`_decided_now`)."""
        for step in self._after(state, ()):
            waits = () if step.wrong else self._decided(step.key)
            if not waits:
                yield step
                continue
            for then in self._after(step.key, waits):
                if then.wrong or not self._decided(then.key):
                    yield Step((*step.names, *then.names), then.key, step.free and then.free, then.wrong)

    def _after(self, state: Key, places: tuple[int, ...]) -> Iterator[Step]:
        """Every step from a state that changes one of these places, or any."""
        for change in self._changes(state):
            if places and not any(place in places for place, _ in change.parts):
                continue
            key = list(state)
            for place, part in change.parts:
                key[place] = part
            if change.spends:
                key[self.left] = self._spent(state[self.left], change.spends)
                if key[self.left] < 0:
                    continue
            wrong = change.wrong
            if change.claim is not None and not wrong:
                wrong = self._false_claim(state, change.claim)
            yield Step((change.name,), self._state(key), change.free, wrong)

    def _spent(self, key: int, kind: str) -> int:
        """What is left after a fault of a kind, or after a plan, -1 = there was none left."""
        found = self._less.get((key, kind))
        if found is None:
            left: Left = self._parts[key]
            less = left._replace(plans=left.plans - 1) if kind == "plans" else left.spend(kind)
            found = self._less[key, kind] = -1 if less is None else self._key(less)
        return found

    def _decided(self, state: Key) -> tuple[int, ...]:
        """Places of the store and of the daemon whose pending write it could as well decide on now, () = no such daemon."""
        for number in range(self.bounds.daemons if self.reduced else 0):
            place = self.first_daemon + number
            concerned = ("decided", number, state[place], state[self.store], self._plans(state))
            if self._remembered(concerned, self._decided_now):
                return self.store, place
        return ()

    def _decided_now(self, number: int, daemon_key: int, store_key: int, left_key: int) -> Iterator[_Change]:
        """A step that a daemon could as well take now as before; nothing if it has no write, or would not decide so now.

        A decision reads the store and changes only what its daemon, and a budget, holds. It commutes with every step that neither
        changes the store nor is that daemon's: such steps go first, and the daemon decides after them. Rules about a decision are
        asked in every state in which it can be taken, so that none is missed.
        """
        daemon, store, left = (self._parts[key] for key in (daemon_key, store_key, left_key))
        write = daemon.write
        if write is None or store.holder != number + 1:
            return
        begins = write.act == Act.BEGIN
        before = daemon._replace(write=None, idea=write.plan.base if begins else daemon.idea)
        for turn in self._daemons.cycle(before, store, number, left._replace(plans=left.plans + begins)):
            again = turn.daemon.write
            same = again is not None and (again.act, again.offer) == (write.act, write.offer)
            if same and turn.daemon.idea == daemon.idea and turn.left in (None, left):
                yield _Change(turn.name, ())
                return

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
            ("ranks", *state[: self.size], state[self.cache], state[self.group], self._whole[0]),
            self._group_steps,
        )
        for number in range(self.size):
            looks_at = (state[number], state[self.store], state[self.group], self._whole[0])
            yield from self._remembered(("rank", number, *looks_at), self._rank_steps)
        yield from self._remembered(
            ("store", state[self.cache], state[self.store], self._whole[0]), self._store_steps
        )
        if self._parts[state[self.left]].strays:
            first = state[self._parts[state[self.group]].members[0]]
            looks_at = (first, state[self.store], state[self.group], self._whole[0])
            yield from self._remembered(("stray", *looks_at), self._stray_steps)
        for number in range(self.bounds.daemons):
            daemon = state[self.first_daemon + number]
            seen = ("daemon", number, daemon, state[self.store], self._plans(state))
            yield from self._remembered(seen, self._daemon_steps)

    def _remembered(
        self, concerned: tuple[Any, ...], make: Callable[..., Iterator[_Change]]
    ) -> tuple[_Change, ...]:
        found = self._memo.get(concerned)
        if found is None:
            found = self._memo[concerned] = tuple(map(self._priced, make(*concerned[1:])))
        return found

    def _kind(self, key: int) -> str:
        """What a step has spent of ``_whole``."""
        if key in self._whole:
            return "plans"
        less, whole = self._parts[key], self._parts[self._whole[0]]
        return next(kind for kind in KINDS if getattr(less, kind) < getattr(whole, kind))

    def _plans(self, state: Key) -> int:
        left: Left = self._parts[state[self.left]]
        return self._whole[left.plans]

    def _priced(self, change: _Change) -> _Change:
        """A change worked out with all kinds of faults left, so that it holds whatever is left: with the kind that it spends."""
        for place, key in change.parts:
            if place == self.left:
                parts = tuple(part for part in change.parts if part[0] != self.left)
                return change._replace(parts=parts, spends=self._kind(key))
        return change

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
            parts.append((self.group, self._key(life)))
            first = life.members[0]
            if first != group.members[0] or not ranks[first].alive or name == "start anew":
                parts.append((self.cache, self._key(Cache())))  # another process looks at the store
            yield _Change(name, tuple(parts))

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
        if record.term <= store.fence:
            record = record._replace(term=0)
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
        if daemon != Daemon() and (less := left.spend("crashes")) is not None:
            # Nobody has to ask for the lease, or to start again, at once: so both may be so at once.
            after = store._replace(holder=0) if holds else store
            gone = ((place, self._key(Daemon())), (self.store, self._key(after)))
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
