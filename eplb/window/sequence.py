"""Which frames of one incarnation have come: repeated, late, lost."""

from __future__ import annotations

from enum import Enum

REORDER_FRAMES = 3
"""A missing frame counts as lost once this many newer ones have come."""
REMEMBERED = 4096


class Arrival(Enum):
    """What one frame's number says."""

    NEWEST = "newest"
    LATE = "late"
    EARLIER = "earlier"
    """Older than the first frame seen."""
    REPEATED = "repeated"


class Sequence:
    """Numbers of one incarnation's frames; ``lost`` only grows, so that it can be shown as a counter."""

    def __init__(self, first: int) -> None:
        self.first = self.newest = first
        self.lost = 0
        self._missing: set[int] = set()
        self._given_up: dict[int, None] = {}

    def arrive(self, number: int) -> Arrival:
        """Note one frame and say what it is."""
        if number > self.newest:
            self._expect(self.newest + 1, number)
            self.newest = number
            self._give_up()
            return Arrival.NEWEST
        if number < self.first:
            self._expect(number + 1, self.first)
            self.first = number
            self._give_up()
            return Arrival.EARLIER
        if number in self._missing:
            self._missing.discard(number)
            return Arrival.LATE
        if number in self._given_up:
            del self._given_up[number]
            return Arrival.LATE
        return Arrival.REPEATED

    def _expect(self, start: int, stop: int) -> None:
        # A damaged number must not make us remember 2**60 of them.
        skipped = max(0, stop - start - REMEMBERED)
        self.lost += skipped
        self._missing.update(range(start + skipped, stop))

    def _give_up(self) -> None:
        gone = sorted(number for number in self._missing if number <= self.newest - REORDER_FRAMES)
        self.lost += len(gone)
        self._missing.difference_update(gone)
        self._given_up.update(dict.fromkeys(gone))
        while len(self._given_up) > REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
