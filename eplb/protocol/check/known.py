"""States that were met, and what was left in them: one with no more left than a like state had is not met anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.protocol.check.layout import BLOCK_BITS, LEFT
from eplb.protocol.check.numbers import FREE, Packing, take_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.budget import Budget
    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Places, Words

_CHUNK = 1 << 20


class Known:
    """States met, by all but what is left (their likeness), with all that is covered by what was left in them.

    A table with open addressing, at most 7 of 10 places taken, with nothing beside each likeness but what is covered: of large searches it
    is most of the memory.
    """

    def __init__(self, budget: Budget) -> None:
        self.count = 0
        self._packing, self._covers = Packing(BLOCK_BITS), budget.covered
        self._make(1 << 12)

    def _make(self, size: int) -> None:
        self._words: Words = np.full(size, FREE, np.int64)
        self._covered: NDArray[np.uint64] = np.zeros((size, self._covers.shape[1]), np.uint64)

    def add(self, states: States) -> Places:
        """Which of the states are new, in order: none like them before had as much left of all kinds."""
        words, left = self._packing.words(states[:LEFT]), states[LEFT]
        self._make_room(len(words))
        places = self._places(words)
        new: list[Places] = []
        asked = self._open(np.arange(len(left)), places, left)
        while asked.size:
            # Of likenesses that come more than once, each time the first of those still open.
            first = asked[np.unique(places[asked], return_index=True)[1]]
            self._covered[places[first]] |= self._covers[left[first]]
            new.append(first)
            asked = self._open(asked, places, left)
        return np.sort(np.concatenate(new)) if new else np.empty(0, np.intp)

    def _open(self, asked: Places, places: Places, left: NDArray[np.int32]) -> Places:
        which = left[asked]
        words = self._covered[places[asked], which // 64]
        return np.compress(words >> (which % 64).astype(np.uint64) & np.uint64(1) == 0, asked)

    def _make_room(self, more: int) -> None:
        size = len(self._words)
        while 10 * (self.count + more) > 7 * size:
            size *= 2
        if size == len(self._words):
            return
        words, covered = self._words, self._covered
        self._make(size)
        self.count = 0
        for begin in range(0, len(words), _CHUNK):
            part = words[begin : begin + _CHUNK]
            kept = np.flatnonzero(part != FREE)
            self._covered[self._places(part[kept])] = covered[begin + kept]

    def _places(self, words: Words) -> Places:
        places, taken = take_places(self._words, words)
        self.count += taken
        return places
