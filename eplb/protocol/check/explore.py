"""Breadth first over all states: the first broken rule with the way to it, or how many states there are and how deep.

States with fewer faults spent come first. A state that is like one already found, but has no more faults and plans left, is
not entered again: all that can follow it follows the other one too, and its way to an end, which needs none, is the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eplb.protocol.check.ends import Ends
from eplb.protocol.check.known import Known
from eplb.protocol.check.layout import LEFT
from eplb.protocol.check.steps import BATCH, Steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.layout import States
    from eplb.protocol.check.numbers import Column
    from eplb.protocol.check.world import Bounds

NO_WAY_ON = "no way to an end without a further fault or a further wish"


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
    """States with their numbers."""

    numbers: Column
    states: States

    def take(self, which: NDArray[np.bool_] | slice) -> _Batch:
        return _Batch(*(array[..., which] for array in self))


class _Way(NamedTuple):
    """How states were met first: the state before, and the way of the step from it."""

    parents: Column
    steps: Column


class _Search:
    """``open``: states from which no step was taken yet, by faults spent and depth."""

    def __init__(self, bounds: Bounds, guards: frozenset[str], progress: bool) -> None:
        self.steps, self.progress = Steps(bounds, guards), progress
        self.known = Known(self.steps.budget)
        self.states = self.depth = self.count = 0
        self.open: list[dict[int, list[_Batch]]] = [{} for _ in range(self.steps.budget.spent.max() + 1)]
        self.ways: list[_Way] = []
        self.ends = Ends(self.steps)

    def run(self, states_max: int) -> Result:
        begun_s = time.process_time()
        first = self.steps.start()
        self.known.add(first)
        self._add(first, _Way(np.array([-1], np.int32), np.array([-1], np.int32)), 0)
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
        to_end, lost = self.ends.distances() if self.progress else (0, -1)
        if lost >= 0:
            return self._result(begun_s, NO_WAY_ON, path=self._path(lost))
        return self._result(begun_s, to_end=to_end)

    def _expand(self, batch: _Batch, depth: int) -> str:
        """Take every step from some states, up to the first that breaks a rule."""
        found = self.steps.after(batch.states)
        wrong = np.flatnonzero(found.wrong)
        if wrong.size:
            found = found.take(np.arange(wrong[0] + 1))
        new = self.known.add(found.states)
        if wrong.size and wrong[0] not in new[-1:]:
            new = np.append(new, wrong[0])
        broken = self.steps.rules_broken(np.take(found.states, new, axis=1))
        if wrong.size:
            broken[-1] = found.wrong[-1]
        first = np.flatnonzero(broken)[:1]
        if first.size:
            new = new[: first[0] + 1]
            found = found.take(np.arange(new[-1] + 1))
        self.count += len(found.source)
        way = _Way(batch.numbers[found.source[new]], found.ways[new])
        self._add(np.take(found.states, new, axis=1), way, depth)
        return self.steps.text(broken[first[0]]) if first.size else ""

    def _add(self, states: States, way: _Way, depth: int) -> None:
        count = states.shape[1]
        if not count:
            return
        numbers = np.arange(self.states, self.states + count, dtype=np.int32)
        self.states += count
        self.depth = max(self.depth, depth)
        self.ways.append(way)
        if self.progress:
            self.ends.add(states, numbers)
        spent = self.steps.budget.spent[states[LEFT]]
        batch = _Batch(numbers, states)
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
        steps = np.concatenate([way.steps for way in self.ways])
        found: list[list[str]] = []
        while number > 0:
            found.append(self.steps.way(int(steps[number])))
            number = int(parents[number])
        return tuple(name for names in reversed(found) for name in names)
