"""Counts by slot that wait for the map of their slots."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from collectors.facts import Phase
    from eplb.window.maps import MapRegistry, MapRow

ROWS_KEPT = 8192


class UnreadRows:
    """Rows by (interval, phase, layer, digest), int64 [slots]; ``dropped`` counts rows that went without being read."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._rows: OrderedDict[tuple[int, Phase, int, int], NDArray[np.int64]] = OrderedDict()
        self.dropped = 0

    def add(
        self, number: int, phase: Phase, place: tuple[int, int], counts: NDArray[np.int64], first_slot: int
    ) -> None:
        """Keep one row of (layer, digest): int64 [width] from ``first_slot`` on."""
        key = (number, phase, *place)
        if key not in self._rows:
            self._rows[key] = np.zeros(self._slots, dtype=np.int64)
            if len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)
                self.dropped += 1
        self._rows[key][first_slot : first_slot + len(counts)] += counts

    def take(self, maps: MapRegistry) -> Iterator[tuple[int, Phase, int, MapRow, NDArray[np.int64]]]:
        """Give, and forget, the rows whose map is known: (interval, phase, layer, map row, counts)."""
        for key in list(self._rows):
            number, phase, layer, digest = key
            row = maps.row(layer, digest)
            if row is not None:
                yield number, phase, layer, row, self._rows.pop(key)

    def forget_before(self, number: int) -> None:
        """Forget rows of intervals that left the window."""
        for key in [key for key in self._rows if key[0] < number]:
            del self._rows[key]
            self.dropped += 1
