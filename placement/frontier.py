"""Merge the paths of all layers into one line from few moves to the best map."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from placement.placement import EMPTY, Placement
from placement.relabel import keep_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """One row on a layer's path: its moves, its objective, and its shares, float64 [slots], where they are not even."""

    moves: int
    value: float
    row: Row
    shares: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The stops of one layer in rising moves and falling objective, and the live row they start from."""

    layer: Layer
    current: Row | None
    stops: tuple[Stop, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Points of the whole map.

    ``choice``: int64 [points, layers], the stop of every layer. ``moves``: int64 [points], ``objective``: float64 [points].
    ``live_slots``: int64 [live slots], where the rows stand in a map of ``slots`` slots.
    """

    paths: tuple[Path, ...]
    choice: NDArray[np.int64]
    moves: NDArray[np.int64]
    objective: NDArray[np.float64]
    live_slots: NDArray[np.int64]
    slots: int

    def within(self, moves: int) -> int:
        """The last point with at most ``moves`` moves, or the first."""
        return max(0, int(np.searchsorted(self.moves, moves, side="right")) - 1)

    def cheapest(self, target: float, last: int) -> int:
        """The first point up to ``last`` whose objective is at most ``target``, or ``last``."""
        good = np.flatnonzero(self.objective[: last + 1] <= target)
        return int(good[0]) if len(good) else last

    def stops(self, point: int) -> list[Stop]:
        """The stop of every layer at one point."""
        chosen = self.choice[point].tolist()
        return [path.stops[stop] for path, stop in zip(self.paths, chosen, strict=True)]

    def placement(self, point: int) -> Placement:
        """The map of one point."""
        rows = np.full((len(self.paths), self.slots), EMPTY, dtype=np.int32)
        shares = np.zeros(rows.shape)
        for at, (path, stop) in enumerate(zip(self.paths, self.choice[point].tolist(), strict=True)):
            rows[at, self.live_slots], shares[at, self.live_slots] = _row_and_shares(path, path.stops[stop])
        return Placement(rows, shares)


def _row_and_shares(path: Path, stop: Stop) -> tuple[Row, NDArray[np.float64]]:
    layer = path.layer
    row = stop.row if path.current is None else keep_slots(layer, stop.row, path.current)
    filled = row < layer.experts
    if stop.shares is None:
        shares = np.where(filled, 1.0 / layer.replicas(row)[row], 0.0)
    else:
        of_pair = np.zeros((layer.experts + 1, layer.ranks))
        of_pair[stop.row, layer.rank_of_slot] = stop.shares
        shares = np.where(filled, of_pair[row, layer.rank_of_slot], 0.0)
    return np.where(filled, row, EMPTY), shares


def merge(
    paths: tuple[Path, ...], weights: NDArray[np.float64], live_slots: NDArray[np.int64], slots: int
) -> Frontier:
    """Advance the layer that gains most per move, segment by segment of each path's lower convex hull.

    ``weights``: float64 [layers], part of every layer in the objective. All stops between two corners of a hull are kept.
    """
    segments: list[tuple[float, int, int, int]] = []
    for at, path in enumerate(paths):
        corners = _hull(path.stops)
        for first, last in pairwise(corners):
            one, two = path.stops[first], path.stops[last]
            segments.append(
                (-weights[at] * (one.value - two.value) / max(1, two.moves - one.moves), at, first, last)
            )
    segments.sort()
    steps = [(at, stop) for _, at, first, last in segments for stop in range(first + 1, last + 1)]
    choice = np.zeros((len(steps) + 1, len(paths)), dtype=np.int64)
    for number, (at, stop) in enumerate(steps, start=1):
        choice[number:, at] = stop
    moves = np.zeros(len(choice), dtype=np.int64)
    values = np.zeros(choice.shape)
    for at, path in enumerate(paths):
        moves += np.array([stop.moves for stop in path.stops], dtype=np.int64)[choice[:, at]]
        values[:, at] = np.array([stop.value for stop in path.stops])[choice[:, at]] * weights[at]
    return Frontier(paths, choice, moves, np.cumsum(values, axis=1)[:, -1], live_slots, slots)


def _hull(stops: tuple[Stop, ...]) -> list[int]:
    """Corners of the lower convex hull, as places in ``stops``."""
    corners: list[int] = []
    for at, stop in enumerate(stops):
        while len(corners) > 1 and _above(stops[corners[-2]], stops[corners[-1]], stop):
            corners.pop()
        corners.append(at)
    return corners


def _above(one: Stop, middle: Stop, two: Stop) -> bool:
    left = (middle.value - one.value) * (two.moves - one.moves)
    return left >= (two.value - one.value) * (middle.moves - one.moves)
