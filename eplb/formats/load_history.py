"""The load history of the public EPLB optimisation benchmark, as vLLM recorded it.

    {"load_history": [{"logical_expert_load": [[tokens of expert 0, 1, ...], ...one list a layer]}, ...]}

Counts are of logical experts; rows are MoE layers in the order of the model, without a number. An entry is a slice; ``slicing``
says what becomes of very many. Other keys, of the document and of an entry, are passed over.

Source of the schema: the evaluator of that benchmark, which sums ``logical_expert_load`` over runs of 100 entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats import files
from eplb.formats.facts import Format, Layers, Note, ReadOptions, TraceFile
from eplb.formats.json_items import items
from eplb.formats.plain_values import shown
from eplb.formats.slicing import CountSlice, slices_of_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

NAME = "load-history"
KEY, LOAD = "load_history", "logical_expert_load"
HEAD_BYTES = 2**16
MOST_LOAD = 2**48
"""Tokens of one expert in one entry, far beyond any recording: sums of thousands of entries still fit int64."""

NOTES = (
    Note(
        "phase_unknown",
        "the recording does not say which steps were prefill and which decode",
        "record the phases apart where they differ",
    ),
    Note(
        "steps_unknown",
        "the recording does not say how many steps an entry sums",
        "",
    ),
)


def recognises(path: Path) -> bool:
    """Whether the head of a file is an object that names a load history."""
    head = files.head(path, HEAD_BYTES)
    return head.lstrip()[:1] == b"{" and f'"{KEY}"'.encode() in head


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read the loads as slices, again while the file is being written.

    Raises:
        FileError: names the file, entry, layer, value and what was expected.
    """
    return files.steady(path, lambda: _read(path, options))


def _read(path: Path, options: ReadOptions) -> TraceFile:
    with files.in_file(path), files.opened(path) as file:
        slices = slices_of_counts(_entries(file, options), options)
        found = slices.as_file(NAME, Layers(), options)
    return replace(found, notes=found.notes + NOTES)


def _entries(file: BinaryIO, options: ReadOptions) -> Iterator[CountSlice]:
    for number, entry in items(file, KEY, options):
        where = f"{KEY}[{number}]"
        rows = entry.get(LOAD) if isinstance(entry, dict) else None
        if not isinstance(rows, list) or not rows:
            raise FileError(f"{where} is not an object with {LOAD}, a list of layers")
        yield CountSlice(_load(rows, f"{where}.{LOAD}"))


def _load(rows: list[Any], where: str) -> NDArray[np.int64]:
    """Loads of one entry, int64 [layers, experts]."""
    width = len(rows[0]) if isinstance(rows[0], list) else 0
    for layer, row in enumerate(rows):
        if not isinstance(row, list) or not row or len(row) != width:
            found = f"{len(row)} experts" if isinstance(row, list) else type(row).__name__
            raise FileError(f"{where}[{layer}] is {found}, expected a list of {width or 'at least 1'} loads")
        _check_loads(row, f"{where}[{layer}]")
    return np.array(rows, dtype=np.int64)


def _check_loads(row: list[Any], where: str) -> None:
    if set(map(type, row)) <= {int} and min(row) >= 0 and max(row) <= MOST_LOAD:
        return
    for expert, tokens in enumerate(row):
        whole = type(tokens) is int or (type(tokens) is float and tokens.is_integer())
        if not whole or not 0 <= tokens <= MOST_LOAD:
            raise FileError(
                f"{where}[{expert}] is {shown(tokens)}, expected tokens, a whole number from 0 to {MOST_LOAD}"
            )


FORMATS = (
    Format(
        name=NAME,
        title="load history of the EPLB optimisation benchmark (JSON)",
        recognises=recognises,
        read_trace=read_trace,
    ),
)
