"""Reports and reads, made no sooner than they matter.

A rank's report changes nothing but the store's record of it, so that it commutes with every step but daemons' that read records,
and the rank's own that change what it would report. It is made just before such a step, or never. So is the first rank's
read of the store: before a gate, or before what it reads is overwritten. A state stands for all in which more was reported and read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eplb.protocol.check.changes import READ, READ_OLDER, REPORTED, REPORTED_LATE
from eplb.protocol.check.families import KIND, NAME, SPENDS_AT, places_of
from eplb.protocol.check.layout import LEAD, LEFT, LIVES, POOL
from eplb.protocol.check.matters import Hearing, live
from eplb.protocol.check.numbers import Memo, each
from eplb.protocol.check.parts import BITS
from eplb.protocol.check.world import Cache, Control, Group, Live, Rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from eplb.protocol.check.alike import Alike
    from eplb.protocol.check.budget import Budget
    from eplb.protocol.check.changes import Changes
    from eplb.protocol.check.families import Table
    from eplb.protocol.check.layout import Block, Layout, States
    from eplb.protocol.check.looks import Families
    from eplb.protocol.check.numbers import Column, Places
    from eplb.protocol.check.parts import Parts

    Flags = NDArray[np.bool_]


class Choices(NamedTuple):
    """Choices of what has been reported, or read, before a step; those of one state side by side and none first.

    ``source`` a column of the states, ``states`` after the choice; ``kinds`` and ``names`` [ranks or 1, choices]
    what came, 0 = nothing; ``fresh``: all that is new has come, and nothing else.
    """

    source: Places
    states: States
    kinds: Column
    names: Column
    fresh: Flags


class Updates:
    """Choices of reports and reads for many states."""

    def __init__(
        self,
        layout: Layout,
        blocks: list[Block],
        parts: Parts,
        *,
        alike: Alike,
        changes: Changes,
        families: Families,
        table: Table,
        budget: Budget,
    ) -> None:
        self._layout, self._blocks, self._parts, self._alike = layout, blocks, parts, alike
        self._families, self._table, self._budget = families, table, budget
        self._told = [
            Memo((BITS, BITS, BITS), 1, each(self._tells(changes, number))) for number in layout.ranks
        ]
        self._newest = parts.fact(Live, lambda found: parts.key(Live(found.record)))
        self._nothing = parts.key(Live())
        self._settled = parts.fact(Control, lambda control: parts.key(control._replace(before=None)))
        self._readable = parts.fact(Control, lambda control: parts.key(Cache(control.offer, control.fence)))

    def _tells(self, changes: Changes, number: int) -> Callable[[int, int, int], int]:
        part = self._parts.part

        def told(rank: int, group: int, hearing_key: int) -> int:
            hearing = part(Hearing, hearing_key)
            record = changes.record(number, part(Rank, rank), part(Group, group), hearing.fence)
            return self._parts.key(live(Live(record), hearing))

        return told

    def told(self, pools: Column, hearings: Column) -> Column:
        """What each rank would report, [ranks, states]."""
        block = self._blocks[POOL]
        group = block.part(self._layout.group, pools)
        return np.stack(
            [told.one(block.part(n, pools), group, hearings) for n, told in enumerate(self._told)]
        )

    def reports(self, states: States, told: Column) -> Choices:
        """All choices of reports; a record that was overwritten can come again at the price of a message."""
        block, columns = self._blocks[LIVES], self._table.columns
        ranks = len(self._layout.ranks)
        source, lives, left = np.arange(states.shape[1]), states[LIVES], states[LEFT]
        kinds = names = np.zeros((ranks, len(source)), np.int32)
        found = [block.part(place, lives) for place in self._layout.lives]
        stale = [
            (now != self._nothing) & (self._newest.one(was) != now)
            for was, now in zip(found, told, strict=True)
        ]
        for number, place in enumerate(self._layout.lives):
            begins, counts = self._families.tells[number].look(
                [told[number][source], block.part(place, lives)]
            )
            which, change = places_of(begins, counts)
            columns = self._table.columns
            less = self._budget.after[left[which], columns[SPENDS_AT, change]]
            kept = less >= 0
            which, change, less = which[kept], change[kept], less[kept]
            more = self._table.edits[LIVES].apply(lives[which], columns[LIVES, change])
            kinds, names = (
                kinds[:, np.append(np.arange(len(source)), which)],
                names[:, np.append(np.arange(len(source)), which)],
            )
            kinds[number, len(source) :] = columns[KIND, change]
            names[number, len(source) :] = columns[NAME, change]
            source, lives, left = (
                np.append(source, source[which]),
                np.append(lives, more),
                np.append(left, less),
            )
        order = np.argsort(source, kind="stable")
        source, kinds = source[order], kinds[:, order]
        fresh = np.ones(len(source), bool)
        for late, kind in zip(stale, kinds, strict=True):
            fresh &= (kind == REPORTED) | ((kind == 0) & ~late[source])
        now = np.take(states, source, axis=1)
        now[LIVES], now[LEFT] = lives[order], left[order]
        return Choices(source, now, kinds, names[:, order], fresh)

    def reads(self, states: States) -> Choices:
        """All choices of what the first rank has read."""
        columns, edits = self._table.columns, self._table.edits
        which, change = places_of(*self._families.reads.of(states))
        columns = self._table.columns
        count = states.shape[1]
        source = np.append(np.arange(count), which)
        now = np.take(states, source, axis=1)
        now[POOL, count:] = edits[POOL].apply(states[POOL, which], columns[POOL, change])
        now[LEAD, count:] = edits[LEAD].apply(states[LEAD, which], columns[LEAD, change])
        kinds = np.append(np.zeros(count, np.int32), columns[KIND, change])
        names = np.append(np.zeros(count, np.int32), columns[NAME, change])
        order = np.argsort(source, kind="stable")
        stale = np.zeros(count, bool)
        stale[which[columns[KIND, change] == READ]] = True
        fresh = (kinds == READ) | ((kinds == 0) & ~stale[source])
        return Choices(source[order], now[:, order], kinds[None, order], names[None, order], fresh[order])

    def all_told(self, states: States, left: int) -> States:
        """States in which every rank has reported and the first has read, nothing else is on its way, and so much is left."""
        told = self.told(states[POOL], self._alike.hearings(states))
        pool, lead, lives = self._blocks
        found = lives.parts(states[LIVES])
        newest = [
            np.where(now == self._nothing, self._newest.one(was), now)
            for was, now in zip(found, told, strict=True)
        ]
        leads = lead.parts(states[LEAD])
        control = leads[0]
        leads[0] = self._settled.one(control)
        pools = pool.parts(states[POOL])
        pools[self._layout.cache] = self._readable.one(control)
        now = [pool.numbers(pools), lead.numbers(leads), lives.numbers(newest), np.full_like(control, left)]
        return self._alike.of(np.stack(now))


def captured(source: Places, changed: Flags, overwritten: Flags, reads: Choices) -> tuple[Places, Places]:
    """For steps of daemons, what was read before them: (steps, choices); ``changed`` what can be read, ``overwritten`` what could."""
    which, choice = joined(source, reads.source)
    kind = reads.kinds[0, choice]
    kept = (kind == 0) | ((kind == READ) & changed[which]) | ((kind == READ_OLDER) & overwritten[which])
    return which[kept], choice[kept]


def kept_from(source: Places, changed: Flags, reports: Choices) -> tuple[Places, Places]:
    """For steps of ranks, what was reported before them: (steps, choices); ``changed`` [ranks, steps] what would be reported."""
    busy = np.flatnonzero(changed.any(axis=0))
    calm = np.flatnonzero(~changed.any(axis=0))
    which, choice = joined(source[busy], reports.source)
    kinds = reports.kinds[:, choice]
    reported = (kinds == REPORTED) | (kinds == REPORTED_LATE)
    kept = ((kinds == 0) | (reported & changed[:, busy[which]])).all(axis=0)
    return np.append(busy[which[kept]], calm), np.append(
        choice[kept], np.searchsorted(reports.source, source[calm])
    )


def joined(source: Places, choices: Places) -> tuple[Places, Places]:
    """All pairs of a step and a choice of one source; ``choices`` ascends."""
    begins = np.searchsorted(choices, source)
    counts = np.searchsorted(choices, source, side="right") - begins
    return places_of(begins, counts)
