"""Breadth first over all states: the first broken rule with the way to it, or how many states there are and how deep."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.protocol.check.steps import Steps

if TYPE_CHECKING:
    from eplb.protocol.check.steps import Key
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


class _Search:
    def __init__(self, bounds: Bounds, guards: frozenset[str], progress: bool) -> None:
        self.steps = Steps(bounds, guards)
        self.progress = progress
        self.numbers: dict[Key, int] = {}
        self.keys: list[Key] = []
        self.parents = array("l")
        self.names: list[str] = []
        self.sources, self.targets = array("l"), array("l")
        self.count = 0

    def run(self, states_max: int) -> Result:
        begun_s = time.process_time()
        first = self.steps.start()
        self._add(first, -1, "start")
        depth, layer = 0, [0]
        while layer and len(self.keys) < states_max:
            found: list[int] = []
            for number in layer:
                wrong = self._expand(number, found)
                if wrong:
                    return self._result(begun_s, depth + 1, wrong)
            layer = found
            depth += bool(found)
        if layer:
            return self._result(begun_s, depth, complete=False)
        to_end, lost = self._distances() if self.progress else (0, -1)
        if lost >= 0:
            return self._result(begun_s, depth, NO_WAY_ON, path=self._path(lost))
        return self._result(begun_s, depth, to_end=to_end)

    def _add(self, key: Key, parent: int, name: str) -> int:
        number = self.numbers[key] = len(self.keys)
        self.keys.append(key)
        self.parents.append(parent)
        self.names.append(name)
        return number

    def _expand(self, number: int, found: list[int]) -> str:
        numbers, keep = self.numbers, self.progress
        for step in self.steps.after(self.keys[number]):
            self.count += 1
            after = numbers.get(step.key)
            if after is None:
                after = self._add(step.key, number, step.name)
                found.append(after)
                wrong = step.wrong or self.steps.rule_broken(step.key)
                if wrong:
                    self._end = after
                    return wrong
            elif step.wrong:
                self._end = self._add((*step.key, -1), number, step.name)
                return step.wrong
            if keep and step.free and after != number:
                self.sources.append(number)
                self.targets.append(after)
        return ""

    def _result(
        self,
        begun_s: float,
        depth: int,
        wrong: str = "",
        *,
        to_end: int = 0,
        complete: bool = True,
        path: tuple[str, ...] = (),
    ) -> Result:
        if wrong and not path:
            path = self._path(self._end)
        seconds = time.process_time() - begun_s
        return Result(len(self.keys), depth, self.count, seconds, to_end, wrong, path, complete)

    def _path(self, number: int) -> tuple[str, ...]:
        names: list[str] = []
        while number > 0:
            names.append(self.names[number])
            number = self.parents[number]
        return tuple(reversed(names))

    def _distances(self) -> tuple[int, int]:
        """Steps from each state to an end on free steps, backwards from all ends: (the largest, a state without a way or -1)."""
        begins = array("l", bytes(8 * (len(self.keys) + 2)))
        for target in self.targets:
            begins[target + 2] += 1
        for number in range(2, len(begins)):
            begins[number] += begins[number - 1]
        into = array("l", bytes(8 * len(self.targets)))
        for source, target in zip(self.sources, self.targets, strict=True):
            into[begins[target + 1]] = source
            begins[target + 1] += 1
        layer = [number for number, key in enumerate(self.keys) if self.steps.ended(key)]
        seen = bytearray(len(self.keys))
        for number in layer:
            seen[number] = 1
        distance = 0
        while layer:
            back: list[int] = []
            for number in layer:
                for place in range(begins[number], begins[number + 1]):
                    source = into[place]
                    if not seen[source]:
                        seen[source] = 1
                        back.append(source)
            layer = back
            distance += bool(back)
        return distance, seen.find(0)
