"""What the readers of SGLang's recorder files share: telling the files apart, and tensors as checked arrays."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.files import head, opened, read_json
from eplb.formats.plain_values import shown
from eplb.formats.tensors import DEEPEST, load_torch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

HEAD_BYTES = 2**16
"""Enough of a pickle to see its first keys."""
MOST_FOLDER_FILES = 100_000
MOST_NUMBERS = 2**27
"""Numbers in nested lists: JSON of the largest size holds no more, and a pickle can name one list very often."""
RECORDER_KEYS = (b"logical_count", b"gatherer_key")
MAP_KEY = "physical_to_logical_map"
PICKLED_MAP_KEY = b"X\x17\x00\x00\x00" + MAP_KEY.encode()
"""The key as torch.save pickles it, so that ``last_physical_to_logical_map`` is not taken for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One file of a recorder as it was read: a dictionary, tensors still as they are."""

    path: Path
    content: dict[Any, Any]


def recorder_files(path: Path) -> list[Path]:
    """The file itself, or the ``.pt`` files of a folder in the order of their names, which is that of time and rank.

    Raises:
        FileError: the folder holds none, or too many.
    """
    if not path.is_dir():
        return [path]
    try:
        found = sorted(each for each in path.iterdir() if each.suffix == ".pt")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not found or len(found) > MOST_FOLDER_FILES:
        raise FileError(
            f"{path}: holds {len(found)} .pt files, expected 1..{MOST_FOLDER_FILES} dumps of one recording"
        )
    return found


def documents(path: Path) -> list[Document]:
    """Read a recorder file, or all of a folder.

    Raises:
        FileError: a file cannot be read, or is no dictionary.
    """
    return [Document(file, document(file)) for file in recorder_files(path)]


def document(path: Path) -> dict[Any, Any]:
    """Read one JSON or torch file that holds a dictionary.

    Raises:
        FileError: it cannot be read, or holds something else.
    """
    found = read_json(path) if is_json_object(path) else load_torch(path)
    if not isinstance(found, dict):
        raise FileError(f"{path}: holds a {type(found).__name__}, expected a dictionary with names")
    return found


def is_json_object(path: Path) -> bool:
    """Whether a file starts as a JSON object does. Never raises."""
    return head(path, 64).lstrip().startswith(b"{")


def names_key(path: Path, keys: Iterable[bytes]) -> bool:
    """Whether the start of a JSON object, or of a torch file's pickle, names one of ``keys``. Never raises."""
    start = head(path, HEAD_BYTES) if is_json_object(path) else _pickle_head(path)
    return any(key in start for key in keys)


def _pickle_head(path: Path) -> bytes:
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(name) as member:
                return member.read(HEAD_BYTES)
    except Exception:  # noqa: BLE001 - a damaged archive raises whatever the parser trips over
        return b""


def array(value: Any, axes: tuple[str, ...], where: str, *, kinds: str = "iu") -> NDArray[Any]:
    """A tensor, or nested lists of JSON, as a numpy array; the tensor's memory is shared.

    ``axes``: what the axes are, for the messages. ``kinds``: kinds of number that are accepted, as numpy letters.

    Raises:
        FileError: it is neither, or its shape or type differ; ``where`` starts the message.
    """
    found = _from_lists(value, len(axes), where) if isinstance(value, list) else _from_tensor(value)
    if found is None or found.ndim != len(axes) or 0 in found.shape or found.dtype.kind not in kinds:
        shown = type(value).__name__ if found is None else f"{found.dtype} {list(found.shape)}"
        what = "whole numbers" if kinds == "iu" else "numbers"
        raise FileError(f"{where} is {shown}, expected {what} [{', '.join(axes)}] with at least 1 each")
    return found


def axes_of(value: Any) -> int:
    """Axes of a tensor, or levels of nested lists; 0 for anything else."""
    if not isinstance(value, list):
        return len(getattr(value, "shape", ()))
    levels = 0
    while isinstance(value, list) and levels <= DEEPEST:
        value, levels = (value[0] if value else None), levels + 1
    return levels


def _from_tensor(value: Any) -> NDArray[Any] | None:
    # The file was read through torch, or there is no tensor: nothing is imported for JSON.
    if type(value).__module__ != "torch":
        return None
    try:
        found: NDArray[Any] = value.detach().numpy()
    except (RuntimeError, TypeError, AttributeError):
        return None
    return found


def _from_lists(value: list[Any], axes: int, where: str) -> NDArray[Any] | None:
    """Rectangular lists of plain numbers; numpy alone would take ``true`` for 1. None: they have another number of levels."""
    if axes_of(value) != axes:
        return None
    shape: list[int] = []
    level: Any = value
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    if prod(shape) > MOST_NUMBERS:
        raise FileError(f"{where} claims {shape} numbers, expected at most {MOST_NUMBERS:,} in lists")
    _check_lists(value, shape, where)
    try:
        return np.array(value)
    except (ValueError, OverflowError) as error:
        raise FileError(f"{where} is not a table of numbers: {error}") from error


def _check_lists(value: Any, shape: list[int], where: str) -> None:
    if not isinstance(value, list) or len(value) != shape[0]:
        found = len(value) if isinstance(value, list) else type(value).__name__
        raise FileError(f"{where} has {found} items, the first of its kind {shape[0]}")
    if len(shape) > 1:
        for at, item in enumerate(value):
            _check_lists(item, shape[1:], f"{where}[{at}]")
        return
    for at, item in enumerate(value):
        if type(item) not in {int, float}:
            raise FileError(f"{where}[{at}] is {shown(item)}, expected a number")
