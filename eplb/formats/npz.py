"""Routing traces in ``.npz``: counts by slice, or the experts that every token picked.

Either ``counts``: whole numbers [slices, layers, experts];
or ``picks``: whole numbers [tokens, layers, top_k], -1 = none, and ``offsets``: int [sequences + 1],
sequence i = picks[offsets[i]:offsets[i+1]].
Optional in both: ``model_layer``: int [layers], the model's layer number of every row; ``hidden_layers``: int, layers of the
model, dense ones included; ``experts``: int, experts of the model; ``domain``: [sequences] or [slices], what each is about;
``phase``: text [sequences] or [slices], prefill, decode, mixed or '' = unknown; ``synthetic``: text, what made the trace up (a
trace without it was recorded). With counts also ``steps``: int [slices].

Large arrays are read piece by piece. Picks become slices by the rule of ``slicing``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, Sequence, TraceFile, Written
from eplb.formats.files import in_file, steady, tell
from eplb.formats.header import Header, parse_header
from eplb.formats.members import Archive, open_archive
from eplb.formats.npz_write import write_counts, write_picks
from eplb.formats.picks import check_picks
from eplb.formats.slicing import CountSlice, slices_of, slices_of_counts
from eplb.formats.tensors import zip_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

NAME = "npz"
MOST_PARTS = 2**24
"""Most slices or sequences: a few compressed bytes can claim any number of tiny ones."""
MOST_SEQUENCE_BYTES = 2**30
"""Largest single sequence: one is held in memory as a whole."""


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read a trace as slices.

    Raises:
        FileError: names the file, the array, the place and the value.
    """
    return steady(path, lambda: _read_trace(path, options))


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """The picks of a trace, sequence by sequence.

    Raises:
        FileError: it holds none, or see ``read_trace``.
    """
    with in_file(path), open_archive(path) as archive:
        header = _header(archive, options)
        for at, sequence in enumerate(_sequences(archive, options)):
            shape = sequence.picks.shape[1:]
            check_picks(sequence.picks, header.experts, shape, f"sequence {at}")
            if options.phase in (None, sequence.phase):
                yield replace(sequence, synthetic=header.synthetic)


def _read_trace(path: Path, options: ReadOptions) -> TraceFile:
    with in_file(path), open_archive(path) as archive:
        header = _header(archive, options)
        if "counts" in archive.names:
            slices = slices_of_counts(_counts(archive, options), replace(options, experts=header.experts))
        elif {"picks", "offsets"} <= set(archive.names):
            slices = slices_of(_sequences(archive, options), replace(options, experts=header.experts))
        else:
            raise FileError(f"holds {list(archive.names)}, expected counts, or picks and offsets")
        return header.mark(slices.as_file(NAME, header.layers, options))


def _header(archive: Archive, options: ReadOptions) -> Header:
    document: dict[str, Any] = Header().document()
    for key in ("experts", "hidden_layers", "model_layer"):
        array = archive.whole(key)
        if array is None:
            continue
        dimensions = 1 if key == "model_layer" else 0
        if array.dtype.kind not in "iu" or array.ndim != dimensions:
            raise FileError(
                f"{key} is {array.dtype} {list(array.shape)}, expected {'whole numbers [layers]' if dimensions else 'one whole number'}"
            )
        document[key] = array.tolist()
    words = archive.whole("synthetic")
    if words is not None:
        if words.dtype.kind != "U" or words.ndim:
            raise FileError(f"synthetic is {words.dtype} {list(words.shape)}, expected one text")
        document["synthetic"] = words.item()
    header = parse_header(document)
    return header if options.experts is None else replace(header, experts=options.experts)


def _sequences(archive: Archive, options: ReadOptions) -> Iterator[Sequence]:
    if not {"picks", "offsets"} <= set(archive.names):
        raise FileError(f"holds {list(archive.names)}, expected picks and offsets")
    with archive.member("picks") as picks:
        if len(picks.shape) != 3 or picks.dtype.kind not in "iu" or 0 in picks.shape:
            raise FileError(
                f"picks are {picks.dtype} {list(picks.shape)}, expected whole numbers [tokens, layers, top_k]"
            )
        lengths = _lengths(archive.whole("offsets"), picks.shape[0])
        names = _names(archive, len(lengths))
        longest = int(lengths.max()) * picks.row_bytes
        if longest > MOST_SEQUENCE_BYTES:
            raise FileError(
                f"one sequence has {longest:,} bytes of picks, expected at most {MOST_SEQUENCE_BYTES:,}: cut it between requests"
            )
        done, total = 0, picks.shape[0] * picks.row_bytes
        for (domain, phase), part in zip(names, picks.rows(map(int, lengths)), strict=True):
            done += part.nbytes
            tell(options, done, total)
            yield Sequence(part, domain, phase)


