"""Make the arrays that the compiled search works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placement import kernel
from placement.kernel import FEW_SLICES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.kernel import State
    from placement.layer import Layer, Row

LANES = 16
"""Slices are padded to a multiple of this, so that vector units find no rest."""


def make_state(layer: Layer, row: Row, *, seed: int, live: Row | None = None, kept: int = 0) -> State:
    """The state of a search that starts from ``row``.

    ``live``: int64 [slots], the map from which moves count (``layer.experts`` = empty); None = moves do not count.
    ``kept``: most moves for which the best row is kept; rows with more are kept under the last number.
    """
    slices, experts, ranks, slots = len(layer.weights), layer.experts, layer.ranks, layer.slots
    real = np.float64 if slices < FEW_SLICES else np.float32
    n = slices if slices < FEW_SLICES else -(-slices // LANES) * LANES
    listed = 0 if layer.prices is None else layer.prices.most
    loads = np.zeros((experts + 1, max(1, listed), n), dtype=real)
    loads[:, :, :slices] = layer.loads.T[:, None] if layer.prices is None else layer.prices.table
    home = (
        np.ones((experts + 1, ranks), dtype=np.uint8) if live is None else layer.holds(live).astype(np.uint8)
    )
    home[-1] = 1
    forbidden = np.where(layer.allowed(), np.uint8(0), np.uint8(2))

    def zeros(*shape: int) -> NDArray[Any]:
        return np.zeros(shape, dtype=real).ravel()

    def whole(size: int) -> NDArray[np.int64]:
        return np.zeros(size, dtype=np.int64)

    state = kernel.State(
        loads=loads.ravel(), unit=zeros(experts + 1, n), base=zeros(n), fewer=zeros(n), more=zeros(n), cost=zeros(ranks, n), power=zeros(ranks, n),
        trial=zeros(ranks, n), total=zeros(n), trial_total=zeros(n), roots=zeros(n), weights=zeros(n),
        inverse_speed=layer.inverse_speed.astype(real), row=np.array(row, dtype=np.int64),
        rank_of_slot=layer.rank_of_slot.astype(np.int64), start=np.array(row if live is None else live, dtype=np.int64),
        spare=whole(slots), spare_at=whole(slots),
        first_slot=np.append(layer.first_slot, slots).astype(np.int64), counts=whole(experts + 1),
        holders=whole(experts * ranks), blocked=forbidden.ravel(), home=home.ravel(), hot=whole(n), hot_version=whole(n),
        touched=whole(ranks + 1), kept_values=np.full(kept + 1, np.inf),
        kept_rows=np.zeros((kept + 1, slots), dtype=np.int32), clock=whole(5), now=np.zeros(4),
        random=np.array([seed % 2**64], dtype=np.uint64), sizes=np.array([n, ranks, experts, listed]),
    )  # fmt: skip
    state.weights[:slices] = layer.weights
    if layer.prices is not None:
        state.base[:slices] = layer.prices.base
    state.clock[kernel.VERSION] = 1
    kernel.begin(state)
    return state
