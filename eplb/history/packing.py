"""Counts of one step, packed: byte planes as in a frame, no more than the largest count needs, and zstd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zstandard

from collectors.errors import FrameError
from collectors.planes import COUNTER_BYTES, inflated, joined, planes_needed, shuffled, unshuffled
from eplb.errors import HistoryError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 3
"""Of zstd: half a millisecond for 58 layers x 256 experts, and higher ones save nothing to speak of."""


def pack(counts: NDArray[np.int64]) -> bytes:
    """Pack one step: int64 [layers, experts], at least 0; the first byte is the number of planes, 1 to 8."""
    values = joined([counts])
    planes = max(1, planes_needed(values))
    return bytes([planes]) + zstandard.ZstdCompressor(level=LEVEL).compress(shuffled(values, planes))


def unpack(packed: bytes, layers: int, experts: int) -> NDArray[np.int64]:
    """What :func:`pack` was given: int64 [layers, experts], read-only.

    Raises:
        HistoryError: the bytes are no packed step of this shape.
    """
    planes = packed[0] if packed else 0
    if not 1 <= planes <= COUNTER_BYTES:
        raise HistoryError(
            f"a packed step begins with {packed[:1].hex() or 'nothing'}, expected its planes, 1 to {COUNTER_BYTES}"
        )
    values = layers * experts
    try:
        raw = inflated(packed[1:], values * planes)
        return unshuffled(memoryview(raw), values, planes).reshape(layers, experts)
    except FrameError as error:
        raise HistoryError(f"a packed step cannot be read: {error}") from error
