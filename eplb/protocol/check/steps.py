"""All steps from many states at once: of ranks, daemons, messages and faults, each worked out once for the parts that it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eplb.protocol.check.alike import Alike
from eplb.protocol.check.budget import Budget
from eplb.protocol.check.changes import OVERWRITTEN, Changes
from eplb.protocol.check.families import CLAIM, FREE, KIND, NAME, SPENDS_AT, WRONG, Table, places_of
from eplb.protocol.check.layout import BLOCK_BITS, LEAD, LEFT, LIVES, POOL, Block, Layout
from eplb.protocol.check.looks import Looks
from eplb.protocol.check.numbers import Memo, Rows, each
from eplb.protocol.check.parts import BITS, Parts
from eplb.protocol.check.rules import broken_rule
from eplb.protocol.check.updates import Heard, Updates, captured, kept_from
from eplb.protocol.check.world import KINDS, Daemon, Group, Live, Rank, shape_of, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Column, Columns, Places
    from eplb.protocol.check.updates import Choices
    from eplb.protocol.check.world import Bounds


BATCH = 1 << 14
"""States from which steps are best taken at once: more of them need more memory, and are not faster."""
FALSE_CLAIM = "took a wave for live that not all ranks have served"


class Found(NamedTuple):
    """Steps: where each comes from, a column of the batch, and leads; its way and what was broken, as numbers.

    ``free``: it comes without a fault and without being asked for.
    """

    source: Places
    states: States
    ways: Column
    free: NDArray[np.bool_]
    wrong: Column

    def take(self, which: Places) -> Found:
        """Some of the steps."""
        return Found(
            self.source.take(which),
            np.take(self.states, which, axis=1),
            self.ways.take(which),
            self.free.take(which),
            self.wrong.take(which),
        )


class Raw(NamedTuple):
    """Steps before like states are one; ``kinds`` of their changes."""

    source: Places
    states: States
    names: Column
    free: NDArray[np.bool_]
    wrong: Column
    kinds: Column

    def take(self, which: Places) -> Raw:
        """Some of the steps."""
        return Raw(
            self.source.take(which),
            np.take(self.states, which, axis=1),
            np.take(self.names, which, axis=1),
            self.free.take(which),
            self.wrong.take(which),
            self.kinds.take(which),
        )

    @classmethod
    def joined(cls, found: Sequence[Raw]) -> Raw:
        """Steps one after the other."""
        return cls(
            np.concatenate([steps.source for steps in found]),
            np.concatenate([steps.states for steps in found], axis=1),
            np.concatenate([steps.names for steps in found], axis=1),
            np.concatenate([steps.free for steps in found]),
            np.concatenate([steps.wrong for steps in found]),
            np.concatenate([steps.kinds for steps in found]),
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
        self.budget = Budget(start(bounds).left, parts)
        spent = frozenset(kind for kind in KINDS if getattr(bounds, kind)) | {"", "plans"}
        self._table = Table(self._blocks, parts, spent)
        self._looks = Looks(bounds, self.layout, self._blocks, parts, changes)
        self._families = self._looks.families(self._table)
        self._alike: Alike | None = None
        if reduced:
            self._alike = Alike(
                bounds, self._shape, self.layout, blocks=self._blocks, ranks=self._ranks, parts=parts
            )
            self._updates = Updates(
                self.layout, self._blocks, parts, alike=self._alike, looks=self._looks, families=self._families,
                table=self._table, budget=self.budget,
            )  # fmt: skip
        self._ways = Rows((BITS,) * (bounds.ranks + 3))
        self._names: list[tuple[int, ...]] = []
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

    def told(self, states: States) -> States:
        """The same states when all is reported and read, and no more comes of itself."""
        return self._updates.all_told(states, self.budget.nothing)

    def way(self, number: int) -> list[str]:
        """The names of what a step consists of."""
        return [self._table.texts[name] for name in self._names[number] if name]

    def after(self, states: States) -> Found:
        """Every step from some states."""
        raw = self._all_orders(states) if self._alike is None else self._reduced(states, self._alike)
        raw = raw.take(np.argsort(raw.source, kind="stable"))
        ways, fresh = self._ways.of(raw.names)
        self._names += map(tuple, raw.names[:, fresh].T.tolist())
        return Found(raw.source, self._alike_of(raw.states), ways, raw.free, raw.wrong)

    def _all_orders(self, states: States) -> Raw:
        """Every step by itself; what ranks report and read too."""
        families, lives = self._families, self._blocks[LIVES]
        told = self._looks.told(states[POOL], self._looks.fence(states))
        found = [family.of(states) for family in families.alone()]
        for family, place, record in zip(families.tells, self.layout.lives, told, strict=True):
            found.append(family.look([record, lives.part(place, states[LIVES])]))
        source, change = _merged(found)
        return self._taken(source, np.take(states, source, axis=1), change)

    def _reduced(self, states: States, alike: Alike) -> Raw:
        """Steps with the reports and reads that they need, and decisions with what comes of them."""
        heard = Heard(alike.hearings(states), self._looks.fence(states))
        told = self._updates.told(states[POOL], heard)
        reports, reads = self._updates.reports(states, told), self._updates.reads(states)
        ranks = self._of_ranks(states, told, heard, reports, reads)
        daemons = Raw.joined([*self._of_readers(reports), self._of_writers(states)])
        before = self._looks.can_be_read(states[LEAD])[daemons.source]
        changed = self._looks.can_be_read(daemons.states[LEAD]) != before
        which, choice = captured(daemons.source, changed, daemons.kinds == OVERWRITTEN, reads)
        daemons = daemons.take(which)
        daemons.states[POOL] = reads.states[POOL, choice]
        daemons.names[0] = reads.names[0, choice]
        return Raw.joined([ranks, daemons._replace(free=daemons.free & (reads.kinds[0, choice] == 0))])

    def _of_ranks(self, states: States, told: Column, heard: Heard, reports: Choices, reads: Choices) -> Raw:
        """Gates after reads that matter to them, and what ranks do of themselves; both after reports that would be too late then."""
        read, gate = _merged([self._families.gates.of(reads.states)])
        needed, fresh = self._needed(reads, read, gate)
        read, gate = read[needed], gate[needed]
        source, own = _merged([self._families.own.of(states)])
        first = np.searchsorted(reads.source, source)
        read, change = np.append(read, first), np.append(gate, own)
        free = np.append(fresh, np.ones(len(own), bool))
        source = reads.source[read]
        pools = self._table.edits[POOL].apply(reads.states[POOL, read], self._table.columns[POOL, change])
        now = self._updates.told(pools, heard.take(source))
        which, report = kept_from(source, now != told[:, source], reports)
        before = np.take(reports.states, report, axis=1)
        before[:LIVES] = reads.states[:LIVES, read[which]]
        names = np.concatenate([reads.names[:, read[which]], reports.names[:, report]])
        calm = free[which] & (reports.kinds[:, report] == 0).all(axis=0)
        return self._taken(source[which], before, change[which], names, calm)

    def _of_readers(self, reports: Choices) -> Iterator[Raw]:
        """Steps of daemons that read records; a decision with the next step that it does not commute with."""
        families = self._families
        for number, place in enumerate(self.layout.daemons):
            for family in (families.leads[number], families.decisions[number]):
                which, change = _merged([family.of(reports.states)])
                needed, fresh = self._needed(reports, which, change)
                which, change = which[needed], change[needed]
                names = np.concatenate([np.zeros((1, len(which)), np.int32), reports.names[:, which]])
                before = np.take(reports.states, which, axis=1)
                found = self._taken(reports.source[which], before, change, names, fresh)
                if family is families.leads[number]:
                    yield found
                    continue
                ends = (found.wrong > 0) | ~self._looks.writes(found.states[LEAD], place)
                yield found.take(np.flatnonzero(ends))
                found = found.take(np.flatnonzero(~ends))
                which, change = _merged(
                    [family.of(found.states) for family in (families.then[number], *families.strays)]
                )
                then = found.take(which)
                yield self._taken(then.source, then.states, change, then.names[:-1], then.free, second=True)

    def _of_writers(self, states: States) -> Raw:
        source, change = _merged(
            [family.of(states) for family in (self._families.leaders, *self._families.strays)]
        )
        return self._taken(source, np.take(states, source, axis=1), change)

    def _needed(self, choices: Choices, which: Places, change: Places) -> tuple[Places, NDArray[np.bool_]]:
        """Steps that do not come with less chosen too; and whether they come with all that is fresh."""
        size = len(choices.kinds)
        shifts = 3 * np.arange(size)[:, None]
        digits = choices.kinds[:, which].astype(np.int64)
        base = (choices.source[which].astype(np.int64) << 34 | self._table.outcomes[change]) << 12
        keys = base | (digits << shifts).sum(axis=0)
        there = np.unique(keys)
        needed = np.ones(len(which), bool)
        for digit, shift in zip(digits, shifts[:, 0].tolist(), strict=True):
            chosen = np.flatnonzero((digit > 0) & needed)
            needed[chosen] = ~_among(keys[chosen] & ~(7 << shift), there)
        fresh = np.unique(base[choices.fresh[which]])
        places = np.flatnonzero(needed)
        return places, _among(base[places], fresh)

    def _taken(
        self,
        source: Places,
        before: States,
        change: Places,
        names: Column | None = None,
        free: NDArray[np.bool_] | None = None,
        *,
        second: bool = False,
    ) -> Raw:
        """Changes of states, one by one, as far as faults and plans are left for them; ``names`` of what came before."""
        table = self._table
        less = self.budget.after[before[LEFT], table.columns[SPENDS_AT, change]]
        kept = np.flatnonzero(less >= 0)
        source, before, change, less = source[kept], np.take(before, kept, axis=1), change[kept], less[kept]
        columns = np.take(table.columns, change, axis=1)
        blocks = [edits.apply(before[which], columns[which]) for which, edits in enumerate(table.edits)]
        wrong, claims = columns[WRONG], columns[CLAIM]
        asked = np.flatnonzero((claims >= 0) & (wrong == 0))
        wrong[asked] = self._claims.one(claims[asked], before[POOL, asked])
        said = np.zeros((len(self.layout.ranks) + 3, len(source)), np.int32)
        if names is not None:
            said[: len(names)] = names[:, kept]
        said[-1 if second else -2] = columns[NAME]
        flags = columns[FREE] > 0
        if free is not None:
            flags &= free[kept]
        return Raw(source, np.stack([*blocks, less]), said, flags, wrong, columns[KIND])

    def _alike_of(self, states: States) -> States:
        return states if self._alike is None else self._alike.of(states)

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


def _merged(found: Sequence[tuple[Column, Column]]) -> tuple[Places, Places]:
    """Changes by state, in the order of families: the state of each, and its place in the table."""
    begins = np.array([begin for begin, _ in found]).T.ravel()
    counts = np.array([count for _, count in found]).T.ravel()
    runs, places = places_of(begins, counts)
    return runs // len(found), places


def _among(words: NDArray[np.int64], sorted_words: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(sorted_words):
        return np.zeros(len(words), bool)
    at = np.minimum(np.searchsorted(sorted_words, words), len(sorted_words) - 1)
    found: NDArray[np.bool_] = sorted_words[at] == words
    return found
