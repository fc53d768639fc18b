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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eplb.protocol.check.daemons import Turn
    from eplb.protocol.check.layout import Layout
    from eplb.protocol.check.ranks import Gate
    from eplb.protocol.check.world import Bounds, Group, Rank, Row, Shape

Claim = tuple[int, int, "Row"]
"""Run, layer and row that a daemon takes for served by all members."""


REPORTED, REPORTED_LATE, REPLAYED = 1, 2, 3
READ, READ_OLDER = 1, 2
OVERWRITTEN = 1


class Change(NamedTuple):
    """What a step does: new parts by place; ``spends`` the kind of fault, or "plans", "" = nothing.

    ``free``: it comes without a fault and without being asked for. ``wrong`` the rule that it breaks, "" = none. ``kind`` what it
    does to records (``REPORTED`` and so on), to what the first rank has read (``READ``), or to the store (``OVERWRITTEN``); 0 = none of it.
    A message that comes late is paid for when what it holds is overwritten: else nothing of it is kept.
    """

    name: str
    parts: dict[int, object]
    spends: str = ""
    free: bool = True
    wrong: str = ""
    claim: Claim | None = None
    kind: int = 0


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

    def gates(self, *parts: Any) -> Iterator[Change]:
        """Steps that look at ranks, the cache of the first member and the group's life."""
        *ranks, cache, group = parts
        if _serves(ranks, group):
            yield from self._stepped(ranks, self.ranks.gate(tuple(ranks), cache, group, self._whole))

    def own(self, *parts: Any) -> Iterator[Change]:
        """Steps that look at ranks and the group's life only."""
        *ranks, group = parts
        yield from self._group(tuple(ranks), group)
        for number in group.members:
            if ranks[number].alive:
                yield from self._settle(number, ranks[number])
                yield from self._rank_fails(number, ranks[number], group)

    def _group(self, ranks: tuple[Rank, ...], group: Group) -> Iterator[Change]:
        steps = list(self._transfers.ends(ranks, group, self._whole))
        if _serves(ranks, group):
            steps += self._commits.ends(ranks, group, self._whole)
        else:
            steps += self.ranks.group_fails(ranks, group, self._whole)
        yield from self._stepped(ranks, steps)
        for name, now, life in reforms(self.shape, self.bounds.waves, ranks, group):
            changed = {**_others(ranks, now), self.layout.group: life}
            first = life.members[0]
            if first != group.members[0] or not ranks[first].alive or name == "start anew":
                changed[self.layout.cache] = Cache()  # another process looks at the store
            yield Change(name, changed)

    def _stepped(self, ranks: Sequence[Rank], steps: Iterable[Gate]) -> Iterator[Change]:
        for step in steps:
            changed = _others(tuple(ranks), step.ranks)
            if changed or step.wrong or step.fault:
                spends = self._spent(step.left) if step.fault else ""
                yield Change(step.name, changed, spends, free=not step.fault, wrong=step.wrong)

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

    def tell(self, number: int, told: Live, live: Live) -> Iterator[Change]:
        """What the store can have of a rank next; ``told`` what the rank reports."""
        place, record, older = self.layout.lives[number], told.record, live.older
        if older is not None:
            name = f"an older record of rank {number} comes again"
            yield Change(name, {place: Live(older)}, free=False, kind=REPLAYED)
        if record is None or record == live.record:
            return
        name = f"rank {number} reports"
        yield Change(name, {place: Live(record)}, kind=REPORTED)
        for late in {live.record, older} - {None, record}:
            parts: dict[int, object] = {place: Live(record, late)}
            yield _fault("messages", f"{name}; a record before is to come again", parts)._replace(
                kind=REPORTED_LATE
            )

    # The store.

    def read(self, cache: Cache, control: Control) -> Iterator[Change]:
        """The group's first member reads the store."""
        fresh, place = Cache(control.offer, control.fence), self.layout.cache
        if fresh != cache:
            yield Change("rank 0 reads", {place: fresh}, kind=READ)
        if control.before not in (None, fresh, cache):
            yield Change(
                "rank 0 reads an older offer",
                {place: control.before, self.layout.control: control._replace(before=None)},
                free=False,
                kind=READ_OLDER,
            )

    def leaders(self, control: Control, *daemons: Daemon) -> Iterator[Change]:
        """Steps that look at what daemons wrote, and at themselves, only."""
        yield from self._read_late(self._loss(), control)
        for number, daemon in enumerate(daemons):
            for change in self._turns(number, self._daemons.write(daemon, control)):
                yield from self._read_late(change, control)
            yield from self._daemon_fails(number, daemon, control)

    def _loss(self) -> Change:
        parts: dict[int, object] = {
            self.layout.control: Control(),
            **dict.fromkeys(self.layout.lives, Live()),
        }
        return _fault("losses", "the store loses all keys", parts)

    def then(self, number: int, control: Control, *daemons: Daemon) -> Iterator[Change]:
        """Steps after a decision of this daemon that do not commute with it."""
        yield from self._read_late(self._loss(), control)
        for change in self._turns(number, self._daemons.write(daemons[number], control)):
            if self.layout.control in change.parts:
                yield from self._read_late(change, control)
        for change in self._daemon_fails(number, daemons[number], control):
            if change.spends == "pauses":
                yield change

    def _read_late(self, change: Change, control: Control) -> Iterator[Change]:
        """A step that may write the store, and the same with a read before it that is answered later."""
        after = change.parts.get(self.layout.control)
        if not isinstance(after, Control):
            yield change
            return
        yield change._replace(kind=OVERWRITTEN)
        late = after._replace(before=Cache(control.offer, control.fence))
        yield change._replace(
            name=f"{change.name}, a read before it is late",
            parts={**change.parts, self.layout.control: late},
            spends=f"{change.spends}+messages" if change.spends else "messages",
            free=False,
            kind=OVERWRITTEN,
        )

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


def _serves(ranks: Sequence[Rank], group: Group) -> bool:
    return all(ranks[number].alive and not ranks[number].left for number in group.members)


def _others(before: tuple[Rank, ...], after: tuple[Rank, ...]) -> dict[int, object]:
    return {number: rank for number, rank in enumerate(after) if rank != before[number]}


def _fault(kind: str, name: str, parts: dict[int, object]) -> Change:
    return Change(name, parts, kind, free=False)
