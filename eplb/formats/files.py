"""Reading files that others wrote, and writing so that a reader never sees half a file.

Every error is a :class:`eplb.errors.FileError` that starts with the path. Nothing here executes what a file says, and nothing
allocates on the word of a header: sizes are checked against the file first. A file that is being written is read again, shortly.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from eplb.errors import FileError
from placement import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eplb.formats.facts import ReadOptions

T = TypeVar("T")

MOST_JSON_BYTES = 2**28
"""Largest JSON document that is read at once: as Python objects it takes many times its size."""
MOST_LINE_BYTES = 2**26
"""Longest line of a file that is read line by line."""
TRIES = 20
PAUSE_S = 0.1
"""A file that fails to parse and does not change for so long is damaged, not unfinished."""
FRESH_S = 2.0
"""Nobody waits for a file that was last changed longer ago."""


def steady(path: Path, attempt: Callable[[], T]) -> T:
    """The result of ``attempt``, tried again while it fails and ``path`` is being written.

    Raises:
        FileError: what ``attempt`` raised last; it says so when the file was still changing.
    """
    for _ in range(TRIES):
        before = _stamp(path)
        try:
            return attempt()
        except FileError as error:
            if before is None or time.time() - before[0] / 1e9 > FRESH_S:
                raise
            time.sleep(PAUSE_S)
            if _stamp(path) == before:
                raise
            last = error
    raise FileError(f"{last} (it is still being written: read it again when that is done)") from last


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@contextmanager
def in_file(path: Path) -> Iterator[None]:
    """Let every error of the block start with ``path``, or with that of a file in it; what a trace cannot be, and what memory or the stack cannot hold, is one too.

    Raises:
        FileError: in place of what the block raised.
    """
    try:
        yield
    except (FileError, TraceError) as error:
        if str(error).startswith((f"{path}: ", f"{path}{os.sep}")):
            raise
        raise FileError(f"{path}: {error}") from error
    except RecursionError as error:
        raise FileError(f"{path}: cannot be read: lists in lists, too many levels deep") from error
    except MemoryError as error:
        raise FileError(f"{path}: needs more memory than there is: {error or 'out of memory'}") from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading bytes.

    Raises:
        FileError: it is missing, not a regular file (a pipe would never end), or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{path}: cannot be read: not a regular file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error


def head(path: Path, count: int = 4096) -> bytes:
    """The first bytes of a file; empty where there is nothing to read. Never raises."""
    try:
        with opened(path) as file:
            return file.read(count)
    except FileError:
        return b""


def size_bytes(path: Path) -> int:
    """Bytes of a regular file.

    Raises:
        FileError: see ``opened``.
    """
    with opened(path) as file:
        return os.fstat(file.fileno()).st_size


def read_bytes(path: Path, *, most_bytes: int) -> bytes:
    """The whole file.

    Raises:
        FileError: it is larger than ``most_bytes``, or see ``opened``.
    """
    with opened(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise FileError(
            f"{path}: has {size_bytes(path):,} bytes, expected at most {most_bytes:,} for a file of this kind"
        )
    return data


def read_text(path: Path, *, most_bytes: int = MOST_JSON_BYTES) -> str:
    """The whole file as UTF-8 text.

    Raises:
        FileError: it is not UTF-8, or see ``read_bytes``.
    """
    try:
        return read_bytes(path, most_bytes=most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: cannot be read: not UTF-8 text (byte {error.start})") from error


def parse_json(text: str | bytes, *, whole: bool = False) -> Any:
    """A JSON document; NaN, infinities and a key given twice are refused; with ``whole`` also 2.0 and 1e3.

    Raises:
        FileError: it is not JSON; says where. The caller knows the path.
    """
    try:
        return json.loads(
            text,
            parse_constant=no_number,
            parse_float=no_number if whole else float,
            object_pairs_hook=distinct,
        )
    except (ValueError, RecursionError, MemoryError) as error:
        raise FileError(f"not JSON: {error or type(error).__name__}") from error


def read_json(path: Path, *, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """A JSON document from a file, read again while it is being written.

    Raises:
        FileError: see ``read_text`` and ``parse_json``.
    """

    def attempt() -> Any:
        with in_file(path):
            return parse_json(read_text(path, most_bytes=most_bytes))

    return steady(path, attempt)


def lines(
    path: Path, options: ReadOptions, *, most_bytes: int = MOST_LINE_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of every line that is not blank, one at a time; tells ``options.progress`` the bytes read.

    Raises:
        FileError: a line is longer than ``most_bytes``, or see ``opened``.
    """
    total, done, number = size_bytes(path), 0, 0
    with opened(path) as file:
        while line := file.readline(most_bytes + 1):
            number += 1
            if len(line) > most_bytes:
                raise FileError(f"{path}: line {number} is longer than {most_bytes:,} bytes")
            done += len(line)
            tell(options, done, total)
            if line.strip():
                yield number, line


def tell(options: ReadOptions, done: int, total: int | None) -> None:
    """Tell how far reading is, to whom ``options`` names."""
    if options.progress is not None:
        options.progress(done, total)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file to write bytes into, which takes the place of ``path`` when the block ends well.

    Raises:
        FileError: it cannot be written; nothing is left behind, and an old file stays.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # Without this a power loss may bring the old name back, or none.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, setting: str) -> None:
    """Make a folder that ``setting`` names, unless it is there.

    Raises:
        FileError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder}: cannot be made: {error.strerror}; set {setting} to a folder that can be written"
        ) from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file in one stroke: a reader sees the old file or the whole new one.

    Raises:
        FileError: see ``replacing``.
    """
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file in one stroke; see ``write_bytes``."""
    write_bytes(path, text.encode("utf-8"))


def no_number(text: str) -> float:
    """Refuse a word or a number that may not stand in a JSON text.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{text[:40]} is not a number that may stand here")


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object that the pairs of a JSON text make.

    Raises:
        ValueError: a key is given twice; the plain parser takes the last in silence.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return found
