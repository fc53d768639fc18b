"""Small pictures with a palette, as data URIs: one pixel a cell.

Written from the PNG specification (ISO/IEC 15948): signature, IHDR (8 bits, palette), PLTE, IDAT, IEND.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

PALETTE = 3
"""Colour type: every pixel is a place in the palette."""


def data_uri(pixels: NDArray[np.uint8], colours: Sequence[str]) -> str:
    """``pixels``: uint8 [rows, columns], places in ``colours``, each ``#rrggbb``."""
    rows, columns = pixels.shape
    header = struct.pack(">IIBBBBB", columns, rows, 8, PALETTE, 0, 0, 0)
    palette = b"".join(bytes.fromhex(colour.removeprefix("#")) for colour in colours)
    # Each row starts with its filter, 0 = none.
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels), 9)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", body), (b"IEND", b""))
    picture = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)
    return f"data:image/png;base64,{b64encode(picture).decode()}"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
