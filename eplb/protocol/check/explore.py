"""Breadth first over all states: the first broken rule with the way to it, or how many states there are and how deep.

States with fewer faults spent come first. A state that is like one already found, but has no more faults and plans left, is
not entered again: all that can follow it follows the other one too, and its way to an end, which needs none, is the same.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from struct import Struct
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
    """States by number; ``open`` those not yet entered, by faults spent and depth."""

    def __init__(self, bounds: Bounds, guards: frozenset[str], progress: bool) -> None:
        self.steps = Steps(bounds, guards)
        self.progress = progress
        self.pack = Struct(f"{self.steps.left}I").pack
        self.known: dict[bytes, int | tuple[int, ...]] = {}
        self.parents, self.left, self.ends = array("i"), array("i"), bytearray()
        self.ways, self.names = array("H"), dict[tuple[str, ...], int]()
        self.sources, self.targets = array("i"), array("i")
        self.count = self.depth = 0
        self.open: list[dict[int, list[tuple[int, Key]]]] = [{} for _ in range(self.steps.faults_max + 1)]
        self.covers: dict[tuple[int, int], bool] = {}

    def run(self, states_max: int) -> Result:
        begun_s = time.process_time()
        self._add(self.steps.start(), -1, (), 0)
        for level in self.open:
            while level:
                depth = min(level)
                for number, key in level.pop(depth):
                    wrong = self._expand(number, key, depth + 1)
                    if wrong:
                        return self._result(begun_s, wrong)
                    if len(self.left) >= states_max:
                        return self._result(begun_s, complete=False)
        to_end, lost = self._distances() if self.progress else (0, -1)
        if lost >= 0:
            return self._result(begun_s, NO_WAY_ON, path=self._path(lost))
        return self._result(begun_s, to_end=to_end)

    def _find(self, packed: bytes, asked: int) -> int:
        """A known state that is the same and has no less left, or -1."""
        found = self.known.get(packed)
        if found is None:
            return -1
        for number in (found,) if isinstance(found, int) else found:
            has = self.left[number]
            covers = has == asked or self.covers.get((has, asked))
            if covers is None:
                covers = self.covers[has, asked] = self.steps.no_less(has, asked)
            if covers:
                return number
        return -1

    def _add(self, key: Key, parent: int, names: tuple[str, ...], depth: int) -> int:
        number, packed = len(self.left), self.pack(*key[:-1])
        others = self.known.get(packed)
        if others is None:
            self.known[packed] = number
        else:
            self.known[packed] = (*((others,) if isinstance(others, int) else others), number)
        self.left.append(key[-1])
        self.parents.append(parent)
        self.ways.append(self.names.setdefault(names, len(self.names)))
        self.ends.append(self.steps.ended(key))
        self.depth = max(self.depth, depth)
        self.open[self.steps.faults_spent(key)].setdefault(depth, []).append((number, key))
        return number

    def _expand(self, number: int, key: Key, depth: int) -> str:
        for step in self.steps.after(key):
            self.count += 1
            after = self._find(self.pack(*step.key[:-1]), step.key[-1])
            if after < 0 or step.wrong:
                after = self._add(step.key, number, step.names, depth)
                wrong = step.wrong or self.steps.rule_broken(step.key)
                if wrong:
                    return wrong
            if self.progress and step.free and after != number:
                self.sources.append(number)
                self.targets.append(after)
        return ""

    def _result(
        self,
        begun_s: float,
        wrong: str = "",
        *,
        to_end: int = 0,
        complete: bool = True,
        path: tuple[str, ...] = (),
    ) -> Result:
        if wrong and not path:
            path = self._path(len(self.left) - 1)
        seconds = time.process_time() - begun_s
        return Result(len(self.left), self.depth, self.count, seconds, to_end, wrong, path, complete)

    def _path(self, number: int) -> tuple[str, ...]:
        names = list(self.names)
        ways: list[tuple[str, ...]] = []
        while number > 0:
            ways.append(names[self.ways[number]])
            number = self.parents[number]
        return tuple(name for way in reversed(ways) for name in way)

    def _distances(self) -> tuple[int, int]:
        """Steps from each state to an end on free steps, backwards from all ends: (the largest, a state without a way or -1)."""
        begins = array("i", bytes(4 * (len(self.left) + 2)))
        for target in self.targets:
            begins[target + 2] += 1
        for number in range(2, len(begins)):
            begins[number] += begins[number - 1]
        into = array("i", bytes(4 * len(self.targets)))
        for source, target in zip(self.sources, self.targets, strict=True):
            into[begins[target + 1]] = source
            begins[target + 1] += 1
        layer = [number for number, ended in enumerate(self.ends) if ended]
        seen = bytearray(self.ends)
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
