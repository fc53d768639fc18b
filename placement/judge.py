"""Value the rows of a search by the dispatch and cost that were asked, and improve the best by that value alone.

The compiled search walks on even shares. What another rule makes of its rows is told here, row by row and exactly; a
short descent then mends what the walk could not see.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from placement.frontier import Stop
from placement.layer import ordered_sum
from placement.placement import EMPTY
from placement.search import GAIN, Track
from placement.split import likely_shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row
    from placement.objective import LayerObjective
    from placement.search import Task

MOST_JUDGED = {"fast": 6, "normal": 16, "thorough": 64}
"""Rows of a layer's path that are valued exactly; of more, an even choice with both ends."""

MOST_TRIED = {"fast": 40, "normal": 400, "thorough": 4000}
"""Exchanges that the descent by exact value weighs in a layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Judge:
    """The asked value of one layer's rows.

    ``layer``: all slices, live ranks. ``mean``: int64 [experts], the mean slice, where shares are weighted; else None.
    ``live_slots``: int64 [live slots], where a row stands in a map of ``slots`` slots.
    """

    objective: LayerObjective
    layer: Layer
    mean: NDArray[np.int64] | None
    live_slots: NDArray[np.int64]
    slots: int

    def value(self, row: Row, shares: NDArray[np.float64] | None = None) -> float:
        """The objective of ``row``; ``shares``: float64 [live slots], None = even, where they are weighted."""
        return self.objective.value(self._whole(row), self._given(shares))

    def costs(self, row: Row) -> NDArray[np.float64]:
        """Cost of every live rank over perfect balance, float64 [slices with load, live ranks]."""
        one = self.objective
        _, costs = one.served(self._whole(row))
        ratios: NDArray[np.float64] = costs[one.loaded][:, one.whole.live] / one.balanced[one.loaded, None]
        return ratios

    def node_load(self, row: Row, shares: NDArray[np.float64] | None = None) -> float:
        """Tokens of the hottest node over its fair share, the mean over slices or the sum, whichever is hotter; 0 without load."""
        one, speed = self.objective, self.objective.whole.speed
        loads, _ = one.served(self._whole(row), self._given(shares))
        loads = loads[one.loaded][:, one.whole.live]
        if not len(loads):
            return 0.0
        tokens = np.cumsum(loads, axis=1)[:, -1]
        part = np.cumsum(loads * (one.weights[one.loaded] / tokens)[:, None], axis=0)[-1]
        whole = np.cumsum(loads, axis=0)[-1] / ordered_sum(tokens)
        node = self.layer.node_of_rank
        fair = np.bincount(node, speed) / ordered_sum(speed)
        return float(max((np.bincount(node, kind) / fair).max() for kind in (part, whole)))

    def stop(self, moves: int, row: Row) -> Stop:
        """A stop of a path; where shares are weighted, with the best shares that are found."""
        if self.mean is None:
            return Stop(moves, self.value(row), row)
        stops = [
            Stop(moves, self.value(row, shares), row, shares)
            for shares in likely_shares(self.layer, row, self.mean)
        ]
        return min(stops, key=lambda stop: stop.value)

    def stops(self, track: Track, task: Task, effort: str, others: tuple[Row, ...] = ()) -> tuple[Stop, ...]:
        """The best rows of a track by the asked value, in rising moves and falling objective.

        ``others``: rows in rising moves that compete with those of the track, whose values say nothing about them.
        """
        if not self.layer.loaded:
            return tuple(Stop(moves, value, row) for moves, value, row in track.pareto())
        rows = _spread([row for _, _, row in track.pareto()], MOST_JUDGED[effort])
        rows += _spread(list(others), MOST_JUDGED[effort])
        found = [self.stop(track.moves(row), row) for row in rows]
        if self.mean is None:
            found += self._improved(track, found, min(MOST_TRIED[effort], task.evaluations), task)
        return falling(found)

    def _improved(self, track: Track, found: list[Stop], tries: int, task: Task) -> list[Stop]:
        """Stops of a descent by exact value from the best stop, and from the first."""
        exact = Track(track.layer, track.start)
        best = min(found, key=lambda stop: stop.value)
        may, ranks = track.layer.allowed(), track.layer.rank_of_slot
        # A row of other home nodes cannot be mended with regard to these.
        starts = [
            stop
            for stop in {id(stop): stop for stop in (best, found[0])}.values()
            if may[stop.row, ranks].all()
        ]
        for start in starts:
            exact.note(start.row, start.value)
            _Descent(self, exact, task).run(start, tries // len(starts))
        return [Stop(moves, value, row) for moves, value, row in exact.pareto()]

    def _given(self, shares: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Shares of all slots, float64 [slots], where they are weighted."""
        if shares is None or self.mean is None:
            return None
        given = np.zeros(self.slots)
        given[self.live_slots] = shares
        return given

    def _whole(self, row: Row) -> NDArray[np.int32]:
        ids = np.full(self.slots, EMPTY, dtype=np.int32)
        ids[self.live_slots] = np.where(row < self.layer.experts, row, EMPTY)
        return ids


