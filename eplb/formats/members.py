"""Arrays inside an ``.npz`` archive, piece by piece: what a header claims is held against the archive before memory is taken."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from math import prod
from struct import error as StructError  # noqa: N812 - the library's own name for it is lower case
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.files import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MOST_WHOLE_BYTES = 2**28
"""Largest array that is read at once."""
MOST_HEADER_BYTES = 10_000
MOST_DEFLATE = 1040
"""Deflate makes at most 1032 bytes of one; an archive that claims more is damaged."""
NPY = ".npy"


class Archive:
    """An open ``.npz`` archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._infos = {
            info.filename.removesuffix(NPY): info
            for info in archive.infolist()
            if info.filename.endswith(NPY)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, sorted."""
        return tuple(sorted(self._infos))

    @contextmanager
    def member(self, name: str) -> Iterator[Member]:
        """One array, its header read and held against the archive.

        Raises:
            FileError: the header is damaged, has objects in it, or claims another size than the archive.
        """
        info = self._infos[name]
        _check_size(name, info)
        with self._archive.open(info) as file:
            yield Member(name, file, info.file_size)

    def whole(self, name: str) -> NDArray[Any] | None:
        """One small array, None when there is none of that name.

        Raises:
            FileError: it is larger than ``MOST_WHOLE_BYTES``, or see ``member``.
        """
        if name not in self._infos:
            return None
        with self.member(name) as found:
            return found.whole()


class Member:
    """An array whose header has been read: ``shape``, ``dtype``, ``row_bytes`` (bytes of one item of the first axis)."""

    def __init__(self, name: str, file: IO[bytes], size: int) -> None:
        self._name, self._file = name, file
        self.shape, self._fortran, self.dtype = _header(name, file)
        claimed = prod(self.shape) * self.dtype.itemsize
        if self.dtype.hasobject or not self.dtype.itemsize:
            raise FileError(f"{name} holds {self.dtype}, expected numbers or text")
        if file.tell() + claimed != size:
            raise FileError(
                f"{name} claims {self.dtype} {list(self.shape)} = {claimed:,} bytes, the archive holds {size - file.tell():,}"
            )
        self.row_bytes = prod(self.shape[1:]) * self.dtype.itemsize

    def whole(self) -> NDArray[Any]:
        """All of it; small arrays only.

        Raises:
            FileError: it is too large to be read at once, or ends early.
        """
        size = prod(self.shape) * self.dtype.itemsize
        if size > MOST_WHOLE_BYTES:
            raise FileError(
                f"{self._name} {list(self.shape)} has {size:,} bytes, expected at most {MOST_WHOLE_BYTES:,}"
                + (": save it in C order (numpy.ascontiguousarray)" if self._fortran else "")
            )
        flat: NDArray[Any] = self._take(size).view(self.dtype)
        return flat.reshape(self.shape[::-1]).T if self._fortran else flat.reshape(self.shape)

    def rows(self, counts: Iterator[int]) -> Iterator[NDArray[Any]]:
        """The array along its first axis, in pieces of so many rows.

        Raises:
            FileError: it ends early, or see ``whole`` for an array in Fortran order.
        """
        if self._fortran:
            array, start = self.whole(), 0
            for count in counts:
                yield array[start : start + count]
                start += count
            return
        for count in counts:
            part = self._take(count * self.row_bytes)
            yield part.view(self.dtype).reshape(count, *self.shape[1:])

    def _take(self, size: int) -> NDArray[np.uint8]:
        part = np.empty(size, dtype=np.uint8)
        view, done = part.data, 0
        while done < size:
            got = self._file.readinto(view[done:])  # type: ignore[attr-defined]
            if not got:
                raise FileError(f"{self._name} ends after {done:,} of {size:,} bytes")
            done += got
        return part


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """An ``.npz`` archive, open while the block runs.

    Raises:
        FileError: it is none, or it is damaged, there or where the block reads.
    """
    with opened(path) as file:
        try:
            if not zipfile.is_zipfile(file):
                raise FileError(f"{path}: not an .npz file; expected an .npz archive, as numpy.savez writes")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                yield Archive(archive)
        except (
            ValueError,
            EOFError,
            NotImplementedError,
            RuntimeError,
            StructError,
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            zlib.error,
        ) as error:
            raise FileError(f"{path}: cannot be read as .npz: {error}") from error


def _check_size(name: str, info: zipfile.ZipInfo) -> None:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileError(
            f"{name} is compressed in a way (number {info.compress_type}) that numpy does not use"
        )
    if info.file_size > info.compress_size * MOST_DEFLATE + MOST_HEADER_BYTES:
        raise FileError(
            f"{name} claims {info.file_size:,} bytes out of {info.compress_size:,}: the archive is damaged"
        )


def _header(name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(file, max_header_size=MOST_HEADER_BYTES)
    except KeyError as error:
        raise FileError(f"{name} has npy version {error}, expected 1.0 or 2.0") from error
    except Exception as error:
        raise FileError(f"{name} has a damaged header: {str(error).splitlines()[:1]}") from error
    if any(type(size) is not int or size < 0 for size in shape):
        raise FileError(f"{name} has shape {shape}, expected sizes of 0 or more")
    return shape, fortran, dtype
