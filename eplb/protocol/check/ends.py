"""Whether every state has a way to an end that needs no fault and no wish.

From any state ranks can report and the first can read at once, and messages on their way can stay away. So it is enough that
each state after that has a way, on steps that look at nothing older. These are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eplb.protocol.check.layout import BLOCK_BITS, LEFT
from eplb.protocol.check.numbers import Rows
from eplb.protocol.check.steps import BATCH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Column
    from eplb.protocol.check.steps import Steps


class _Open(NamedTuple):
    """States in which all is told, of which no step was taken yet: their numbers, and those of the first states that they were made of."""

    numbers: Column
    states: States
    first: Column


class Ends:
    """States in which all is told, each with the first state that it was made of."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._rows = Rows(BLOCK_BITS)
        self._open: list[_Open] = []
        self._first: list[Column] = []

    @property
    def count(self) -> int:
        """States in which all is told."""
        return self._rows.count

    def add(self, states: States, numbers: Column) -> Column:
        """Keep what states are when all is told; their numbers among these."""
        told = self._steps.told(states)
        found, fresh = self._rows.of(told[:LEFT])
        if fresh.size:
            self._open.append(_Open(found[fresh], np.take(told, fresh, axis=1), numbers[fresh]))
            self._first.append(numbers[fresh])
        return found

    def distances(self) -> tuple[int, int]:
        """Steps from each state to an end: (the largest, a state without a way or -1)."""
        edges: list[tuple[Column, Column]] = []
        ended: list[Column] = []
        while self._open:
            open_ = self._open.pop()
            ended.append(open_.numbers[self._steps.ended(open_.states)])
            parts = [slice(begin, begin + BATCH) for begin in range(0, len(open_.numbers), BATCH)]
            edges += [self._edges(_Open(*(array[..., part] for array in open_))) for part in parts]
        seen = np.zeros(self.count, bool)
        seen[np.concatenate(ended)] = True
        distance = _backwards(edges, seen)
        lost = np.flatnonzero(~seen)
        return distance, int(np.concatenate(self._first)[lost].min()) if lost.size else -1

    def _edges(self, open_: _Open) -> tuple[Column, Column]:
        found = self._steps.after(open_.states)
        found = found.take(np.flatnonzero(found.free))
        target = self.add(found.states, open_.first[found.source])
        words = np.unique(open_.numbers[found.source].astype(np.int64) << 32 | target)
        return (words >> 32).astype(np.int32), (words & 0xFFFFFFFF).astype(np.int32)


def _backwards(edges: list[tuple[Column, Column]], seen: NDArray[np.bool_]) -> int:
    """Mark all from which a marked one can be reached; the number of rounds that it took."""
    sources, targets = (np.concatenate(arrays) for arrays in zip(*edges, strict=True))
    distance = 0
    while True:
        open_ = ~seen[sources]
        sources, targets = sources[open_], targets[open_]
        reached = sources[seen[targets]]
        if not reached.size:
            return distance
        seen[reached] = True
        distance += 1
