"""Rows of small integers, many at once: equal rows have one number, by which is kept what was worked out for the row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Column = NDArray[np.int32]
    Columns = Sequence[Column] | Column
    Words = NDArray[np.int64]
    Places = NDArray[np.intp]

FREE = -1
_NUMBER_BITS, _WORD_BITS = 31, 62
_ODD = np.uint64(0x9E3779B97F4A7C15)


def homes(words: Words, size: int) -> Places:
    """Where the search for each word begins in a table of so many places, a power of two."""
    mixed = words.view(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD
    return (mixed >> np.uint64(65 - size.bit_length())).view(np.intp)


def take_places(table: Words, words: Words) -> tuple[Places, int]:
    """The place of each word in a table with open addressing, where it takes one if it has none; and how many were taken.

    ``table`` holds words or ``FREE`` and has room; so has whatever is kept of the words at the same places of other arrays.
    """
    places, taken = homes(words, len(table)), 0
    asked, at = np.arange(len(words)), places
    while asked.size:
        found, wanted = table.take(at), words.take(asked)
        free = np.flatnonzero(found == FREE)
        if free.size:
            table[at[free]] = wanted[free]  # of several for one place, one gets it
            taken += len(np.unique(at[free]))
            found = table.take(at)
        here = found == wanted
        places[asked[here]] = at[here]
        asked, at = asked[~here], (at[~here] + 1) & (len(table) - 1)
    return places, taken


class Numbers:
    """Numbers 0, 1, 2 ... of words >= 0, in the order in which these were met; a hash table with open addressing."""

    def __init__(self) -> None:
        self.count = 0
        self._words: Words = np.full(1 << 10, FREE, np.int64)
        self._numbers: Column = np.zeros(1 << 10, np.int32)

    def of(self, words: Words) -> tuple[Column, Places]:
        """The number of each word, and the places at which new ones stand for the first time, in order."""
        numbers = self._find(words)
        missing = np.flatnonzero(numbers < 0)
        if not missing.size:
            return numbers, missing
        _, first, inverse = np.unique(words[missing], return_index=True, return_inverse=True)
        order = np.argsort(first)
        given = np.empty(len(order), np.int32)
        given[order] = np.arange(self.count, self.count + len(order), dtype=np.int32)
        numbers[missing] = given[inverse]
        fresh = missing[first[order]]
        self._add(words[fresh])
        return numbers, fresh

    def _find(self, words: Words) -> Column:
        at = homes(words, len(self._words))
        found, numbers = self._words.take(at), self._numbers.take(at)
        asked = np.flatnonzero(found != words)
        numbers[asked] = FREE
        asked = np.compress(found.take(asked) != FREE, asked)
        at = at.take(asked)
        while asked.size:
            at = (at + 1) & (len(self._words) - 1)
            found = self._words.take(at)
            here = found == words.take(asked)
            numbers[np.compress(here, asked)] = self._numbers.take(np.compress(here, at))
            open_ = ~here & (found != FREE)
            asked, at = np.compress(open_, asked), np.compress(open_, at)
        return numbers

    def _add(self, words: Words) -> None:
        numbers = np.arange(self.count, self.count + len(words), dtype=np.int32)
        self.count += len(words)
        if 2 * self.count > len(self._words):
            kept = np.flatnonzero(self._words != FREE)
            words = np.concatenate([self._words[kept], words])
            numbers = np.concatenate([self._numbers[kept], numbers])
            size = 1 << (4 * self.count - 1).bit_length()
            self._words = np.full(size, FREE, np.int64)
            self._numbers = np.zeros(size, np.int32)
        self._numbers[take_places(self._words, words)[0]] = numbers


class _Dense:
    """The same for words that are small, so that a word is a place in an array."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: Column = np.empty(0, np.int32)

    def of(self, words: Column) -> tuple[Column, Places]:
        """As :meth:`Numbers.of`."""
        more = int(words.max(initial=-1)) + 1 - len(self._numbers)
        if more > 0:
            self._numbers = np.append(self._numbers, np.full(more + len(self._numbers), FREE, np.int32))
        numbers = self._numbers.take(words)
        missing = np.flatnonzero(numbers < 0)
        if not missing.size:
            return numbers, missing
        fresh = missing[np.sort(np.unique(words[missing], return_index=True)[1])]
        self._numbers[words[fresh]] = np.arange(self.count, self.count + len(fresh), dtype=np.int32)
        self.count += len(fresh)
        return self._numbers[words], fresh


class Packing:
    """Rows that are given as columns, as one word each; ``bits`` of each column's numbers."""

    def __init__(self, bits: Sequence[int]) -> None:
        self._bits = tuple(bits)
        self._inner: list[Numbers] = []

    def words(self, columns: Columns) -> Words:
        """The word of each row; where rows are wider than a word, their first columns are numbered."""
        word, width, inner = columns[0].astype(np.int64), self._bits[0], 0
        for column, bits in zip(columns[1:], self._bits[1:], strict=True):
            if width + bits > _WORD_BITS:
                if inner == len(self._inner):
                    self._inner.append(Numbers())
                word, width = self._inner[inner].of(word)[0].astype(np.int64), _NUMBER_BITS
                inner += 1
            word <<= bits
            word |= column
            width += bits
        return word


class Rows:
    """Numbers of rows that are given as columns; ``bits`` of each column's numbers."""

    def __init__(self, bits: Sequence[int]) -> None:
        self._packing = Packing(bits)
        self._outer: Numbers | _Dense = Numbers() if len(bits) > 1 else _Dense()

    @property
    def count(self) -> int:
        """Rows met so far."""
        return self._outer.count

    def of(self, columns: Columns) -> tuple[Column, Places]:
        """The number of each row, and the places at which new rows stand for the first time, in order."""
        if isinstance(self._outer, _Dense):
            return self._outer.of(columns[0])
        return self._outer.of(self._packing.words(columns))


class Memo:
    """A function of rows that gives rows, worked out once for each row met; both are given as columns."""

    def __init__(self, bits: Sequence[int], outputs: int, make: Callable[..., Columns]) -> None:
        self.rows, self._make = Rows(bits), make
        self._made: Column = np.empty((outputs, 0), np.int32)

    def of(self, *columns: Column) -> Column:
        """What the function gives for each row, [outputs, rows]."""
        numbers = self._numbers_of(columns)
        return np.take(self._made, numbers, axis=1)

    def one(self, *columns: Column) -> Column:
        """The same for a function that gives one number."""
        numbers = self._numbers_of(columns)
        return np.take(self._made[0], numbers)

    def _numbers_of(self, columns: Sequence[Column]) -> Column:
        numbers, fresh = self.rows.of(columns)
        if fresh.size:
            more = np.asarray(self._make(*(column[fresh] for column in columns)), np.int32)
            self._made = np.concatenate([self._made, more], axis=1)
        return numbers


def each(make: Callable[..., int | Sequence[int]]) -> Callable[..., Columns]:
    """A function of one row, for many rows."""

    def many(*columns: Column) -> Columns:
        made = [make(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        return np.array(made, np.int32).reshape(len(made), -1).T

    return many
