"""The continuous batch: places for requests in flight, each served one token a step until it ends and another takes its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

NOBODY = -1
"""Sequence of a place that is free."""


@dataclass(frozen=True, slots=True)
class Request:
    """A part of a recorded sequence: positions ``first`` to ``end`` - 1, at least one."""

    sequence: int
    first: int
    end: int


class Batch:
    """Up to ``places`` requests in flight.

    ``admit`` is asked for the next request of every free place, lowest place first; None = nobody waits, and the place stays
    free for the step. ``sequences``, ``positions``: int32 [places], the token that each place serves now; NOBODY = none.
    """

    def __init__(self, places: int, admit: Callable[[], Request | None]) -> None:
        self._admit = admit
        self.sequences = np.full(places, NOBODY, dtype=np.int32)
        self.positions = np.zeros(places, dtype=np.int32)
        self._ends = np.zeros(places, dtype=np.int32)
        self.fill()

    def fill(self) -> None:
        """Give free places to those who wait."""
        for place in np.flatnonzero(self.sequences == NOBODY).tolist():
            request = self._admit()
            if request is None:
                return
            self.sequences[place], self.positions[place] = request.sequence, request.first
            self._ends[place] = request.end

    def advance(self) -> None:
        """Go to the next step: every request moves on by one token and ended ones are replaced."""
        self.positions += 1
        ended: NDArray[np.bool_] = self.positions >= self._ends
        self.sequences[ended] = NOBODY
        self.fill()

    @property
    def running(self) -> int:
        """Requests in flight."""
        return int((self.sequences != NOBODY).sum())
