"""SGLang's expert distribution recorder: what ``/dump_expert_distribution_record`` leaves behind, as a trace.

stat, stat_approx: one file with ``logical_count`` [rows, layers, experts], summed over ranks; JSON with that key is read too.
per_pass: one file a rank, ``records`` with ``global_physical_count`` [layers, slots] of one pass each, and the last map.
per_token: the same with the slots of every token; see ``sglang_tokens``.
Rows are the layers of the model from 0, dense ones included (all zero); draft layers are not in them.
Checked against SGLang 0.5.23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Note, TraceFile
from eplb.formats.files import in_file
from eplb.formats.model_rows import moe_rows
from eplb.formats.plain_values import shown
from eplb.formats.sglang_files import RECORDER_KEYS, Document, array, axes_of, documents, names_key
from eplb.formats.sglang_passes import read_passes
from eplb.formats.sglang_tokens import read_tokens, token_sequences
from eplb.formats.slicing import CountSlice, slices_of_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions, Sequence

NAME = "sglang-recorder"


def recognises(path: Path) -> bool:
    """Whether a file, or a file of the folder, names a recorder's keys. Never raises."""
    try:
        found = [each for each in sorted(path.iterdir()) if each.suffix == ".pt"] if path.is_dir() else [path]
    except OSError:
        return False
    return bool(found) and names_key(found[0], RECORDER_KEYS)


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read one dump, or the dumps of all ranks in one folder; every pass is a slice, per_token requests are grouped.

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """
    found = documents(path)
    kind = _kind(found)
    with in_file(path):
        if kind == "stat":
            return _read_stat(found, options)
        read = read_tokens if kind == "per_token" else read_passes
        return read(found, options, NAME)


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """Picks of a per_token recording, request by request.

    Raises:
        FileError: another mode, which holds counts only, or see ``read_trace``.
    """
    found = documents(path)
    kind = _kind(found)
    if kind != "per_token":
        raise FileError(
            f"{path}: a {kind} recording holds counts, not picks: record with --expert-distribution-recorder-mode per_token, "
            "or ask for return_routed_experts"
        )
    with in_file(path):
        yield from token_sequences(found, options)


def _kind(found: list[Document]) -> str:
    kinds = {each.path: _kind_of(each) for each in found}
    first = next(iter(kinds))
    for path, kind in kinds.items():
        if kind != kinds[first]:
            raise FileError(
                f"{path}: is a {kind} recording, {first.name} beside it {kinds[first]}: keep one recording a folder"
            )
    return kinds[first]


def _kind_of(found: Document) -> str:
    content = found.content
    if "logical_count" in content:
        return "stat"
    records = content.get("records")
    if not isinstance(records, list) or "last_physical_to_logical_map" not in content:
        keys = ", ".join(sorted(shown(key) for key in content)[:8])
        raise FileError(
            f"{found.path}: holds {keys or 'nothing'}; expected logical_count, or records and last_physical_to_logical_map"
        )
    if not records:
        raise FileError(
            f"{found.path}: holds no record: start recording, let the engine serve requests, then dump"
        )
    first = records[0]
    return "per_token" if isinstance(first, dict) and "topk_ids_of_layer" in first else "per_pass"


def _read_stat(found: list[Document], options: ReadOptions) -> TraceFile:
    tables = [_table(each) for each in found]
    used = np.zeros(tables[0].shape[1], dtype=bool)
    for table, each in zip(tables, found, strict=True):
        if table.shape[1:] != tables[0].shape[1:]:
            raise FileError(
                f"{each.path}: logical_count is {list(table.shape)}, in {found[0].path.name} {list(tables[0].shape)}"
            )
        used |= table.any(axis=(0, 2))
    chosen = moe_rows(used, options.layers)
    ring = [_is_ring(each) for each in found]
    rows = [
        CountSlice(row[list(chosen.rows)], steps=1 if steps else None)
        for table, steps in zip(tables, ring, strict=True)
        for row in table
        if row.any()
    ]
    empty = sum(len(table) for table in tables) - len(rows)
    slices = slices_of_counts(rows, options)
    return TraceFile(
        slices.trace,
        chosen.layers,
        slices.slices_from.replace(
            "the file's own", "one forward pass each, in the order of the recorder's ring"
        )
        if any(ring)
        else "one sum a file",
        NAME,
        notes=(*chosen.notes, *(_ring_notes(empty) if any(ring) else ()), *slices.notes),
    )


def _is_ring(found: Document) -> bool:
    return axes_of(found.content["logical_count"]) == 3


def _table(found: Document) -> NDArray[Any]:
    """Counts as [rows, layers, experts]; a file with a sum alone has one row."""
    value = found.content["logical_count"]
    where = f"{found.path}: logical_count"
    if _is_ring(found):
        return array(value, ("rows", "layers", "experts"), where, kinds="iuf")
    return array(value, ("layers", "experts"), where, kinds="iuf")[None]


def _ring_notes(empty: int) -> tuple[Note, ...]:
    order = Note(
        "ring_order",
        "the rows of a stat recording come from a ring: each is one pass, but the first is not the earliest",
        "trust sums and averages, not the order; for passes in order start the engine with "
        "--expert-distribution-recorder-buffer-size -1",
    )
    unfilled = Note(
        "unfilled_rows", f"{empty} rows of the ring hold nothing (unfilled, or idle passes) and are left out"
    )
    return (order, unfilled) if empty else (order,)


FORMATS = (
    Format(
        NAME,
        "SGLang expert distribution recorder (.pt of stat, per_pass or per_token, or a folder of them)",
        recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
    ),
)
