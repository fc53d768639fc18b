"""Arrays in ``.npy``, read without running or allocating what their header says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats import files

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC = b"\x93NUMPY"
HEAD_BYTES = 2**12
"""Longest header of an array of whole numbers, with room: numpy pads it to 128 bytes."""
MOST_AXES = 8
MOST_ROW = 2**31
"""Most values of one row of the first axis."""
LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
"""Bytes of the header's length, by major version of the format."""
HEADER = re.compile(
    rb"\s*\{\s*'descr':\s*'([<>|=][iu][1248])',\s*'fortran_order':\s*(False|True),\s*"
    rb"'shape':\s*\(((?:\d{1,18}(?:,\s*|(?=\))))*)\),?\s*\}\s*"
)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What the header of an array says: type, order, shape, and the byte at which the values begin."""

    dtype: np.dtype[Any]
    order: str
    shape: tuple[int, ...]
    offset: int


def npy_header(head: bytes, size_bytes: int) -> NpyHeader:
    """Read the header of an array of whole numbers; ``head``: first bytes of it, ``size_bytes``: all of them.

    Raises:
        FileError: it is no such array, or does not have the size that its shape needs. The caller knows the path.
    """
    start = len(MAGIC) + 2
    if not head.startswith(MAGIC) or len(head) < start or head[start - 2] not in LENGTH_BYTES:
        raise FileError("not an array in .npy: expected what numpy.save writes")
    width = LENGTH_BYTES[head[start - 2]]
    length = int.from_bytes(head[start : start + width], "little")
    offset = start + width + length
    found = HEADER.fullmatch(head[start + width : offset])
    if offset > len(head) or found is None:
        raise FileError(
            "the .npy header is damaged, or of other than whole numbers: expected those as numpy.save writes"
        )
    shape = tuple(int(size) for size in re.findall(rb"\d+", found[3]))
    dtype = np.dtype(found[1].decode())
    if len(shape) > MOST_AXES or prod(shape[1:]) not in range(1, MOST_ROW + 1):
        raise FileError(f"the .npy header claims {dtype} {list(shape)}, which is no array of picks or maps")
    needed = offset + prod(shape) * dtype.itemsize
    if needed != size_bytes:
        raise FileError(
            f"holds {size_bytes:,} bytes, but {dtype} {list(shape)} needs {needed:,}: cut off, or still being written"
        )
    return NpyHeader(dtype, "F" if found[2] == b"True" else "C", shape, offset)


def parse_npy(data: bytes) -> NDArray[Any]:
    """An array of whole numbers from bytes, without a copy.

    Raises:
        FileError: see ``npy_header``.
    """
    header = npy_header(data[:HEAD_BYTES], len(data))
    if 0 in header.shape:
        return np.empty(header.shape, header.dtype)
    values = np.frombuffer(data, header.dtype, offset=header.offset)
    return values.reshape(header.shape, order="F" if header.order == "F" else "C")


def read_npy(path: Path) -> NDArray[Any]:
    """An array of whole numbers from a file, mapped rather than read; tried again while the file is being written.

    Raises:
        FileError: names the file; see ``npy_header``.
    """
    return files.steady(path, lambda: _mapped(path))


def _mapped(path: Path) -> NDArray[Any]:
    with files.opened(path) as file:
        size = files.size_bytes(path)
        try:
            header = npy_header(file.read(HEAD_BYTES), size)
        except FileError as error:
            raise FileError(f"{path}: {error}") from error
        if 0 in header.shape:
            return np.empty(header.shape, header.dtype)
        return np.memmap(
            file, header.dtype, "r", header.offset, header.shape, "F" if header.order == "F" else "C"
        )
