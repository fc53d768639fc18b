"""What of a state each kind of step looks at."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from eplb.protocol.check.families import Family
from eplb.protocol.check.layout import BLOCK_BITS, LEAD, LEFT, LIVES, POOL
from eplb.protocol.check.numbers import Memo, each
from eplb.protocol.check.parts import BITS
from eplb.protocol.check.world import Cache, Control, Daemon, Group, Left, Live, Rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from eplb.protocol.check.changes import Change, Changes
    from eplb.protocol.check.families import Table
    from eplb.protocol.check.layout import Block, Layout, States
    from eplb.protocol.check.numbers import Column, Columns
    from eplb.protocol.check.parts import Parts
    from eplb.protocol.check.world import Bounds

_PLAN_BITS = 3


class Looks:
    """Parts, and numbers of what is asked of them, by state."""

    def __init__(self, bounds: Bounds, layout: Layout, blocks: Sequence[Block], parts: Parts) -> None:
        self._bounds, self._layout, self._parts = bounds, layout, parts
        self._pool, self._lead, self._lives = blocks
        self._fence = parts.fact(Control, lambda control: control.fence)
        self._holder = parts.fact(Control, lambda control: control.holder)
        self._wanted = parts.fact(Control, lambda c: parts.key(c._replace(fence=0, before=Cache())))
        self._offers = parts.fact(Control, lambda c: c.offer is not None and c.offer.pool == 0)
        self._writes = parts.fact(Daemon, lambda daemon: daemon.write is not None)
        self._busy = parts.fact(Rank, lambda rank: not rank.alive or rank.left or rank.hand is not None)
        self._newest = parts.fact(Live, lambda live: parts.key(Live(live.record)))
        self._reported = parts.fact(Live, lambda live: 0 if live.record is None else live.record.term)
        self._plans = parts.fact(Left, lambda left: left.plans)
        self._members = parts.fact(Group, lambda group: group.members[0])
        self._open = [
            Memo((BLOCK_BITS[POOL],), 1, self._any(self._pool, layout.ranks, self._busy)),
            Memo((BLOCK_BITS[LEAD],), 1, self._any(self._lead, layout.daemons, self._writes)),
        ]
        self._records = Memo((BLOCK_BITS[LIVES],), 1, self._newest_of)
        self._floor = Memo((BLOCK_BITS[LIVES],), 1, self._highest)

    # Facts of blocks.

    @staticmethod
    def _any(block: Block, places: range, fact: Memo) -> Callable[..., Columns]:
        return lambda numbers: (np.max([fact.one(block.part(place, numbers)) for place in places], axis=0),)

    def _newest_of(self, lives: Column) -> Columns:
        return (self._lives.numbers([self._newest.one(column) for column in self._lives.parts(lives)]),)

    def _highest(self, lives: Column) -> Columns:
        return (np.max([self._reported.one(column) for column in self._lives.parts(lives)], axis=0),)

    def ended(self, states: States) -> NDArray[np.bool_]:
        """By state, whether nothing is on offer to this pool, being written, in hand or lost."""
        offers = self._offers.one(self._lead.part(self._layout.control, states[LEAD]))
        open_: Column = offers | self._open[POOL].one(states[POOL]) | self._open[LEAD].one(states[LEAD])
        ended: NDArray[np.bool_] = open_ == 0
        return ended

    def holds_to_write(self, lead: Column, number: int) -> NDArray[np.bool_]:
        """Whether a daemon with the lease has a write to make."""
        holder = self._holder.one(self._lead.part(self._layout.control, lead))
        writes = self._writes.one(self._lead.part(self._layout.daemons[number], lead))
        found: NDArray[np.bool_] = (holder == number + 1) & (writes > 0)
        return found

    def _decides(self, number: int, states: States) -> Columns:
        lead = states[LEAD]
        return (
            self._lead.part(self._layout.daemons[number], lead),
            self._wanted.one(self._lead.part(self._layout.control, lead)),
            self._plans.one(states[LEFT]),
            self._records.one(states[LIVES]),
        )

    def decided(self, changes: Changes, number: int) -> Callable[[States], Column]:
        """By state, 1 if a daemon could as well decide now on what it is to write."""

        def now(daemon: int, control: int, plans: int, records: int) -> int:
            lives = self._lives_of(records)
            part = self._parts.part
            return int(
                changes.decided_now(number, part(Daemon, daemon), part(Control, control), plans, *lives)
            )

        memo = Memo((BITS, BITS, _PLAN_BITS, BLOCK_BITS[LIVES]), 1, each(now))
        return lambda states: memo.one(*self._decides(number, states))

    def _lives_of(self, number: int) -> list[Live]:
        return [self._parts.part(Live, key) for key in self._lives.parts(np.array([number]))[:, 0].tolist()]

    # Kinds of steps.

    def families(self, changes: Changes, table: Table) -> Iterator[Family]:
        """All kinds of steps."""
        layout = self._layout
        kinds = [[layout.kinds[place] for place in block.places] for block in (self._pool, self._lead)]
        yield self._of_block(table, changes.pool, self._pool, kinds[POOL], lambda s: s[POOL])
        for number in layout.ranks:
            yield from self._of_rank(changes, table, number)
        yield self._family(
            table, changes.read, (Cache, Control), lambda s: (self._cache(s), self._control(s))
        )
        yield self._of_block(table, changes.leaders, self._lead, kinds[LEAD], lambda s: s[LEAD])
        if self._bounds.strays:
            yield self._family(table, changes.stray, (Rank, Control, Group), self._stray)
        for number, place in enumerate(layout.daemons):
            yield self._family(
                table,
                partial(changes.lead, number),
                (Daemon, Control, BITS),
                partial(self._leads, place),
            )
            yield Family(
                table,
                (BITS, BITS, _PLAN_BITS, BLOCK_BITS[LIVES]),
                partial(self._decides, number),
                self._deciding(changes, number),
            )

    def _of_rank(self, changes: Changes, table: Table, number: int) -> Iterator[Family]:
        live, group = self._layout.lives[number], self._layout.group

        def told(rank: int, group: int, fence: int) -> int:
            part = self._parts.part
            return self._parts.key(Live(changes.record(number, part(Rank, rank), part(Group, group), fence)))

        tells = Memo((BITS, BITS, BITS), 1, each(told))

        def looks(states: States) -> Columns:
            pool, fence = states[POOL], self._fence.one(self._control(states))
            new = tells.one(self._pool.part(number, pool), self._pool.part(group, pool), fence)
            return new, self._lives.part(live, states[LIVES])

        yield self._family(table, partial(changes.report, number), (Live, Live), looks)
        yield self._family(
            table, partial(changes.again, number), (Live,), lambda s: (self._lives.part(live, s[LIVES]),)
        )

    def _deciding(self, changes: Changes, number: int) -> Callable[..., Iterable[Change]]:
        def made(daemon: int, control: int, plans: int, records: int) -> Iterable[Change]:
            part = self._parts.part
            found = part(Daemon, daemon), part(Control, control)
            return changes.decide(number, *found, plans, *self._lives_of(records))

        return made

    def _family(
        self,
        table: Table,
        make: Callable[..., Iterable[Change]],
        kinds: Sequence[type | int],
        looks: Callable[[States], Columns],
    ) -> Family:
        """Steps that look at parts of these types, or at numbers of so many bits."""

        def made(*keys: int) -> Iterable[Change]:
            pairs = zip(kinds, keys, strict=True)
            return make(
                *(key if isinstance(kind, int) else self._parts.part(kind, key) for kind, key in pairs)
            )

        return Family(table, [kind if isinstance(kind, int) else BITS for kind in kinds], looks, made)

    def _of_block(
        self,
        table: Table,
        make: Callable[..., Iterable[Change]],
        block: Block,
        kinds: list[type],
        looks: Callable[[States], Column],
    ) -> Family:
        """Steps that look at a whole block."""

        def made(number: int) -> Iterable[Change]:
            keys = block.parts(np.array([number]))[:, 0].tolist()
            return make(*(self._parts.part(kind, key) for kind, key in zip(kinds, keys, strict=True)))

        return Family(table, (block.bits,), lambda s: (looks(s),), made)

    # Columns.

    def _cache(self, states: States) -> Column:
        return self._pool.part(self._layout.cache, states[POOL])

    def _control(self, states: States) -> Column:
        return self._lead.part(self._layout.control, states[LEAD])

    def _leads(self, place: int, states: States) -> Columns:
        return self._lead.part(place, states[LEAD]), self._control(states), self._floor.one(states[LIVES])

    def _stray(self, states: States) -> Columns:
        keys = self._pool.parts(states[POOL])
        group = keys[self._layout.group]
        first = keys[self._members.one(group), np.arange(len(group))]
        return first, self._control(states), group
