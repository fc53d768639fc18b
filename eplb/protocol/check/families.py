"""Kinds of steps as tables: what each may do is worked out once for the parts that it looks at, and looked up for many states."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from eplb.protocol.check.budget import SPENDS
from eplb.protocol.check.layout import BLOCK_BITS, LEFT
from eplb.protocol.check.numbers import Memo, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from eplb.protocol.check.changes import Change, Claim
    from eplb.protocol.check.layout import Block, States
    from eplb.protocol.check.numbers import Column, Columns, Places
    from eplb.protocol.check.parts import Parts

T = TypeVar("T")

AS_BEFORE = -1
NO_CLAIM = -1
_EDIT_BITS = 20
NAME, WRONG, CLAIM, SPENDS_AT, FREE, KIND = range(LEFT, LEFT + 6)


class Edits:
    """What steps do to one block: edits by number, 0 = nothing; applied once to each row of the block."""

    def __init__(self, block: Block, bits: int) -> None:
        self._block = block
        self._known: dict[tuple[tuple[int, int], ...], int] = {(): 0}
        self._keys: Column = np.full((len(block.places), 1), AS_BEFORE, np.int32)
        self._applied = Memo((bits, _EDIT_BITS), 1, self._apply)

    def number(self, keys: dict[int, int]) -> int:
        """The number of an edit: new keys by place."""
        items = tuple(sorted(keys.items()))
        found = self._known.get(items)
        if found is None:
            found = self._known[items] = len(self._known)
            column = np.full((len(self._block.places), 1), AS_BEFORE, np.int32)
            for place, key in items:
                column[place - self._block.places.start] = key
            self._keys = np.concatenate([self._keys, column], axis=1)
        return found

    def apply(self, numbers: Column, edits: Column) -> Column:
        """The block's rows after edits."""
        after, changed = numbers.copy(), np.flatnonzero(edits)
        after[changed] = self._applied.one(numbers.take(changed), edits.take(changed))
        return after

    def changes(self, edits: Column, places: Column) -> NDArray[np.bool_]:
        """Whether each edit changes its place, which is one of this block."""
        return np.not_equal(self._keys[places - self._block.places.start, edits], AS_BEFORE)

    def _apply(self, numbers: Column, edits: Column) -> Columns:
        keys = self._keys[:, edits]
        return (self._block.numbers(list(np.where(keys == AS_BEFORE, self._block.parts(numbers), keys))),)


class Table:
    """All changes met so far, a column each.

    ``columns`` [LEFT + 6, changes]: an edit of each block; then at ``NAME`` and ``WRONG`` numbers of texts ("" is 0), at ``CLAIM``
    one of a claim or ``NO_CLAIM``, at ``SPENDS_AT`` one of :data:`SPENDS`, at ``FREE`` 1 or 0.
    ``spent``: kinds of faults that may come at all; changes that spend others are left out.
    """

    def __init__(self, blocks: Sequence[Block], parts: Parts, spent: frozenset[str]) -> None:
        self._blocks, self._parts, self._spent = blocks, parts, spent
        self.edits = [Edits(block, bits) for block, bits in zip(blocks, BLOCK_BITS, strict=True)]
        self._block_of = [which for which, block in enumerate(blocks) for _ in block.places]
        self.columns: Column = np.empty((KIND + 1, 0), np.int32)
        self.outcomes: Column = np.empty(0, np.int32)
        self.texts: list[str] = []
        self.claims: list[Claim] = []
        self._texts: dict[str, int] = {}
        self._outcomes: dict[tuple[int, ...], int] = {}
        self._claims: dict[Claim, int] = {}
        self.text("")

    def add(self, found: Iterable[Iterable[Change]]) -> Column:
        """Keep lists of changes; [lists + 1] where each begins and the last ends."""
        rows: list[list[int]] = []
        begins = [self.columns.shape[1]]
        for changes in found:
            rows += [
                self._row(change) for change in changes if self._spent.issuperset(change.spends.split("+"))
            ]
            begins.append(begins[0] + len(rows))
        if rows:
            self.columns = np.concatenate([self.columns, np.array(rows, np.int32).T], axis=1)
            outcomes = [self._outcomes.setdefault(tuple(row), len(self._outcomes)) for row in rows]
            self.outcomes = np.append(self.outcomes, np.array(outcomes, np.int32))
        return np.array(begins, np.int32)

    def text(self, text: str) -> int:
        """The number of a name or of a rule."""
        return _number(self._texts, self.texts, text)

    def _row(self, change: Change) -> list[int]:
        keys: list[dict[int, int]] = [{} for _ in self._blocks]
        for place, part in change.parts.items():
            keys[self._block_of[place]][place] = self._parts.key(part)
        edits = [edits.number(new) for edits, new in zip(self.edits, keys, strict=True)]
        claim = NO_CLAIM if change.claim is None else _number(self._claims, self.claims, change.claim)
        spends = SPENDS.index(change.spends)
        return [
            *edits,
            self.text(change.name),
            self.text(change.wrong),
            claim,
            spends,
            int(change.free),
            change.kind,
        ]


class Family:
    """Steps that look at the same parts: at columns of numbers with so many ``bits``; ``make`` gives the changes for one row of them."""

    def __init__(self, table: Table, bits: Sequence[int], make: Callable[..., Iterable[Change]]) -> None:
        self._table, self._rows, self._make = table, Rows(bits), make
        self._begins: Column = np.empty(0, np.int32)
        self._counts: Column = np.empty(0, np.int32)

    def look(self, columns: Columns) -> tuple[Column, Column]:
        """By row, where its changes begin in the table, and how many they are."""
        numbers, fresh = self._rows.of(columns)
        if fresh.size:
            rows = zip(*(column[fresh].tolist() for column in columns), strict=True)
            begins = self._table.add(self._make(*row) for row in rows)
            self._begins = np.append(self._begins, begins[:-1])
            self._counts = np.append(self._counts, np.diff(begins))
        return self._begins.take(numbers), self._counts.take(numbers)


class StateFamily(Family):
    """The same where states alone say what is looked at: ``looks`` gives the columns of a batch of states."""

    def __init__(
        self,
        table: Table,
        bits: Sequence[int],
        make: Callable[..., Iterable[Change]],
        looks: Callable[[States], Columns],
    ) -> None:
        super().__init__(table, bits, make)
        self._looks = looks

    def of(self, states: States) -> tuple[Column, Column]:
        """By state, where its changes begin in the table, and how many they are."""
        return self.look(self._looks(states))


def places_of(begins: Column | Places, counts: Column | Places) -> tuple[Places, Places]:
    """Runs of places: the run of each, and the place."""
    runs = np.repeat(np.arange(len(counts)), counts)
    first = np.asarray(begins, np.intp) - (np.cumsum(counts, dtype=np.intp) - counts)
    return runs, first.take(runs) + np.arange(len(runs))


def _number(known: dict[T, int], listed: list[T], item: T) -> int:
    if item not in known:
        known[item] = len(listed)
        listed.append(item)
    return known[item]
