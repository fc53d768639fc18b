"""Writing ``.npz`` traces: the same trace gives the same bytes, and picks pass through without being held."""

from __future__ import annotations

import io
import tempfile
import zipfile
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.files import in_file, replacing
from eplb.formats.picks import check_picks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import ArrayLike

    from eplb.formats.facts import Sequence
    from eplb.formats.header import Header
    from eplb.formats.slicing import CountSlice

EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Date of every member: the archive says what, not when."""
CHUNK_BYTES = 2**22


def write_counts(path: Path, slices: Iterable[CountSlice], count: int, header: Header) -> None:
    """Write ``count`` slices as they come.

    Raises:
        FileError: there are fewer or more slices, their shapes differ, or the file cannot be written.
    """
    with (
        in_file(path),
        replacing(path) as target,
        zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive,
    ):
        notes = _add_slices(archive, slices, count)
        _add_header(archive, header)
        if all(step is not None for step in notes.steps):
            _add(archive, "steps", np.array(notes.steps, dtype=np.int64))
        _add_names(archive, notes)


def write_picks(path: Path, sequences: Iterable[Sequence], header: Header) -> None:
    """Write sequences as they come; ids take the fewest bytes that hold them.

    Raises:
        FileError: there is no sequence, their shapes differ, an id is out of range, or the file cannot be written.
    """
    with in_file(path), replacing(path) as target, tempfile.TemporaryFile(dir=path.parent) as spool:
        notes = _spool(spool, sequences, header.experts)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            _add_spooled(archive, spool, notes)
            _add(archive, "offsets", np.cumsum([0, *notes.lengths]))
            _add_header(archive, replace(header, synthetic=header.synthetic or notes.synthetic))
            _add_names(archive, notes)


class _Notes:
    """What is known of sequences, or of slices, once all have passed."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.steps: list[int | None] = []
        self.synthetic = ""
        self.domains: list[str] = []
        self.phases: list[str] = []
        self.shape: tuple[int, ...] = ()
        self.low = self.high = 0

    def ids(self) -> np.dtype[Any]:
        return np.dtype(np.min_scalar_type(self.high)) if self.low >= 0 else np.dtype(np.int16)


def _spool(spool: IO[bytes], sequences: Iterable[Sequence], experts: int | None) -> _Notes:
    # The number of tokens stands before the tokens, so they wait in a file of their own.
    notes = _Notes()
    for at, sequence in enumerate(sequences):
        notes.shape = notes.shape or sequence.picks.shape[1:]
        named = check_picks(sequence.picks, experts, notes.shape, f"sequence {at}")
        notes.high = max(notes.high, named - 1)
        if sequence.picks.size:
            notes.low = min(notes.low, int(sequence.picks.min()))
        spool.write(np.ascontiguousarray(sequence.picks, dtype="<i2").data)
        notes.lengths.append(len(sequence.picks))
        notes.domains.append(sequence.domain)
        notes.phases.append(sequence.phase or "")
        notes.synthetic = notes.synthetic or sequence.synthetic
    if not sum(notes.lengths):
        raise FileError("there is no sequence with a token to write")
    return notes


def _add_spooled(archive: zipfile.ZipFile, spool: IO[bytes], notes: _Notes) -> None:
    ids = notes.ids()
    shape = (sum(notes.lengths), *notes.shape)
    spool.seek(0)
    with archive.open(zipfile.ZipInfo("picks.npy", EARLIEST), "w", force_zip64=True) as member:
        form = {"descr": ids.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, form)
        while part := spool.read(CHUNK_BYTES):
            member.write(np.frombuffer(part, dtype="<i2").astype(ids).data)


def _add_slices(archive: zipfile.ZipFile, slices: Iterable[CountSlice], count: int) -> _Notes:
    notes = _Notes()
    with archive.open(zipfile.ZipInfo("counts.npy", EARLIEST), "w", force_zip64=True) as member:
        for each in slices:
            if not notes.shape:
                notes.shape = each.counts.shape
                form = {"descr": "<i8", "fortran_order": False, "shape": (count, *notes.shape)}
                np.lib.format.write_array_header_1_0(member, form)
            if each.counts.shape != notes.shape:
                raise FileError(f"a slice counts {list(each.counts.shape)}, the first {list(notes.shape)}")
            member.write(np.ascontiguousarray(each.counts, dtype="<i8").reshape(-1).view(np.uint8).data)
            notes.steps.append(each.steps)
            notes.domains.append(each.domain)
            notes.phases.append(each.phase or "")
    if not count or len(notes.steps) != count:
        raise FileError(f"there are {len(notes.steps)} slices to write, expected {count}, at least 1")
    return notes


def _add_names(archive: zipfile.ZipFile, notes: _Notes) -> None:
    for name, values in (("domain", notes.domains), ("phase", notes.phases)):
        if any(values):
            _add(archive, name, np.array(values, dtype=np.str_))


def _add_header(archive: zipfile.ZipFile, header: Header) -> None:
    for key, value in header.document().items():
        if key != "schema" and value is not None:
            _add(archive, key, np.array(value, dtype=np.str_ if key == "synthetic" else np.int64))


def _add(archive: zipfile.ZipFile, name: str, values: ArrayLike) -> None:
    array = np.asarray(values)
    with archive.open(zipfile.ZipInfo(f"{name}.npy", EARLIEST), "w", force_zip64=True) as member:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        )
        member.write(buffer.getvalue())
        member.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
