"""What changes between two maps: experts that arrive on ranks, what that costs, and which moves are undone later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement import Topology


def holds(rows: NDArray[np.int32], experts: int, topology: Topology) -> NDArray[np.bool_]:
    """Which rank holds which expert, bool [layers, ranks, experts], from int32 [layers, slots] with -1 = empty."""
    layers = len(rows)
    has = np.zeros((layers, topology.ranks, experts + 1), dtype=np.bool_)
    ranks = topology.rank_of_slot()
    has[np.arange(layers)[:, None], ranks, np.where(rows < 0, experts, rows)] = True
    return has[:, :, :experts]


def stall_s(arrivals: NDArray[np.int64], bytes_per_expert: int, link_bytes_per_s: float) -> float:
    """Time that serving stands still: layers one after the other, each as long as its busiest rank receives.

    ``arrivals``: int64 [layers, ranks], experts new to a rank. Nothing is hidden behind serving: the most that it can cost.
    """
    busiest = int(arrivals.max(axis=1).sum())
    return busiest * bytes_per_expert / link_bytes_per_s


class Undone:
    """Counts moves that are undone: an expert that came to a rank and leaves it again within ``within`` windows."""

    def __init__(self, within: int) -> None:
        self._within = within
        self._came: dict[tuple[int, int, int], int] = {}
        self.count = 0

    def note(self, window: int, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> None:
        """Note a change of map at the beginning of a window; bool [layers, ranks, experts] each."""
        for place in _places(before & ~after):
            came = self._came.pop(place, None)
            if came is not None and window - came <= self._within:
                self.count += 1
        self._came.update(dict.fromkeys(_places(after & ~before), window))


def _places(change: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    return [(layer, rank, expert) for layer, rank, expert in np.argwhere(change).tolist()]
