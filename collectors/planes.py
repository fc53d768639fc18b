"""Byte planes: counters as all their lowest bytes, then all their next bytes, and no more planes than the largest needs.

Counters of one step are small and those of a run differ little in their high bytes, so that a general compressor does
far better, and faster, on planes than on whole integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zstandard

from collectors.errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

COUNTER_BYTES = 8


def joined(arrays: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    """All counters in one row, little-endian int64 [values].

    Raises:
        FrameError: an array does not hold integers, or holds a negative count.
    """
    if any(a.dtype.kind not in "iu" for a in arrays):
        raise FrameError(f"frame: counts of types {sorted({str(a.dtype) for a in arrays})}, expected int64")
    if not arrays:
        return np.zeros(0, dtype="<i8")
    values = np.concatenate([np.asarray(a, dtype="<i8").ravel() for a in arrays])
    if values.size and int(values.min()) < 0:
        raise FrameError(f"frame: holds the negative count {int(values.min())}; counts only grow")
    return values


def planes_needed(values: NDArray[np.int64]) -> int:
    """Planes that the largest value needs, 0 to 8."""
    return -(-int(values.max()).bit_length() // 8) if values.size else 0


def shuffled(values: NDArray[np.int64], planes: int) -> bytes:
    """The lowest planes of int64 [values], one after the other: planes x values bytes."""
    # This copy lets other threads run; tobytes of the transposed view would not.
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, COUNTER_BYTES)[:, :planes].T).tobytes()


def unshuffled(raw: memoryview, values: int, planes: int) -> NDArray[np.int64]:
    """Read planes x values bytes back as read-only int64 [values].

    Raises:
        FrameError: eight planes held a sign bit, which no count has.
    """
    out = np.zeros(values, dtype="<i8")
    if values and planes:
        stored = np.frombuffer(raw, dtype=np.uint8).reshape(planes, values)
        out.view(np.uint8).reshape(values, COUNTER_BYTES)[:, :planes] = stored.T
        if planes == COUNTER_BYTES and int(out.min()) < 0:
            raise FrameError(f"frame: holds the negative count {int(out.min())}")
    out.flags.writeable = False
    return out


def inflated(body: bytes, raw_bytes: int) -> bytes:
    """What zstd compressed, which must be ``raw_bytes`` bytes; a body that declares more allocates nothing.

    Raises:
        FrameError: it is of another size, or damaged.
    """
    try:
        # The size inside the zstd frame decides what the library allocates, so it is compared first.
        declared = zstandard.get_frame_parameters(body).content_size
        if declared != raw_bytes:
            raise FrameError(f"frame: its body declares {declared} raw bytes, expected {raw_bytes}")
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"frame: its body cannot be decompressed ({error})") from error
    if len(raw) != raw_bytes:
        raise FrameError(f"frame: its body holds {len(raw)} raw bytes, expected {raw_bytes}")
    return raw
