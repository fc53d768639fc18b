"""Counts under the keys of another topology: what is kept is kept by (model layer, expert), never by rank or position."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def layer_places(old: Sequence[int], new: Sequence[int]) -> NDArray[np.int64]:
    """Place among the old model layers of each new one, int64 [new layers], -1 = it was not there."""
    places = {layer: place for place, layer in enumerate(old)}
    return np.array([places.get(layer, -1) for layer in new], dtype=np.int64)


def rekeyed(counts: NDArray[Number], places: NDArray[np.int64]) -> NDArray[Number]:
    """Counts by old layer, [..., old layers, experts], as counts by new layer, [..., new layers, experts]; 0 where it is new."""
    known = places >= 0
    fresh = np.zeros((*counts.shape[:-2], len(places), counts.shape[-1]), dtype=counts.dtype)
    fresh[..., known, :] = counts[..., places[known], :]
    return fresh
