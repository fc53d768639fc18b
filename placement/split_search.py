"""Search maps for engines that split every batch by load: the anneal of ``search`` with levelled shares (``kernel_split``).

A map tuned for even shares is not the best one there, but a good place to start from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placement import kernel, kernel_split
from placement.kernel_state import make_state
from placement.relabel import relabel
from placement.search import CHUNK, HOME_SHARE, PRICE_STEP, PRICES_OF_SLICES, cold_temperature, cooling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placement.kernel import State
    from placement.layer import Layer, Row
    from placement.search import Task, Track

PART = 8
"""One proposal for so many of the plain search, as each takes about five times as long."""


def cool_split(layer: Layer, row: Row, task: Task) -> Row:
    """Anneal from ``row`` without regard to moves and return the best row by the levelled value."""
    walk = _Walk(layer, row, task, None)
    cold = cold_temperature(layer, walk.value())
    walk.state.now[kernel.TEMPERATURE] = 32 * cold
    walk.state.now[kernel.COOLING] = cooling(1 / 32, task.proposals // PART)
    walk.run(task.proposals // PART, 0)
    return np.array(walk.state.kept_rows[0], dtype=np.int64)


def walk_split(layer: Layer, row: Row, live: Row, task: Task, *, back: bool = False) -> Iterator[Row]:
    """Anneal coolly from ``row`` while the price of a move from ``live`` falls, or rises for the way ``back``.

    Yields the best row of every number of moves that beats those with fewer, by the levelled value.
    """
    walk = _Walk(layer, row, task, live)
    state, excess = walk.state, max(walk.value() - 1.0, 1e-6)
    prices = [excess / 8 * PRICE_STEP**step for step in range(PRICES_OF_SLICES)]
    cold = cold_temperature(layer, 1.0 + excess)
    state.now[kernel.COOLING] = 1.0
    for price in reversed(prices) if back else prices:
        state.now[kernel.PRICE] = price
        state.now[kernel.TEMPERATURE] = max(price / 8, cold)
        walk.run(task.proposals // PART // len(prices), HOME_SHARE)
    lowest = np.inf
    for value, kept in zip(state.kept_values.tolist(), state.kept_rows, strict=True):
        if value < lowest:
            lowest = value
            yield np.array(kept, dtype=np.int64)


def rows_near(track: Track, start: Row, live: Row, task: Task, other: Layer | None) -> tuple[Row, ...]:
    """Rows on the way from ``start``, the repaired live map, in rising moves from ``live``.

    ``other``: the layer that a fresh row is made for, from which a second walk leads back; None = no second walk.
    """
    if task.proposals < 1:
        return ()
    half, quarter = replace(task, proposals=task.proposals // 2), replace(task, proposals=task.proposals // 4)
    found = list(walk_split(track.layer, start, live, half))
    _, best = track.best()
    # Between two choices of home nodes groups would be split.
    if other is not None and other.allowed()[best, other.rank_of_slot].all() and not task.halt.asked:
        fresh = relabel(other, cool_split(other, best, quarter), start)
        layer = track.layer if other.home is None else other
        found += walk_split(layer, fresh, live, quarter, back=True)
    return tuple(sorted(found, key=track.moves))


class _Walk:
    """A compiled state and how its copies share."""

    def __init__(self, layer: Layer, row: Row, task: Task, live: Row | None) -> None:
        self._layer, self._task = layer, task
        kept = 0 if live is None else layer.slots
        self.state: State = make_state(layer, row, seed=task.seed, live=live, kept=kept)
        n, real, pairs = int(self.state.sizes[0]), self.state.cost.dtype, layer.slots + 2
        self._split = kernel_split.Split(
            part=np.zeros(layer.experts * layer.ranks * n, dtype=real),
            several=np.zeros(layer.experts + 1, dtype=np.int64),
            old_cost=np.zeros_like(self.state.cost),
            old_part=np.zeros(pairs * n, dtype=real),
            old_pair=np.zeros(pairs + 1, dtype=np.int64),
        )
        kernel_split.begin_split(self.state, self._split)

    def value(self) -> float:
        """The levelled value of the row: mean over slices of the costliest rank."""
        return float(kernel.hard_value(self.state))

    def run(self, proposals: int, home_share: int) -> None:
        """Make ``proposals``, with a look at ``should_stop`` between chunks."""
        while proposals > 0 and not self._task.halt:
            now = min(CHUNK // PART, proposals)
            slices = len(self._layer.weights)
            kernel_split.split_anneal(self.state, self._split, now, slices, home_share)
            proposals -= now
