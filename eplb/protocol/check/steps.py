"""All steps from many states at once: of ranks, daemons, messages and faults, each worked out once for the parts that it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eplb.protocol.check.alike import Alike
from eplb.protocol.check.budget import Budget
from eplb.protocol.check.changes import Changes
from eplb.protocol.check.families import CLAIM, FREE, NAME, SPENDS_AT, WRONG, Table
from eplb.protocol.check.layout import BLOCK_BITS, LEAD, LEFT, LIVES, POOL, Block, Layout
from eplb.protocol.check.looks import Looks
from eplb.protocol.check.numbers import Memo, each
from eplb.protocol.check.parts import BITS, Parts
from eplb.protocol.check.rules import broken_rule
from eplb.protocol.check.world import KINDS, Daemon, Group, Live, Rank, shape_of, start

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Column, Columns, Places
    from eplb.protocol.check.world import Bounds


FALSE_CLAIM = "took a wave for live that not all ranks have served"


class Found(NamedTuple):
    """Steps: where each comes from, a column of the batch, and leads; its names, and what was broken, as numbers of texts.

    ``names`` [2, steps], 0 = no second one; ``free``: it comes without a fault and without being asked for.
    """

    source: Places
    states: States
    names: Column
    free: NDArray[np.bool_]
    wrong: Column

    def take(self, which: Places) -> Found:
        """Some of the steps."""
        return Found(
            self.source.take(which),
            np.take(self.states, which, axis=1),
            np.take(self.names, which, axis=1),
            self.free.take(which),
            self.wrong.take(which),
        )

    def joined(self, others: Found) -> Found:
        """These and then others."""
        return Found(
            np.concatenate([self.source, others.source]),
            np.concatenate([self.states, others.states], axis=1),
            np.concatenate([self.names, others.names], axis=1),
            np.concatenate([self.free, others.free]),
            np.concatenate([self.wrong, others.wrong]),
        )


class Steps:
    """Successors of states. A state is a column of numbers of blocks, see :class:`Layout`.

    ``reduced`` False: states that are alike stay apart, and every order of steps is taken; for a test of the reductions.
    """

    def __init__(self, bounds: Bounds, guards: frozenset[str], *, reduced: bool = True) -> None:
        self.bounds, self.layout = bounds, Layout.of(bounds)
        self._shape, self._parts = shape_of(bounds), Parts()
        self._blocks = [Block(which, places) for which, places in enumerate(self.layout.blocks)]
        changes = Changes(bounds, self._shape, self.layout, guards)
        self._ranks, parts = changes.ranks, self._parts
        self._alike = (
            Alike(bounds, self._shape, self.layout, blocks=self._blocks, ranks=self._ranks, parts=parts)
            if reduced
            else None
        )
        self.budget = Budget(start(bounds).left, parts)
        spent = frozenset(kind for kind in KINDS if getattr(bounds, kind)) | {"", "plans"}
        self._table = Table(self._blocks, parts, spent)
        self._looks = Looks(bounds, self.layout, self._blocks, parts)
        self._families = list(self._looks.families(changes, self._table))
        self._decided = [self._looks.decided(changes, number) for number in range(bounds.daemons)]
        self._claims = Memo((BITS, BLOCK_BITS[POOL]), 1, self._false_claims)
        self._rules = Memo((BLOCK_BITS[POOL],), 1, self._rules_broken)

    def start(self) -> States:
        """The first state: all ranks have reported, and one daemon leads."""
        state = start(self.bounds)
        lives = (Live(self._ranks.record(rank, n, state.group)) for n, rank in enumerate(state.ranks))
        daemons = (*state.daemons[:-1], Daemon(term=1))
        control = state.control._replace(fence=1, holder=len(daemons))
        parts = (*state.ranks, state.cache, state.group, control, *daemons, *lives)
        keys = np.array([[self._parts.key(part)] for part in parts], np.int32)
        numbers = [block.numbers(list(keys[block.places])) for block in self._blocks]
        return self._alike_of(np.array([*numbers, [self._parts.key(state.left)]], np.int32))

    def parts(self, state: Column) -> dict[int, Any]:
        """The parts of one state, by place."""
        kinds = self.layout.kinds
        return {
            place: self._parts.part(kinds[place], int(block.part(place, number)))
            for block, number in zip(self._blocks, state, strict=False)
            for place in block.places
        }

    def text(self, number: int) -> str:
        """A name or a rule."""
        return self._table.texts[number]

    def rules_broken(self, states: States) -> Column:
        """By state, the rule that it breaks, as number of a text, 0 = none."""
        return self._rules.one(states[POOL])

    def ended(self, states: States) -> NDArray[np.bool_]:
        """By state, whether nothing is on offer to this pool, being written, in hand or lost."""
        return self._looks.ended(states)

    def after(self, states: States) -> Found:
        """Every step from some states; a decision comes with the next step that it does not commute with (:meth:`Changes.decided_now`)."""
        found = self._after(states, None)
        waits = self._waits(found.states)
        waits[found.wrong > 0] = 0
        waiting = np.flatnonzero(waits)
        if not waiting.size:
            return found
        then = self._after(np.take(found.states, waiting, axis=1), waits[waiting])
        then = then.take(np.flatnonzero((then.wrong > 0) | (self._waits(then.states) == 0)))
        first = waiting[then.source]
        both = Found(
            found.source[first],
            then.states,
            np.stack([found.names[0, first], then.names[0]]),
            found.free[first] & then.free,
            then.wrong,
        )
        alone = np.flatnonzero(waits == 0)
        order = np.argsort(np.concatenate([alone, first]), kind="stable")
        return found.take(alone).joined(both).take(order)

    def _after(self, states: States, waits: Column | None) -> Found:
        """Every step from some states; with ``waits``, only those that change the store or the daemon at that place."""
        source, change = self._changes_from(states)
        table = self._table
        less = self.budget.after[states[LEFT, source], table.columns[SPENDS_AT, change]]
        kept = less >= 0
        if waits is not None:
            kept &= self._concerns(change, waits[source])
        source, change, less = (np.compress(kept, found) for found in (source, change, less))
        columns, before = np.take(table.columns, change, axis=1), np.take(states, source, axis=1)
        blocks = [edits.apply(before[which], columns[which]) for which, edits in enumerate(table.edits)]
        now = np.stack([*blocks, less])
        wrong, claims = columns[WRONG], columns[CLAIM]
        asked = np.flatnonzero((claims >= 0) & (wrong == 0))
        wrong[asked] = self._claims.one(claims[asked], before[POOL, asked])
        names = np.stack([columns[NAME], np.zeros_like(less)])
        return Found(source, self._alike_of(now), names, columns[FREE] > 0, wrong)

    def _concerns(self, change: Places, place: Column) -> NDArray[np.bool_]:
        """Whether a change is one of the store, or of the daemon at a place."""
        leads, edits = self._table.edits[LEAD], self._table.columns[LEAD, change]
        stored = leads.changes(edits, np.full_like(place, self.layout.control))
        lives: NDArray[np.bool_] = self._table.columns[LIVES, change] > 0
        return lives | stored | leads.changes(edits, place)

    def _changes_from(self, states: States) -> tuple[Places, Places]:
        """Changes by state, in the order of families: the state of each, and its place in the table."""
        found = [family.of(states) for family in self._families]
        begins = np.array([begin for begin, _ in found]).T.ravel()
        counts = np.array([count for _, count in found]).T.ravel()
        runs = np.repeat(np.arange(len(counts)), counts)
        first = begins - (np.cumsum(counts) - counts)
        return runs // len(found), first.take(runs) + np.arange(len(runs))

    def _alike_of(self, states: States) -> States:
        return states if self._alike is None else self._alike.of(states)

    def _waits(self, states: States) -> Column:
        """By state, the place of a daemon that could as well decide now on what it is to write, 0 = there is none."""
        waits = np.zeros(states.shape[1], np.int32)
        for number, place in enumerate(self.layout.daemons if self._alike is not None else ()):
            asked = np.flatnonzero((waits == 0) & self._looks.holds_to_write(states[LEAD], number))
            waits[asked] = place * self._decided[number](np.take(states, asked, axis=1))
        return waits

    # What is worked out once.

    def _false_claims(self, claims: Column, pools: Column) -> Columns:
        def broken(claim: int, group: int, *ranks: int) -> int:
            run, layer, row = self._table.claims[claim]
            life: Group = self._parts.part(Group, group)
            members = (self._parts.part(Rank, ranks[number]) for number in life.members)
            if run != life.run or all((layer, row) in rank.served for rank in members):
                return 0
            return self._table.text(FALSE_CLAIM)

        return each(broken)(claims, *self._group_and_ranks(pools))

    def _rules_broken(self, pools: Column) -> Columns:
        def broken(group: int, *ranks: int) -> int:
            found = tuple(self._parts.part(Rank, key) for key in ranks)
            rule = broken_rule(self._shape, found, self._parts.part(Group, group), self.bounds.profile)
            return self._table.text(rule)

        return each(broken)(*self._group_and_ranks(pools))

    def _group_and_ranks(self, pools: Column) -> Column:
        return self._blocks[POOL].parts(pools)[[self.layout.group, *self.layout.ranks]]
