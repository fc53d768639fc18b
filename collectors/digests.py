"""Digests that name a map: one 64-bit number a layer, and one for all layers."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import even_shares, share_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray


def layer_map_digest(
    model_layer: int, slots: NDArray[np.integer], shares: NDArray[np.float64] | None = None
) -> int:
    """Digest of what one layer serves: int [slots], finite float64 [slots] or None -> unsigned 64-bit, never 0.

    Shares count in steps of a millionth; even ones and None are the same, so that engines without weights need no shares.
    """
    raw = np.ascontiguousarray(slots, dtype="<i4").tobytes()
    if shares is not None:
        steps = share_steps(slots, shares)
        if not np.array_equal(steps, share_steps(slots, even_shares(slots))):
            raw += steps.astype("<i8").tobytes()
    digest = blake2b(int(model_layer).to_bytes(4, "little") + raw, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def layer_map_digests(
    model_layers: tuple[int, ...],
    physical_to_logical: NDArray[np.integer],
    shares: NDArray[np.float64] | None = None,
) -> NDArray[np.uint64]:
    """Digests of all rows: int [layers, slots], float64 [layers, slots] or None -> uint64 [layers]."""
    each = [None] * len(model_layers) if shares is None else shares
    rows = zip(model_layers, physical_to_logical, each, strict=True)
    return np.array([layer_map_digest(layer, row, parts) for layer, row, parts in rows], dtype=np.uint64)


def live_map_digest(layer_digests: NDArray[np.uint64]) -> int:
    """Digest of a whole live map from its layers' digests: uint64 [layers] -> unsigned 64-bit, never 0."""
    raw = np.ascontiguousarray(layer_digests, dtype="<u8").tobytes()
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") or 1
