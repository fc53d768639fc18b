"""Tokens by interval of time: a ring of short intervals that together make the window."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from eplb.window.rekey import rekeyed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from collectors.facts import Phase, PoolFacts

INTERVALS = 60


@dataclass(slots=True)
class PhaseSums:
    """Sums of one phase in one interval.

    ``logical`` int64 [layers, experts] and ``rank_load`` int64 [layers, ranks], tokens x copies of the scope.
    ``tokens`` and ``rank_steps``: tokens routed and forwards, summed over ranks.
    """

    logical: NDArray[np.int64]
    rank_load: NDArray[np.int64]
    tokens: int = 0
    rank_steps: int = 0


@dataclass(slots=True)
class Interval:
    """One interval: its sums by phase, how its sampled steps ended (complete, incomplete, misaligned), its newest frame."""

    phases: dict[Phase, PhaseSums] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    group_step: int = 0
    newest_ms: int = 0


class Intervals:
    """The intervals of the window, by number; what is older than the window is forgotten."""

    def __init__(self, facts: PoolFacts, window_ms: int) -> None:
        self._facts = facts
        self._window_ms = window_ms
        self.length_ms = max(1, -(-window_ms // INTERVALS))
        self._intervals: dict[int, Interval] = {}

    def __iter__(self) -> Iterator[Interval]:
        return (self._intervals[number] for number in sorted(self._intervals))

    def first_ms(self, now_ms: int) -> int:
        """Begin of the oldest interval; ``now_ms`` while there is none."""
        return min(self._intervals) * self.length_ms if self._intervals else now_ms

    def number(self, time_ms: int) -> int:
        """Number of the interval that holds this time."""
        return time_ms // self.length_ms

    def at(self, time_ms: int) -> Interval:
        """The interval that holds this time."""
        return self._intervals.setdefault(self.number(time_ms), Interval())

    def get(self, number: int) -> Interval | None:
        """An interval by its number, if it is still in the window."""
        return self._intervals.get(number)

    def sums_at(self, time_ms: int, phase: Phase) -> PhaseSums:
        """The sums of one phase in the interval that holds this time."""
        interval = self.at(time_ms)
        if phase not in interval.phases:
            facts = self._facts
            interval.phases[phase] = PhaseSums(
                np.zeros((facts.layers, facts.experts), dtype=np.int64),
                np.zeros((facts.layers, facts.ranks), dtype=np.int64),
            )
        return interval.phases[phase]

    def forget_before(self, now_ms: int) -> int:
        """Forget what is older than the window; gives the number of the oldest interval that is kept."""
        oldest = self.number(max(0, now_ms - self._window_ms))
        for number in [number for number in self._intervals if number < oldest]:
            del self._intervals[number]
        return oldest

    def total(self, phase: Phase | None) -> PhaseSums:
        """Sums over the window, of one phase or of all."""
        facts = self._facts
        logical = np.zeros((facts.layers, facts.experts), dtype=np.int64)
        rank_load = np.zeros((facts.layers, facts.ranks), dtype=np.int64)
        out = PhaseSums(logical, rank_load)
        for interval in self._intervals.values():
            for sums in chosen(interval, phase):
                logical += sums.logical
                rank_load += sums.rank_load
                out.tokens += sums.tokens
                out.rank_steps += sums.rank_steps
        return out

    def adopt(self, other: Intervals, layers: NDArray[np.int64]) -> None:
        """Take over the tokens by expert of another topology; ``layers`` as for ``StepRing.adopt``."""
        for number, theirs in other._intervals.items():
            for phase, sums in theirs.phases.items():
                ours = self.sums_at(number * self.length_ms, phase)
                ours.logical[:] = rekeyed(sums.logical, layers)
                ours.tokens, ours.rank_steps = sums.tokens, sums.rank_steps

    def steps(self, how: str) -> int:
        """Sampled steps of the window that ended so."""
        return sum(interval.steps.get(how, 0) for interval in self._intervals.values())


def chosen(interval: Interval, phase: Phase | None) -> list[PhaseSums]:
    """The sums of one phase of an interval, or of all its phases."""
    if phase is None:
        return list(interval.phases.values())
    return [interval.phases[phase]] if phase in interval.phases else []
