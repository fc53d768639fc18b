"""What each kind of step does to the parts that it concerns: ranks, daemons, messages and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eplb.protocol.check.commits import Commits
from eplb.protocol.check.daemons import Daemons
from eplb.protocol.check.faults import strays
from eplb.protocol.check.lives import reforms
from eplb.protocol.check.ranks import Ranks, crashed
from eplb.protocol.check.sight import Sight
from eplb.protocol.check.transfers import Transfers
from eplb.protocol.check.world import KINDS, Cache, Control, Daemon, Left, Live, Record, whole
from eplb.protocol.wave import Act

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eplb.protocol.check.daemons import Turn
    from eplb.protocol.check.layout import Layout
    from eplb.protocol.check.world import Bounds, Group, Rank, Row, Shape

Claim = tuple[int, int, "Row"]
"""Run, layer and row that a daemon takes for served by all members."""


class Change(NamedTuple):
    """What a step does: new parts by place; ``spends`` the kind of fault, or "plans", "" = nothing.

    ``free``: it comes without a fault and without being asked for. ``wrong`` the rule that it breaks, "" = none.
    """

    name: str
    parts: dict[int, object]
    spends: str = ""
    free: bool = True
    wrong: str = ""
    claim: Claim | None = None


class Changes:
    """Changes under a set of guards, on parts in full; each is worked out as if every kind of fault were left."""

    def __init__(self, bounds: Bounds, shape: Shape, layout: Layout, guards: frozenset[str]) -> None:
        self.bounds, self.shape, self.layout = bounds, shape, layout
        self.ranks = Ranks(shape, guards, bounds.profile)
        self._guards = guards
        self._daemons = Daemons(shape, bounds, guards)
        self._commits = Commits(self.ranks)
        self._transfers = Transfers(guards)
        self._whole = whole(bounds, 0)

    # Ranks.

    def pool(self, *parts: Any) -> Iterator[Change]:
        """Steps that look at ranks, the cache of the first member and the group's life only."""
        *ranks, cache, group = parts
        yield from self._group(tuple(ranks), cache, group)
        for number in group.members:
            if ranks[number].alive:
                yield from self._settle(number, ranks[number])
                yield from self._rank_fails(number, ranks[number], group)

    def _group(self, ranks: tuple[Rank, ...], cache: Cache, group: Group) -> Iterator[Change]:
        steps = list(self._transfers.ends(ranks, group, self._whole))
        if all(ranks[number].alive and not ranks[number].left for number in group.members):
            steps += self.ranks.gate(ranks, cache, group, self._whole)
            steps += self._commits.ends(ranks, group, self._whole)
        else:
            steps += self.ranks.group_fails(ranks, group, self._whole)
        for step in steps:
            changed = _others(ranks, step.ranks)
            if changed or step.wrong or step.fault:
                spends = self._spent(step.left) if step.fault else ""
                yield Change(step.name, changed, spends, free=not step.fault, wrong=step.wrong)
        for name, now, life in reforms(self.shape, self.bounds.waves, ranks, group):
            changed = {**_others(ranks, now), self.layout.group: life}
            first = life.members[0]
            if first != group.members[0] or not ranks[first].alive or name == "start anew":
                changed[self.layout.cache] = Cache()  # another process looks at the store
            yield Change(name, changed)

    def _settle(self, number: int, rank: Rank) -> Iterator[Change]:
        for late in (False, True):
            settled = self.ranks.settle(rank, late=late)
            if settled != rank:
                name = f"the time of rank {number} is over" if late else f"rank {number} settles"
                yield Change(name, {number: settled})

    @staticmethod
    def _rank_fails(number: int, rank: Rank, group: Group) -> Iterator[Change]:
        yield _fault("crashes", f"rank {number} crashes", {number: crashed(rank)})
        if number != group.members[0] and not rank.skewed:
            yield _fault("skews", f"rank {number} counts other steps", {number: rank._replace(skewed=True)})

    def record(self, number: int, rank: Rank, group: Group, fence: int) -> Record | None:
        """What a rank would report, None = nothing; of its term only what is above the store's counts."""
        if not rank.alive or number not in group.members:
            return None
        record = self.ranks.record(rank, number, group)
        return record._replace(term=0) if record.term <= fence else record

    def report(self, number: int, told: Live, live: Live) -> Iterator[Change]:
        """A rank reports; ``told`` its new record."""
        record = told.record
        if record is not None and live.record != record:
            yield Change(f"rank {number} reports", {self.layout.lives[number]: Live(record, live.record)})

    def again(self, number: int, live: Live) -> Iterator[Change]:
        """An older record comes after a newer one."""
        if live.older is not None and live.older != live.record:
            again: dict[int, object] = {self.layout.lives[number]: Live(live.older, live.older)}
            yield _fault("messages", f"an older record of rank {number} comes again", again)

    # The store.

    def read(self, cache: Cache, control: Control) -> Iterator[Change]:
        """The group's first member reads the store."""
        fresh, place = Cache(control.offer, control.fence), self.layout.cache
        if fresh != cache:
            yield Change("rank 0 reads", {place: fresh})
        if control.before not in (fresh, cache):
            yield _fault("messages", "rank 0 reads an older offer", {place: control.before})

    def leaders(self, control: Control, *daemons: Daemon) -> Iterator[Change]:
        """Steps that look at what daemons wrote, and at themselves, only."""
        yield self._loss(control)
        for number, daemon in enumerate(daemons):
            yield from self._turns(number, self._daemons.write(daemon, control))
            yield from self._daemon_fails(number, daemon, control)

    def _loss(self, control: Control) -> Change:
        empty = Control(before=Cache(control.offer, control.fence))
        parts: dict[int, object] = {self.layout.control: empty, **dict.fromkeys(self.layout.lives, Live())}
        return _fault("losses", "the store loses all keys", parts)

    def stray(self, first: Rank, control: Control, group: Group) -> Iterator[Change]:
        """An offer that nobody's plan made."""
        for offer in strays(self.shape, first.serves, control, group) if first.alive else ():
            stray = control._replace(offer=offer)
            yield _fault("strays", f"a stray offer: {offer.flaw}", {self.layout.control: stray})

    # Daemons.

    def lead(self, number: int, daemon: Daemon, control: Control, floor: int) -> Iterator[Change]:
        """A daemon begins or ceases to lead; ``floor`` the highest term that ranks report."""
        yield from self._turns(number, self._daemons.acquire(daemon, control, number, floor))
        yield from self._turns(number, self._daemons.step_down(daemon, control, number, floor))

    def decide(
        self, number: int, daemon: Daemon, control: Control, plans: int, *lives: Live
    ) -> Iterator[Change]:
        """A daemon reads and decides on a write."""
        sight = Sight.of(control, tuple(live.record for live in lives), self._guards)
        left = whole(self.bounds, plans)
        yield from self._turns(number, self._daemons.cycle(daemon, sight, number, left))

    def _daemon_fails(self, number: int, daemon: Daemon, control: Control) -> Iterator[Change]:
        place, holds = self.layout.daemons[number], control.holder == number + 1
        # Nobody has to ask for the lease, or to start again, at once: so both may be so at once.
        free = {self.layout.control: control._replace(holder=0)} if holds else {}
        if daemon != Daemon():
            yield _fault("crashes", "a daemon crashes", {place: Daemon(), **free})
        if daemon.write is not None:
            yield _fault("messages", "a write is lost", {place: daemon._replace(write=None)})
        if holds:
            paused = daemon if daemon.write is not None else Daemon()
            yield _fault("pauses", "a leader is paused past its lease", {place: paused, **free})

    def decided_now(self, number: int, daemon: Daemon, control: Control, plans: int, *lives: Live) -> bool:
        """Whether a daemon with a pending write could as well decide on it now as when it did.

        A decision reads the store and changes only what its daemon, and a budget, holds. It commutes with every step that neither
        changes the store nor is that daemon's: such steps go first, and the daemon decides after them. Rules about a decision are
        asked in every state in which it can be taken, so that none is missed.
        """
        write = daemon.write
        if write is None:
            return False
        begins = write.plan if write.act == Act.BEGIN else None
        before = daemon._replace(write=None, idea=daemon.idea if begins is None else begins.base)
        after = whole(self.bounds, plans)
        left = after._replace(plans=plans + (begins is not None))
        sight = Sight.of(control, tuple(live.record for live in lives), self._guards)
        for turn in self._daemons.cycle(before, sight, number, left):
            again = turn.daemon.write
            same = again is not None and again == write._replace(plan=again.plan)
            if same and turn.daemon.idea == daemon.idea and turn.left in (None, after):
                return True
        return False

    def _turns(self, number: int, turns: Iterable[Turn]) -> Iterator[Change]:
        for turn in turns:
            parts: dict[int, object] = {self.layout.daemons[number]: turn.daemon}
            if turn.control is not None:
                parts[self.layout.control] = turn.control
            spends = "" if turn.left is None else self._spent(turn.left)
            yield Change(turn.name, parts, spends, turn.due, turn.wrong, turn.claim)

    def _spent(self, left: Left) -> str:
        """What a step has spent of one of each kind."""
        return next((kind for kind in KINDS if getattr(left, kind) < getattr(self._whole, kind)), "plans")


def _others(before: tuple[Rank, ...], after: tuple[Rank, ...]) -> dict[int, object]:
    return {number: rank for number, rank in enumerate(after) if rank != before[number]}


def _fault(kind: str, name: str, parts: dict[int, object]) -> Change:
    return Change(name, parts, kind, free=False)
