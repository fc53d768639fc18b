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
from eplb.protocol.check.world import Control, Live

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.alike import Alike
    from eplb.protocol.check.budget import Budget
    from eplb.protocol.check.families import Table
    from eplb.protocol.check.layout import Block, Layout, States
    from eplb.protocol.check.looks import Families, Looks
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


class Heard(NamedTuple):
    """By state, what its records matter for, and the term that its store has granted."""

    hearings: Column
    fences: Column

    def take(self, which: Places) -> Heard:
        """Of some states."""
        return Heard(self.hearings[which], self.fences[which])


class Updates:
    """Choices of reports and reads for many states."""

    def __init__(
        self,
        layout: Layout,
        blocks: list[Block],
        parts: Parts,
        *,
        alike: Alike,
        looks: Looks,
        families: Families,
        table: Table,
        budget: Budget,
    ) -> None:
        self._layout, self._blocks, self._parts, self._alike = layout, blocks, parts, alike
        self._looks, self._families, self._table, self._budget = looks, families, table, budget
        self._newest = parts.fact(Live, lambda found: parts.key(Live(found.record)))
        self._nothing = parts.key(Live())
        self._settled = parts.fact(Control, lambda control: parts.key(control._replace(before=None)))

    def told(self, pools: Column, heard: Heard) -> Column:
        """What each rank would report, without what no daemon asks, [ranks, states]."""
        told = self._looks.told(pools, heard.fences)
        return np.stack([self._alike.heard(record, heard.hearings) for record in told])

    def reports(self, states: States, told: Column) -> Choices:
        """All choices of reports; a record that was overwritten can come again at the price of a message."""
        block, now, count = self._blocks[LIVES], states, states.shape[1]
        source = np.arange(count)
        kinds = names = np.zeros((len(told), count), np.int32)
        for number, place in enumerate(self._layout.lives):
            found = self._families.tells[number].look([told[number, source], block.part(place, now[LIVES])])
            which, more, change = self._with(now, found)
            now = np.concatenate([now, more], axis=1)
            before, kept = len(source), np.append(np.arange(len(source)), which)
            source, kinds, names = source[kept], kinds[:, kept], names[:, kept]
            kinds[number, before:] = self._table.columns[KIND, change]
            names[number, before:] = self._table.columns[NAME, change]
        stale = [
            (new != self._nothing) & (self._newest.one(block.part(place, states[LIVES])) != new)
            for new, place in zip(told, self._layout.lives, strict=True)
        ]
        return _side_by_side(source, now, kinds, names, stale=np.stack(stale), newest=REPORTED)

    def reads(self, states: States) -> Choices:
        """All choices of what the first rank has read."""
        count = states.shape[1]
        which, more, change = self._with(states, self._families.reads.of(states))
        source, now = np.append(np.arange(count), which), np.concatenate([states, more], axis=1)
        nothing, columns = np.zeros(count, np.int32), self._table.columns
        kinds, names = np.append(nothing, columns[KIND, change]), np.append(nothing, columns[NAME, change])
        stale = np.zeros((1, count), bool)
        stale[0, which[columns[KIND, change] == READ]] = True
        return _side_by_side(source, now, kinds[None], names[None], stale=stale, newest=READ)

    def _with(self, states: States, found: tuple[Column, Column]) -> tuple[Places, States, Places]:
        """Which states are changed, to what, and by which changes, as far as faults are left for them."""
        which, change = places_of(*found)
        columns = self._table.columns
        less = self._budget.after[states[LEFT, which], columns[SPENDS_AT, change]]
        which, change, less = which[less >= 0], change[less >= 0], less[less >= 0]
        blocks = [
            edits.apply(states[block, which], columns[block, change])
            for block, edits in enumerate(self._table.edits)
        ]
        return which, np.stack([*blocks, less]), change

    def all_told(self, states: States, left: int) -> States:
        """States in which every rank has reported and the first has read, nothing else is on its way, and so much is left."""
        heard = Heard(self._alike.hearings(states), self._looks.fence(states))
        told = self.told(states[POOL], heard)
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
        pools[self._layout.cache] = self._looks.can_be_read(states[LEAD])
        now = [pool.numbers(pools), lead.numbers(leads), lives.numbers(newest), np.full_like(control, left)]
        return self._alike.of(np.stack(now))


def _side_by_side(
    source: Places, states: States, kinds: Column, names: Column, *, stale: Flags, newest: int
) -> Choices:
    """Choices in the order of states; they are fresh where all that is ``stale`` has been replaced by its ``newest``."""
    order = np.argsort(source, kind="stable")
    source, kinds = source[order], kinds[:, order]
    fresh = ((kinds == newest) | ((kinds == 0) & ~stale[:, source])).all(axis=0)
    return Choices(source, states[:, order], kinds, names[:, order], fresh)


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
