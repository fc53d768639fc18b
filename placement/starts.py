"""The rows that a search from nothing starts from: copies chosen by load, then packed heaviest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.groups import copies
from placement.packing import pack
from placement.replicas import replica_counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row

FEW_SLOTS = 64
"""Up to this many slots a map of one slice is coarse."""


def coarse(layer: Layer) -> bool:
    """Whether a copy more or less, or one exchange, is a large step: one slice and few slots."""
    return len(layer.weights) == 1 and layer.slots <= FEW_SLOTS


def packed(layer: Layer) -> Row:
    """The row packed from each expert's mean load plus one standard deviation over slices."""
    loads = _high_loads(layer)
    return pack(layer, copies(layer, loads), loads)


def starts(layer: Layer) -> list[Row]:
    """``packed``, and for a ``coarse`` layer one row for every number of copies of its hottest expert.

    The greedy rule shares out the other slots.
    """
    first = packed(layer)
    if not coarse(layer) or layer.home is not None:
        return [first]
    loads = layer.loads[0, :-1]
    found = {tuple(layer.replicas(first)[:-1].tolist()): first}
    for counts in _counts_around(layer, int(loads.argmax())):
        key = tuple(counts.tolist())
        if key not in found:
            found[key] = pack(layer, counts, loads)
    return list(found.values())


def _counts_around(layer: Layer, hottest: int) -> list[NDArray[np.int64]]:
    """Copies of every expert, int64 [experts], when expert ``hottest`` has 1, 2, ... of them."""
    others, capacity = layer.loads[0, :-1].copy(), layer.capacity()
    others[hottest] = 0.0
    found = []
    for number in range(1, min(layer.ranks, int(capacity.sum()) - layer.experts + 1) + 1):
        least = np.ones(layer.experts, dtype=np.int64)
        least[hottest] = number
        found.append(replica_counts(others, capacity, least))
    return found


def _high_loads(layer: Layer) -> NDArray[np.float64]:
    loads = layer.loads[:, :-1]
    mean = (loads * layer.weights[:, None]).sum(axis=0)
    spread = np.sqrt((np.square(loads - mean) * layer.weights[:, None]).sum(axis=0))
    high: NDArray[np.float64] = mean + spread
    return high