def falling(stops: list[Stop]) -> tuple[Stop, ...]:
    """Only the stops that are better than all with as few moves, in rising moves."""
    kept: list[Stop] = []
    for stop in sorted(stops, key=lambda stop: (stop.moves, stop.value)):
        if not kept or stop.value < kept[-1].value - GAIN:
            kept.append(stop)
    return tuple(kept)


def plain_stops(full: Layer, few: Layer, track: Track) -> tuple[Stop, ...]:
    """Where the search itself knows the objective: a track's rows with it over all slices, in rising moves and falling objective."""
    rows = track.pareto()
    return falling(
        [Stop(moves, value if few is full else full.value(row), row) for moves, value, row in rows]
    )


def not_worse(stops: tuple[Stop, ...], live: Stop) -> tuple[Stop, ...]:
    """Put the live row with its own shares first and keep only what is better."""
    if stops[0].moves == 0 and stops[0].value < live.value - GAIN:
        return stops
    return (live, *(stop for stop in stops if stop.moves > 0 and stop.value < live.value - GAIN))


def _spread(rows: list[Row], most: int) -> list[Row]:
    if len(rows) <= most:
        return rows
    return [rows[at * (len(rows) - 1) // (most - 1)] for at in range(most)]


class _Descent:
    """Exchanges that the costliest rank of some slice takes part in, kept while they lower the asked value."""

    def __init__(self, judge: Judge, track: Track, task: Task) -> None:
        self._judge, self._track, self._task = judge, track, task
        self._layer = track.layer
        self._may = track.layer.allowed()
        self._random = Random(task.seed)

    def run(self, start: Stop, tries: int) -> None:
        """Try ``tries`` exchanges from ``start``; what is better goes into the track."""
        row, value, costs = start.row, start.value, self._judge.costs(start.row)
        for _ in range(tries):
            if value <= self._task.goal or self._task.halt:
                return
            tried = self._proposed(row, costs)
            if tried is None:
                continue
            new = self._judge.value(tried)
            if new < value - GAIN:
                row, value, costs = tried, new, self._judge.costs(tried)
                self._track.note(row, value)

    def _proposed(self, row: Row, costs: NDArray[np.float64]) -> Row | None:
        """A swap with the costliest rank of a slice, a copy of one of its experts elsewhere, or another copy there; None if illegal."""
        layer, draw = self._layer, self._random
        hot = int(costs[draw.randrange(len(costs))].argmax())
        here = int(draw.choice(np.flatnonzero(layer.rank_of_slot == hot).tolist()))
        other = draw.randrange(layer.slots)
        kind = draw.randrange(4)
        new = row.copy()
        if kind < 2:
            new[here], new[other] = row[other], row[here]
        elif kind == 2:
            new[other] = row[here]
        else:
            new[here] = row[other]
        return new if self._legal(row, new) else None

    def _legal(self, row: Row, new: Row) -> bool:
        """Whether ``new`` differs, drops no expert, fills what was filled, keeps homes and makes no twins."""
        layer = self._layer
        changed = np.flatnonzero(new != row)
        if not len(changed):
            return False
        ranks = layer.rank_of_slot[changed]
        if not self._may[new[changed], ranks].all():
            return False
        counts = np.bincount(new, minlength=layer.experts + 1)
        before = np.bincount(row, minlength=layer.experts + 1)
        if ((counts[:-1] == 0) & (before[:-1] > 0)).any() or counts[-1] > before[-1]:
            return False
        for rank in set(ranks.tolist()):
            held = new[(layer.rank_of_slot == rank) & (new < layer.experts)]
            if len(np.unique(held)) < len(held):
                return False
        return True