def _counts(archive: Archive, options: ReadOptions) -> Iterator[CountSlice]:
    with archive.member("counts") as counts:
        if len(counts.shape) != 3 or 0 in counts.shape:
            raise FileError(
                f"counts have shape {list(counts.shape)}, expected [slices, layers, experts] with at least 1 each"
            )
        slices = counts.shape[0]
        if slices > MOST_PARTS:
            raise FileError(
                f"counts has {slices:,} slices, expected at most {MOST_PARTS:,}: add up neighbours"
            )
        names, steps = _names(archive, slices), archive.whole("steps")
        if steps is not None and (
            steps.shape != (slices,) or steps.dtype.kind not in "iu" or (steps < 1).any()
        ):
            raise FileError(
                f"steps is {steps.dtype} {list(steps.shape)}, expected whole numbers [{slices}] of 1 or more"
            )
        if counts.row_bytes > MOST_SEQUENCE_BYTES:
            raise FileError(
                f"one slice has {counts.row_bytes:,} bytes, expected at most {MOST_SEQUENCE_BYTES:,}"
            )
        for at, (part, (domain, phase)) in enumerate(zip(counts.rows(repeat(1, slices)), names, strict=True)):
            tell(options, (at + 1) * counts.row_bytes, slices * counts.row_bytes)
            yield CountSlice(part[0], domain, phase, None if steps is None else int(steps[at]))


def _lengths(offsets: NDArray[Any] | None, tokens: int) -> NDArray[np.int64]:
    if offsets is None or offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        shown = "missing" if offsets is None else f"{offsets.dtype} {list(offsets.shape)}"
        raise FileError(f"offsets are {shown}, expected whole numbers [sequences + 1]")
    if len(offsets) > MOST_PARTS:
        raise FileError(
            f"offsets name {len(offsets) - 1:,} sequences, expected fewer than {MOST_PARTS:,}: cut the file"
        )
    bounds = offsets.astype(np.int64)
    if bounds[0] != 0 or bounds[-1] != tokens or (bounds[1:] < bounds[:-1]).any():
        raise FileError(
            f"offsets run from {bounds[0]} to {bounds[-1]}, expected 0 to {tokens} and never falling"
        )
    return np.diff(bounds)


def _names(archive: Archive, count: int) -> Iterator[tuple[str, str | None]]:
    """Domain and phase of every sequence or slice, made as they are asked for: a small archive can name very many."""
    found: list[Iterable[str]] = []
    for key in ("domain", "phase"):
        array = archive.whole(key)
        if array is None:
            found.append(repeat("", count))
            continue
        if array.shape != (count,) or array.dtype.kind not in ("U" if key == "phase" else "Uiub"):
            raise FileError(
                f"{key} has shape {list(array.shape)} and type {array.dtype}, expected one name for each of {count}"
            )
        found.append(_text(key, value) for value in array.flat)
    return ((domain, phase or None) for domain, phase in zip(*found, strict=True))


def _text(key: str, value: Any) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FileError(f"{key} holds {text!r}, which is not text") from error
    return text


def _recognises(path: Path) -> bool:
    return not {"counts.npy", "picks.npy"}.isdisjoint(zip_names(path))


def _write_trace(path: Path, file: TraceFile) -> Written:
    steps = file.trace.steps_per_slice
    slices = (
        CountSlice(
            counts,
            file.domain[at] if file.domain else "",
            (file.phase[at] or None) if file.phase else None,
            None if steps is None else int(steps[at]),
        )
        for at, counts in enumerate(file.trace.tokens)
    )
    header = Header(file.trace.experts, file.layers, file.synthetic)
    write_counts(path, slices, file.trace.slices, header)
    return Written((path,), ())


def _write_sequences(
    path: Path, sequences: Iterable[Sequence], layers: Layers, experts: int | None
) -> Written:
    write_picks(path, sequences, Header(experts, layers))
    return Written((path,), ())


FORMATS = (
    Format(
        name=NAME,
        title="our own trace of counts or picks (.npz)",
        recognises=_recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
        write_trace=_write_trace,
        write_sequences=_write_sequences,
        suffix=".npz",
    ),
)
