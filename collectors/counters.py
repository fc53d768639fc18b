"""The cumulative counters of one rank: totals by phase, and the rows that a switch of map closed.

Per layer, phase and map digest the value never falls: a layer that returns to a map whose closed row is still being
repeated takes that row up again, otherwise its row starts at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collectors.facts import ClosedRow, Phase, PhaseTotals

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class _Running:
    counts: NDArray[np.int64]
    steps: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Closed:
    row: ClosedRow
    frames_left: int


class Counters:
    """Running totals of one shape (layers, width) for every phase; not safe for several threads by itself.

    ``keep_frames`` frames repeat a closed row; at most ``closed_capacity`` rows are kept, ``closed_lost`` counts the
    rows that went before their time.
    """

    def __init__(self, shape: tuple[int, int], keep_frames: int, closed_capacity: int) -> None:
        self.closed_lost = 0
        self._running = {phase: _Running(np.zeros(shape, dtype=np.int64)) for phase in Phase}
        self._keep_frames = keep_frames
        self._closed_capacity = closed_capacity
        self._closed: list[_Closed] = []

    def add(self, phase: Phase, counts: NDArray[np.int64], tokens: int, left_out: list[int]) -> None:
        """Add one step: counts int64 [layers, width] tokens, except the rows that are left out."""
        running = self._running[phase]
        running.steps += 1
        running.tokens += tokens
        if not left_out:
            np.add(running.counts, counts, out=running.counts)
            return
        kept = np.ones(len(counts), dtype=np.bool_)
        kept[left_out] = False
        running.counts[kept] += counts[kept]

    def totals(self) -> tuple[PhaseTotals, ...]:
        """Copies of the totals of every phase that was counted."""
        return tuple(
            PhaseTotals(phase, running.steps, running.tokens, frozen_copy(running.counts))
            for phase, running in self._running.items()
            if running.steps
        )

    def switch(self, layer: int, old: int, new: int) -> None:
        """Close the rows of one layer under the old map digest and begin, or take up, those under the new one."""
        if old == new:
            return
        for phase, running in self._running.items():
            row = running.counts[layer]
            if row.any():
                self._keep(_Closed(ClosedRow(layer, phase, old, frozen_copy(row)), self._keep_frames))
            row[:] = self._taken_up(layer, phase, new)

    def closed_rows(self) -> tuple[ClosedRow, ...]:
        """The closed rows for the next frame; each call uses up one of their repeats."""
        rows = tuple(closed.row for closed in self._closed)
        for closed in self._closed:
            closed.frames_left -= 1
        self._closed = [closed for closed in self._closed if closed.frames_left > 0]
        return rows

    def repeat(self, rows: tuple[ClosedRow, ...], live_digests: NDArray[np.uint64]) -> None:
        """Give rows of a frame that was lost one more repeat, unless their layer serves their map again."""
        kept = {_key(closed.row): closed for closed in self._closed}
        for row in rows:
            if _key(row) in kept:
                kept[_key(row)].frames_left += 1
            elif int(live_digests[row.layer]) != row.digest:
                self._keep(_Closed(row, 1))

    def _keep(self, closed: _Closed) -> None:
        self._closed.append(closed)
        if len(self._closed) > self._closed_capacity:
            self._closed.pop(0)
            self.closed_lost += 1

    def _taken_up(self, layer: int, phase: Phase, digest: int) -> NDArray[np.int64] | int:
        for closed in self._closed:
            if _key(closed.row) == (layer, phase, digest):
                self._closed.remove(closed)
                return closed.row.counts
        return 0


def _key(row: ClosedRow) -> tuple[int, Phase, int]:
    return row.layer, row.phase, row.digest


def frozen_copy(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """A copy that nobody can write to."""
    copy = counts.copy()
    copy.flags.writeable = False
    return copy
