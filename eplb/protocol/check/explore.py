"""Breadth first over all states: the first broken rule with the way to it, or how many states there are and how deep.

States with fewer faults spent come first. A state that is like one already found, but has no more faults and plans left, is
not entered again: all that can follow it follows the other one too, and its way to an end, which needs none, is the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eplb.protocol.check.known import Known
from eplb.protocol.check.layout import LEFT
from eplb.protocol.check.steps import Steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Column
    from eplb.protocol.check.world import Bounds

NO_WAY_ON = "no way to an end without a further fault or a further wish"
BATCH = 1 << 14
"""States from which steps are taken at once: more of them need more memory, and are not faster."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was found.

    ``states`` reached, ``depth`` the longest shortest way to one, ``steps`` between them; ``to_end`` the longest shortest way
    from a state to the end of its plan without further faults; ``wrong`` the broken rule, "" = none, and ``path`` the names
    of the steps to it; ``complete`` False: the limit of states was met first.
    """

    states: int
    depth: int
    steps: int
    seconds: float
    to_end: int = 0
    wrong: str = ""
    path: tuple[str, ...] = ()
    complete: bool = True


def explore(
    bounds: Bounds, guards: frozenset[str], *, states_max: int = 10**9, progress: bool = True
) -> Result:
    """Walk through every state within bounds, on decisions under ``guards``; stops at the first broken rule."""
    return _Search(bounds, guards, progress).run(states_max)


class _Batch(NamedTuple):
    """States with their numbers and the numbers of their likenesses."""

    numbers: Column
    alike: Column
    states: States

    def take(self, which: NDArray[np.bool_] | slice) -> _Batch:
        return _Batch(*(array[..., which] for array in self))


class _Way(NamedTuple):
    """How states were met first: the state before, and the names of the step from it."""

    parents: Column
    names: Column


class _Search:
    """``open``: states from which no step was taken yet, by faults spent and depth."""

    def __init__(self, bounds: Bounds, guards: frozenset[str], progress: bool) -> None:
        self.steps, self.progress = Steps(bounds, guards), progress
        self.known = Known(self.steps.budget)
        self.states = self.depth = self.count = 0
        self.open: list[dict[int, list[_Batch]]] = [{} for _ in range(self.steps.budget.spent.max() + 1)]
        self.ways: list[_Way] = []
        self.alike: list[Column] = []
        self.ends: list[NDArray[np.bool_]] = []
        self.edges: list[tuple[Column, Column]] = []

    def run(self, states_max: int) -> Result:
        begun_s = time.process_time()
        first = self.steps.start()
        alike, _ = self.known.add(first)
        self._add(alike, first, _Way(np.array([-1], np.int32), np.zeros((2, 1), np.int32)), 0)
        for level in self.open:
            while level:
                depth = min(level)
                batch = _Batch(
                    *(np.concatenate(arrays, axis=-1) for arrays in zip(*level.pop(depth), strict=True))
                )
                for begin in range(0, len(batch.numbers), BATCH):
                    wrong = self._expand(batch.take(slice(begin, begin + BATCH)), depth + 1)
                    if wrong:
                        return self._result(begun_s, wrong, path=self._path(self.states - 1))
                    if self.states >= states_max:
                        return self._result(begun_s, complete=False)
        to_end, lost = self._distances() if self.progress else (0, -1)
        if lost >= 0:
            return self._result(begun_s, NO_WAY_ON, path=self._path(lost))
        return self._result(begun_s, to_end=to_end)

    def _expand(self, batch: _Batch, depth: int) -> str:
        """Take every step from some states, up to the first that breaks a rule."""
        found = self.steps.after(batch.states)
        wrong = np.flatnonzero(found.wrong)
        if wrong.size:
            found = found.take(np.arange(wrong[0] + 1))
        alike, new = self.known.add(found.states)
        if wrong.size and wrong[0] not in new[-1:]:
            new = np.append(new, wrong[0])
        broken = self.steps.rules_broken(np.take(found.states, new, axis=1))
        if wrong.size:
            broken[-1] = found.wrong[-1]
        first = np.flatnonzero(broken)[:1]
        if first.size:
            new = new[: first[0] + 1]
            found, alike = found.take(np.arange(new[-1] + 1)), alike[: new[-1] + 1]
        self.count += len(found.source)
        way = _Way(batch.numbers[found.source[new]], found.names[:, new])
        self._add(alike[new], np.take(found.states, new, axis=1), way, depth)
        if self.progress:
            source = batch.alike.take(found.source)
            goes_on = found.free & (source != alike)
            self.edges.append((np.compress(goes_on, source), np.compress(goes_on, alike)))
        return self.steps.text(broken[first[0]]) if first.size else ""

    def _add(self, alike: Column, states: States, way: _Way, depth: int) -> None:
        count = len(alike)
        if not count:
            return
        numbers = np.arange(self.states, self.states + count, dtype=np.int32)
        self.states += count
        self.depth = max(self.depth, depth)
        self.ways.append(way)
        self.alike.append(alike)
        self.ends.append(self.steps.ended(states))
        spent = self.steps.budget.spent[states[LEFT]]
        batch = _Batch(numbers, alike, states)
        for faults in np.unique(spent).tolist():
            self.open[faults].setdefault(depth, []).append(batch.take(spent == faults))

    def _result(
        self,
        begun_s: float,
        wrong: str = "",
        *,
        to_end: int = 0,
        complete: bool = True,
        path: tuple[str, ...] = (),
    ) -> Result:
        seconds = time.process_time() - begun_s
        return Result(self.states, self.depth, self.count, seconds, to_end, wrong, path, complete)

    def _path(self, number: int) -> tuple[str, ...]:
        parents = np.concatenate([way.parents for way in self.ways])
        names = np.concatenate([way.names for way in self.ways], axis=1)
        steps: list[int] = []
        while number > 0:
            steps += reversed(names[:, number].tolist())
            number = int(parents[number])
        return tuple(self.steps.text(name) for name in reversed(steps) if name)

    def _distances(self) -> tuple[int, int]:
        """Steps from each state to an end on free steps, backwards from all ends: (the largest, a state without a way or -1)."""
        alike, ends = np.concatenate(self.alike), np.concatenate(self.ends)
        seen = np.zeros(self.known.count, bool)
        seen[alike[ends]] = True
        distance = 0
        while True:
            reached: list[Column] = []
            for number, (sources, targets) in enumerate(self.edges):
                open_ = ~seen[sources]
                self.edges[number] = np.compress(open_, sources), np.compress(open_, targets)
                reached.append(np.compress(open_ & seen[targets], sources))
            if not any(map(len, reached)):
                break
            seen[np.concatenate(reached)] = True
            distance += 1
        lost = np.flatnonzero(~seen[alike])
        return distance, int(lost[0]) if lost.size else -1
