"""States that were met, and what was left in them: one with no more left than a like state had is not met anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.protocol.check.layout import BLOCK_BITS, LEFT
from eplb.protocol.check.numbers import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.budget import Budget
    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Column, Places


class Known:
    """States met, by all but what is left (their likeness), with all that is covered by what was left in them."""

    def __init__(self, budget: Budget) -> None:
        self._rows, self._covers = Rows(BLOCK_BITS), budget.covered
        self._covered: NDArray[np.uint64] = np.zeros((1 << 12, self._covers.shape[1]), np.uint64)

    @property
    def count(self) -> int:
        """Likenesses met so far."""
        return self._rows.count

    def add(self, states: States) -> tuple[Column, Places]:
        """Numbers of the states' likenesses, and which states are new, in order: none before had as much left of all kinds."""
        numbers, _ = self._rows.of(states[:LEFT])
        left = states[LEFT]
        while len(self._covered) < self.count:
            self._covered = np.concatenate([self._covered, np.zeros_like(self._covered)])
        new: list[Places] = []
        asked = self._open(np.arange(len(left)), numbers, left)
        while asked.size:
            # Of likenesses that come more than once, each time the first of those still open.
            first = asked[np.unique(numbers[asked], return_index=True)[1]]
            self._covered[numbers[first]] |= self._covers[left[first]]
            new.append(first)
            asked = self._open(asked, numbers, left)
        return numbers, np.sort(np.concatenate(new)) if new else np.empty(0, np.intp)

    def _open(self, asked: Places, numbers: Column, left: Column) -> Places:
        which = left[asked]
        words = self._covered[numbers[asked], which // 64]
        return np.compress(words >> (which % 64).astype(np.uint64) & np.uint64(1) == 0, asked)
