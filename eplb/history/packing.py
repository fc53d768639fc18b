"""Counts of one step, packed: the narrowest whole numbers that hold them, bytes of equal weight together, zstd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zstandard

from eplb.errors import HistoryError

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTHS = (1, 2, 4, 8)
"""Bytes of a count."""

LEVEL = 3
"""Of zstd: half a millisecond for 58 layers x 256 experts, and higher ones save nothing to speak of."""


def pack(counts: NDArray[np.int64]) -> bytes:
    """Pack one step: int64 [layers, experts], at least 0; the first byte is the width of a count."""
    most = int(counts.max(initial=0))
    width = next(width for width in WIDTHS if most < 1 << (8 * width))
    raw = np.ascontiguousarray(counts, dtype=f"<u{width}").view(np.uint8)
    planes = np.ascontiguousarray(raw.reshape(-1, width).T)
    return bytes([width]) + zstandard.ZstdCompressor(level=LEVEL).compress(planes.tobytes())


def unpack(packed: bytes, layers: int, experts: int) -> NDArray[np.int64]:
    """What :func:`pack` was given: int64 [layers, experts].

    Raises:
        HistoryError: the bytes are no packed step of this shape.
    """
    width = packed[0] if packed else 0
    if width not in WIDTHS:
        raise HistoryError(f"a packed step begins with {packed[:1].hex() or 'nothing'}, expected its width")
    size = layers * experts * width
    try:
        raw = zstandard.ZstdDecompressor().decompress(packed[1:], max_output_size=size)
    except zstandard.ZstdError as error:
        raise HistoryError(f"a packed step cannot be read: {error}") from error
    if len(raw) != size:
        raise HistoryError(f"a packed step has {len(raw)} bytes, expected {size}")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(width, -1)
    counts = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(layers, experts)
    if width == WIDTHS[-1] and (counts > np.iinfo(np.int64).max).any():
        raise HistoryError("a packed step holds a count above 2^63 - 1")
    return counts.astype(np.int64)
