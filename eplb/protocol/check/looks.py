"""What of a state each kind of step looks at."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eplb.protocol.check.families import Family, StateFamily
from eplb.protocol.check.layout import BLOCK_BITS, LEAD, LEFT, LIVES, POOL
from eplb.protocol.check.matters import asked
from eplb.protocol.check.numbers import Memo, each
from eplb.protocol.check.parts import BITS
from eplb.protocol.check.world import Cache, Control, Daemon, Group, Left, Live, Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from eplb.protocol.check.changes import Change, Changes
    from eplb.protocol.check.families import Table
    from eplb.protocol.check.layout import Block, Layout, States
    from eplb.protocol.check.numbers import Column, Columns
    from eplb.protocol.check.parts import Parts
    from eplb.protocol.check.world import Bounds

_PLAN_BITS = 3


class Families(NamedTuple):
    """Kinds of steps; ``leads``, ``decisions`` and ``then`` by daemon, ``tells`` by rank."""

    gates: StateFamily
    own: StateFamily
    reads: StateFamily
    leaders: StateFamily
    strays: list[StateFamily]
    leads: list[StateFamily]
    decisions: list[StateFamily]
    then: list[StateFamily]
    tells: list[Family]

    def alone(self) -> list[StateFamily]:
        """All but ``then``, which come after decisions, and ``tells``."""
        return [self.gates, self.own, self.reads, self.leaders, *self.strays, *self.leads, *self.decisions]


class Looks:
    """Parts, and numbers of what is asked of them, by state."""

    def __init__(
        self, bounds: Bounds, layout: Layout, blocks: Sequence[Block], parts: Parts, changes: Changes
    ) -> None:
        self._bounds, self._layout, self._parts, self._changes = bounds, layout, parts, changes
        self._pool, self._lead, self._lives = blocks
        self._fence = parts.fact(Control, lambda control: control.fence)
        self._readable = parts.fact(Control, lambda c: parts.key(Cache(c.offer, c.fence)))
        self._wanted = parts.fact(Control, lambda c: parts.key(c._replace(fence=0, before=None)))
        self._offers = parts.fact(Control, lambda c: c.offer is not None and c.offer.pool == 0)
        self._writes = parts.fact(Daemon, lambda daemon: daemon.write is not None)
        self._busy = parts.fact(Rank, lambda rank: not rank.alive or rank.left or rank.hand is not None)
        self._asked = Memo((BITS, BITS), 1, each(self._asked_of))
        self._reported = parts.fact(Live, lambda live: 0 if live.record is None else live.record.term)
        self._told = [Memo((BITS, BITS, BITS), 1, each(partial(self._told_by, n))) for n in layout.ranks]
        self._plans = parts.fact(Left, lambda left: left.plans)
        self._members = parts.fact(Group, lambda group: group.members[0])
        self._open = [
            Memo((BLOCK_BITS[POOL],), 1, self._any(self._pool, layout.ranks, self._busy)),
            Memo((BLOCK_BITS[LEAD],), 1, self._any(self._lead, layout.daemons, self._writes)),
        ]
        self._floor = Memo((BLOCK_BITS[LIVES],), 1, self._highest)

    # Facts of blocks.

    @staticmethod
    def _any(block: Block, places: range, fact: Memo) -> Callable[..., Columns]:
        return lambda numbers: (np.max([fact.one(block.part(place, numbers)) for place in places], axis=0),)

    def _asked_of(self, control: int, live: int) -> int:
        found = asked(self._parts.part(Live, live), self._parts.part(Control, control).offer)
        return self._parts.key(found)

    def _told_by(self, number: int, rank: int, group: int, fence: int) -> int:
        found = self._parts.part(Rank, rank), self._parts.part(Group, group)
        return self._parts.key(Live(self._changes.record(number, *found, fence)))

    def _highest(self, lives: Column) -> Columns:
        return (np.max([self._reported.one(column) for column in self._lives.parts(lives)], axis=0),)

    def ended(self, states: States) -> NDArray[np.bool_]:
        """By state, whether nothing is on offer to this pool, being written, in hand or lost."""
        offers = self._offers.one(self._lead.part(self._layout.control, states[LEAD]))
        open_: Column = offers | self._open[POOL].one(states[POOL]) | self._open[LEAD].one(states[LEAD])
        ended: NDArray[np.bool_] = open_ == 0
        return ended

    def fence(self, states: States) -> Column:
        """By state, the term that the store has granted."""
        return self._fence.one(self._control(states))

    def told(self, pools: Column, fences: Column) -> Column:
        """What each rank would report, [ranks, states]."""
        group = self._pool.part(self._layout.group, pools)
        found = [told.one(self._pool.part(n, pools), group, fences) for n, told in enumerate(self._told)]
        return np.stack(found)

    def can_be_read(self, lead: Column) -> Column:
        """What a read of the store gives, as a number."""
        return self._readable.one(self._lead.part(self._layout.control, lead))

    def writes(self, lead: Column, place: int) -> NDArray[np.bool_]:
        """Whether the daemon at a place has a write to make."""
        return self._writes.one(self._lead.part(place, lead)) > 0

    def _decides(self, number: int, states: States) -> Columns:
        lead = states[LEAD]
        wanted = self._wanted.one(self._lead.part(self._layout.control, lead))
        return (
            self._lead.part(self._layout.daemons[number], lead),
            wanted,
            self._plans.one(states[LEFT]),
            *(self._asked.one(wanted, live) for live in self._lives.parts(states[LIVES])),
        )

    # Kinds of steps.

    def families(self, table: Table) -> Families:
        """All kinds of steps."""
        changes, layout, pool, lead = self._changes, self._layout, self._pool, self._lead
        of_rank, of_pool = (Rank,) * len(layout.ranks), [layout.kinds[place] for place in pool.places]
        of_lead = [layout.kinds[place] for place in lead.places]
        return Families(
            gates=self._of_block(table, changes.gates, pool, of_pool, lambda s: s[POOL]),
            own=self._family(table, changes.own, (*of_rank, Group), self._ranks_and_group),
            reads=self._family(
                table, changes.read, (Cache, Control), lambda s: (self._cache(s), self._control(s))
            ),
            leaders=self._of_block(table, changes.leaders, lead, of_lead, lambda s: s[LEAD]),
            strays=[self._family(table, changes.stray, (Rank, Control, Group), self._stray)]
            if self._bounds.strays
            else [],
            leads=[
                self._family(
                    table, partial(changes.lead, number), (Daemon, Control, BITS), partial(self._leads, place)
                )
                for number, place in enumerate(layout.daemons)
            ],
            decisions=[
                self._family(
                    table,
                    partial(changes.decide, number),
                    (Daemon, Control, _PLAN_BITS, *(Live,) * len(layout.ranks)),
                    partial(self._decides, number),
                )
                for number in range(len(layout.daemons))
            ],
            then=[
                self._of_block(table, partial(changes.then, number), lead, of_lead, lambda s: s[LEAD])
                for number in range(len(layout.daemons))
            ],
            tells=[
                Family(table, (BITS, BITS), self._of_parts(partial(changes.tell, number), (Live, Live)))
                for number in layout.ranks
            ],
        )

    def _family(
        self,
        table: Table,
        make: Callable[..., Iterable[Change]],
        kinds: Sequence[type | int],
        looks: Callable[[States], Columns],
    ) -> StateFamily:
        """Steps that look at parts of these types, or at numbers of so many bits."""
        bits = [kind if isinstance(kind, int) else BITS for kind in kinds]
        return StateFamily(table, bits, self._of_parts(make, kinds), looks)

    def _of_parts(
        self, make: Callable[..., Iterable[Change]], kinds: Sequence[type | int]
    ) -> Callable[..., Iterable[Change]]:
        def made(*keys: int) -> Iterable[Change]:
            pairs = zip(kinds, keys, strict=True)
            return make(
                *(key if isinstance(kind, int) else self._parts.part(kind, key) for kind, key in pairs)
            )

        return made

    def _of_block(
        self,
        table: Table,
        make: Callable[..., Iterable[Change]],
        block: Block,
        kinds: list[type],
        looks: Callable[[States], Column],
    ) -> StateFamily:
        """Steps that look at a whole block."""

        def made(number: int) -> Iterable[Change]:
            keys = block.parts(np.array([number]))[:, 0].tolist()
            return make(*(self._parts.part(kind, key) for kind, key in zip(kinds, keys, strict=True)))

        return StateFamily(table, (block.bits,), made, lambda s: (looks(s),))

    # Columns.

    def _cache(self, states: States) -> Column:
        return self._pool.part(self._layout.cache, states[POOL])

    def _control(self, states: States) -> Column:
        return self._lead.part(self._layout.control, states[LEAD])

    def _ranks_and_group(self, states: States) -> Columns:
        keys = self._pool.parts(states[POOL])
        return keys[[*self._layout.ranks, self._layout.group]]

    def _leads(self, place: int, states: States) -> Columns:
        return self._lead.part(place, states[LEAD]), self._control(states), self._floor.one(states[LIVES])

    def _stray(self, states: States) -> Columns:
        keys = self._pool.parts(states[POOL])
        group = keys[self._layout.group]
        first = keys[self._members.one(group), np.arange(len(group))]
        return first, self._control(states), group
