"""Walk from a map to better ones, and keep the best map of every number of moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placement.neighbours import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placement.layer import Layer, Row
    from placement.neighbours import Step

GAIN = 1e-9
"""Smallest fall of the objective that counts as better."""


@dataclass(slots=True)
class Budget:
    """What a walk may still spend: steps, and an early end asked for from outside."""

    steps: int
    should_stop: Callable[[], bool] | None = None
    truncated: bool = False

    def spend(self) -> bool:
        """Take one step; False when none is left."""
        if self.should_stop is not None and self.should_stop():
            self.truncated = True
            return False
        if self.steps <= 0:
            return False
        self.steps -= 1
        return True


@dataclass(slots=True)
class Track:
    """The best row seen for every number of moves from ``start`` (None = a cold start, where moves do not count).

    ``rows``: moves -> (objective of the layer, row).
    """

    layer: Layer
    start: NDArray[np.bool_] | None
    rows: dict[int, tuple[float, Row]] = field(default_factory=dict)

    def moves(self, row: Row) -> int:
        """Slots whose expert was not on their rank at the start."""
        if self.start is None:
            return 0
        return int((self.layer.holds(row) & ~self.start).sum())

    def note(self, row: Row, value: float, moves: int | None = None) -> bool:
        """Keep ``row`` if no row with as few moves is as good."""
        moves = self.moves(row) if moves is None else moves
        if any(value > best - GAIN for count, (best, _) in self.rows.items() if count <= moves):
            return False
        self.rows[moves] = (value, row.copy())
        return True

    def pareto(self) -> list[tuple[int, float, Row]]:
        """Rows in rising moves and falling objective."""
        kept: list[tuple[int, float, Row]] = []
        for moves in sorted(self.rows):
            value, row = self.rows[moves]
            if not kept or value < kept[-1][1] - GAIN:
                kept.append((moves, value, row))
        return kept

    def best(self) -> tuple[float, Row]:
        """The row with the lowest objective."""
        _, value, row = self.pareto()[-1]
        return value, row


def walk(layer: Layer, row: Row, track: Track, budget: Budget, *, goal: float, seed: int = 0) -> None:
    """Take the best step out of the hottest rank again and again, also uphill, and note every row on the way.

    A pair (expert, rank) that a step ended is barred for some steps unless it leads below the best smooth maximum.
    ``seed`` turns the order in which slices name the rank to help. Ends when the budget is spent or the objective reaches
    ``goal``.
    """
    row = row.copy()
    barred_until = np.zeros((layer.experts + 1, layer.ranks), dtype=np.int64)
    view = View(layer, row)
    track.note(row, view.worst)
    best = view.value
    for turn in range(1, budget.steps + 1):
        if view.worst <= goal or not budget.spend():
            return
        step = _choose(view, turn, barred_until >= turn, best, seed)
        if step is None:
            continue
        for slot, expert in zip(step.slots, step.experts, strict=True):
            row[slot] = expert
        for expert, rank in step.departures:
            barred_until[expert, rank] = turn + 4 + turn % 7
        view = View(layer, row)
        track.note(row, view.worst)
        best = min(best, view.value)


def _choose(view: View, turn: int, barred: NDArray[np.bool_], best: float, seed: int) -> Step | None:
    rank = (
        int(view.heat.argmax()) if turn % 2 else int(view.hottest[(turn * 7919 + seed) % len(view.hottest)])
    )
    swap = view.best_swap(rank, barred, best)
    copy = view.best_copy(rank, barred, best)
    steps = [step for step in (swap, copy) if step is not None]
    return min(steps, key=lambda step: step.value) if steps else None
