"""Routing traces as JSON lines: easy to write from any engine's hook, one request or one slice a line.

The first line is a header (see ``header``). Then either one request a line,

    {"picks": [[[4, 17], [3, 9]], ...], "domain": "code", "phase": "decode"}

with picks [tokens, layers, top_k], -1 = none; or one slice a line,

    {"counts": [[12, 0, 7, 5], ...], "domain": "code", "phase": "decode", "steps": 10}

with counts [layers, experts]. Everything but ``picks`` or ``counts`` may be left out. Numbers are whole: 2.0 and true are refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, Sequence, TraceFile, Written
from eplb.formats.files import head, in_file, lines, parse_json, replacing, steady
from eplb.formats.header import SCHEMA, Header, made_up, parse_header
from eplb.formats.picks import check_picks
from eplb.formats.slicing import CountSlice, slices_of, slices_of_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

NAME = "jsonl"
KEYS = {"picks": {"picks", "domain", "phase"}, "counts": {"counts", "domain", "phase", "steps"}}
MOST_STEPS = 2**31


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read a trace as slices.

    Raises:
        FileError: names the file, the line, the place and the value.
    """
    return steady(path, lambda: _read_trace(path, options))


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """The picks of a trace, request by request.

    Raises:
        FileError: it holds none, or see ``read_trace``.
    """
    with in_file(path):
        header, records = _open(path, options)
        for sequence in _sequences(records, header):
            if options.phase in (None, sequence.phase):
                yield replace(sequence, synthetic=header.synthetic)


def _read_trace(path: Path, options: ReadOptions) -> TraceFile:
    with in_file(path):
        header, records = _open(path, options)
        chosen = replace(options, experts=header.experts)
        first = next(records, None)
        if first is None:
            raise FileError(
                "holds a header and nothing else, expected a request or a slice on every further line"
            )
        both = _again(first, records)
        if "picks" in first[1]:
            slices = slices_of(_sequences(both, header), chosen)
        else:
            slices = slices_of_counts(_counts(both), chosen)
        return header.mark(slices.as_file(NAME, header.layers, options))


def _again(first: tuple[int, Any], rest: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    yield first
    yield from rest


def _open(path: Path, options: ReadOptions) -> tuple[Header, Iterator[tuple[int, dict[str, Any]]]]:
    numbered = _documents(path, options)
    number, document = next(numbered, (1, None))
    try:
        header = parse_header(document)
    except FileError as error:
        raise FileError(f"line {number}: {error}") from error
    if options.experts is not None:
        header = replace(header, experts=options.experts)
    return header, numbered


def _documents(path: Path, options: ReadOptions) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines(path, options):
        try:
            document = parse_json(line, whole=True)
        except FileError as error:
            raise FileError(f"line {number}: {error}") from error
        if not isinstance(document, dict):
            raise FileError(f"line {number}: is a {type(document).__name__}, expected an object")
        # numpy would take true for 1: look closer only where the words stand.
        if b"true" in line or b"false" in line:
            _refuse_truths(document, number)
        yield number, document


def _refuse_truths(value: Any, number: int) -> None:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, bool):
            raise FileError(f"line {number}: holds {str(found).lower()}, expected whole numbers")
        waiting.extend(
            found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        )


def _sequences(records: Iterator[tuple[int, dict[str, Any]]], header: Header) -> Iterator[Sequence]:
    shape: tuple[int, ...] = ()
    for number, record in records:
        _check_keys(record, number, "picks")
        picks = _array(record["picks"], number, "picks", "[tokens, layers, top_k]")
        shape = shape or picks.shape[1:]
        check_picks(picks, header.experts, shape, f"line {number}")
        yield Sequence(picks, _name(record, "domain", number), _name(record, "phase", number) or None)


def _counts(records: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[CountSlice]:
    for number, record in records:
        _check_keys(record, number, "counts")
        counts = _array(record["counts"], number, "counts", "[layers, experts]")
        steps = record.get("steps")
        if steps is not None and (type(steps) is not int or not 1 <= steps <= MOST_STEPS):
            raise FileError(f"line {number}: steps is {steps!r}, expected a whole number of 1 or more")
        yield CountSlice(
            counts, _name(record, "domain", number), _name(record, "phase", number) or None, steps
        )


def _check_keys(record: dict[str, Any], number: int, kind: str) -> None:
    if kind not in record or not KEYS[kind].issuperset(record):
        raise FileError(
            f"line {number}: has keys {sorted(record)[:6]}, expected {kind} as on the line before, and of {sorted(KEYS[kind])} only"
        )


def _name(record: dict[str, Any], key: str, number: int) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise FileError(f"line {number}: {key} is {str(value)[:80]}, expected text")
    return value or ""


def _array(value: Any, number: int, name: str, shape: str) -> NDArray[Any]:
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise FileError(
            f"line {number}: {name} are ragged or out of range, expected whole numbers {shape}"
        ) from error
    if array.dtype.kind not in "iu" or array.ndim != shape.count(",") + 1:
        raise FileError(
            f"line {number}: {name} are {array.dtype} {list(array.shape)}, expected whole numbers {shape}"
        )
    return array


def _recognises(path: Path) -> bool:
    first = head(path).split(b"\n", maxsplit=1)[0]
    return first.lstrip().startswith(b"{") and SCHEMA.encode() in first


def _line(document: dict[str, Any]) -> bytes:
    text = json.dumps(
        {key: value for key, value in document.items() if value is not None}, ensure_ascii=False
    )
    return text.encode() + b"\n"


def _write_trace(path: Path, file: TraceFile) -> Written:
    trace, steps = file.trace, file.trace.steps_per_slice
    with replacing(path) as target:
        target.write(_line(Header(trace.experts, file.layers, file.synthetic).document()))
        for at, counts in enumerate(trace.tokens):
            document = {
                "counts": counts.tolist(),
                "domain": (file.domain[at] or None) if file.domain else None,
                "phase": (file.phase[at] or None) if file.phase else None,
                "steps": None if steps is None else int(steps[at]),
            }
            target.write(_line(document))
    return Written((path,), ())


def _write_sequences(
    path: Path, sequences: Iterable[Sequence], layers: Layers, experts: int | None
) -> Written:
    shape: tuple[int, ...] = ()
    with in_file(path), replacing(path) as target:
        synthetic, known = made_up(sequences)
        target.write(_line(Header(experts, layers, synthetic).document()))
        for at, sequence in enumerate(known):
            shape = shape or sequence.picks.shape[1:]
            check_picks(sequence.picks, experts, shape, f"sequence {at}")
            # A request without a token has no shape that a line could show.
            if len(sequence.picks):
                document = {
                    "picks": sequence.picks.tolist(),
                    "domain": sequence.domain or None,
                    "phase": sequence.phase,
                }
                target.write(_line(document))
    return Written((path,), ())


FORMATS = (
    Format(
        name=NAME,
        title="our own trace of counts or picks (JSON lines)",
        recognises=_recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
        write_trace=_write_trace,
        write_sequences=_write_sequences,
        suffix=".jsonl",
    ),
)
