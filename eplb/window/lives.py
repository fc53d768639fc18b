"""The lives of the ranks' processes: what each one counted so far, and which of its frames came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.window.sequence import Arrival, Sequence
from eplb.window.totals import Growth, Standing, growth

if TYPE_CHECKING:
    from collectors.facts import Frame

LIVES_PER_RANK = 4
"""Incarnations of one rank whose totals are held at a time: of a rank that restarts oftener in a window the oldest is let go."""


@dataclass(slots=True)
class Life:
    """One incarnation of one rank: its newest totals, and its first ones while they are in the window."""

    sequence: Sequence
    newest: Standing
    first: Standing | None
    first_ms: int
    last_ms: int
    gap_ms: int = 0


class Lives:
    """All incarnations heard of within the window.

    An incarnation's baseline is 0 if it was born within a window before its first frame, else the totals of its first
    frame. So what it counted is independent of which frames between came, and in which order. Frames of an incarnation that
    was let go add nothing more: without its totals they would count a second time.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._lives: dict[tuple[int, int], Life] = {}
        self._let_go_ms: dict[tuple[int, int], int] = {}
        self._lost_before = 0
        self.restarts = 0

    @property
    def lost(self) -> int:
        """Frames that never came, over all incarnations."""
        return self._lost_before + sum(life.sequence.lost for life in self._lives.values())

    @property
    def gap_ms(self) -> int:
        """The longest time between the last two frames of an incarnation."""
        return max((life.gap_ms for life in self._lives.values()), default=0)

    def arrive(self, frame: Frame, time_ms: int) -> tuple[Arrival, Growth | None]:
        """Note one frame: what its number says, and what it adds to the sums."""
        key = (frame.header.rank, frame.header.incarnation)
        life = self._lives.get(key)
        if life is None:
            if key in self._let_go_ms:
                return Arrival.LATE, None
            return Arrival.NEWEST, self._born(key, frame, time_ms)
        arrival = life.sequence.arrive(frame.header.seq)
        if arrival is Arrival.NEWEST:
            before, life.newest = life.newest, Standing.of(frame)
            life.gap_ms = max(0, time_ms - life.last_ms)
            life.last_ms = max(life.last_ms, time_ms)
            return arrival, growth(before, life.newest)
        if arrival is Arrival.EARLIER and life.first is not None:
            # Until now the sums began at the old first frame; they begin at this one, or at birth.
            first = life.first
            life.first = None if self._is_young(frame) else Standing.of(frame)
            return arrival, growth(self._baseline(frame), first)
        return arrival, None

    def _born(self, key: tuple[int, int], frame: Frame, time_ms: int) -> Growth | None:
        others = [other for other in self._lives if other[0] == key[0]]
        self.restarts += bool(others)
        if len(others) >= LIVES_PER_RANK:
            oldest = min(others, key=lambda other: self._lives[other].last_ms)
            self._let_go_ms[oldest] = time_ms
            self._lost_before += self._lives.pop(oldest).sequence.lost
        newest = Standing.of(frame)
        young = self._is_young(frame)
        self._lives[key] = Life(
            Sequence(frame.header.seq), newest, None if young else newest, time_ms, time_ms
        )
        return growth(self._baseline(frame), newest) if young else None

    def _is_young(self, frame: Frame) -> bool:
        return frame.header.age_ms <= self._window_ms

    def _baseline(self, frame: Frame) -> Standing:
        return Standing.empty(frame.layer_digests) if self._is_young(frame) else Standing.of(frame)

    def forget_before(self, now_ms: int) -> None:
        """Forget incarnations not heard of for a window, and first totals that left the window."""
        oldest_ms = now_ms - self._window_ms
        for key in [key for key, life in self._lives.items() if life.last_ms < oldest_ms]:
            self._lost_before += self._lives.pop(key).sequence.lost
        self._let_go_ms = {key: at_ms for key, at_ms in self._let_go_ms.items() if at_ms >= oldest_ms}
        for life in self._lives.values():
            if life.first_ms < oldest_ms:
                life.first = None
