"""Routing traces in Parquet (extra ``parquet``): one request or one slice a row, in columns that any data tool writes.

Either ``picks``: list<list<list<integer>>>, [tokens, layers, top_k] of one request, -1 = none; or ``counts``: list<list<integer>>,
[layers, experts] of one slice. Optional ``domain`` and ``phase``: string; with counts ``steps``: integer. The key ``eplb`` of the
file's metadata may hold a header (see ``header``) as JSON. Other columns are left alone. Row groups are read piece by piece.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, Sequence, TraceFile, Written
from eplb.formats.files import head, in_file, opened, parse_json, replacing, steady, tell
from eplb.formats.header import Header, made_up, parse_header
from eplb.formats.picks import check_picks
from eplb.formats.slicing import CountSlice, slices_of, slices_of_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

NAME = "parquet"
METADATA_KEY = b"eplb"
LEVELS = {"picks": 3, "counts": 2}
BATCH_ROWS = 8
MOST_GROUP_BYTES = 2**30
MOST_GROUP_VALUES = 2**28
"""A row group that claims more is not read: a few bytes of run lengths can claim anything."""
GROUP_VALUES = 2**22
"""Values after which a writer starts a new row group."""
BUFFER_BYTES = 2**20
MOST_TEXT_BYTES = 2**24


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read a trace as slices.

    Raises:
        FileError: names the file, the row, the place and the value; or says that pyarrow is missing.
    """
    return steady(path, lambda: _read_trace(path, options))


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """The picks of a trace, request by request.

    Raises:
        FileError: it holds none, or see ``read_trace``.
    """
    with in_file(path), _open(path) as table:
        header = _header(table, options)
        if _kind(table) != "picks":
            raise FileError("holds counts, expected picks")
        for sequence in _sequences(table, options, header):
            if options.phase in (None, sequence.phase):
                yield replace(sequence, synthetic=header.synthetic)


def _read_trace(path: Path, options: ReadOptions) -> TraceFile:
    with in_file(path), _open(path) as table:
        header = _header(table, options)
        chosen = replace(options, experts=header.experts)
        if _kind(table) == "picks":
            slices = slices_of(_sequences(table, options, header), chosen)
        else:
            slices = slices_of_counts(_counts(table, options), chosen)
        return header.mark(slices.as_file(NAME, header.layers, options))


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise FileError("Parquet needs pyarrow; pip install 'eplb-daemon[parquet]'") from error
    return pa


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    pyarrow = _pyarrow()
    with opened(path) as file:
        try:
            table = pyarrow.parquet.ParquetFile(
                file,
                buffer_size=BUFFER_BYTES,
                thrift_string_size_limit=MOST_TEXT_BYTES,
                thrift_container_size_limit=2**20,
            )
            yield table
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot be read as Parquet: {str(error).splitlines()[:1]}") from error


def _header(table: Any, options: ReadOptions) -> Header:
    text = (table.metadata.metadata or {}).get(METADATA_KEY)
    header = Header() if text is None else parse_header(parse_json(text, whole=True))
    return header if options.experts is None else replace(header, experts=options.experts)


def _kind(table: Any) -> str:
    names = table.schema_arrow.names
    found = [kind for kind in LEVELS if kind in names]
    if len(found) != 1:
        raise FileError(f"has columns {names[:8]}, expected one of picks and counts")
    for at in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(at)
        values = max((group.column(place).num_values for place in range(group.num_columns)), default=0)
        if group.total_byte_size > MOST_GROUP_BYTES or values > MOST_GROUP_VALUES:
            raise FileError(
                f"row group {at} claims {group.total_byte_size:,} bytes and {values:,} values, expected at most "
                f"{MOST_GROUP_BYTES:,} and {MOST_GROUP_VALUES:,}: write smaller row groups"
            )
    return found[0]


def _rows(
    table: Any, kind: str, options: ReadOptions
) -> Iterator[tuple[int, NDArray[Any], str, str | None, Any]]:
    """Number, array, domain, phase and steps of every row."""
    names = [kind, *(name for name in ("domain", "phase", "steps") if name in table.schema_arrow.names)]
    done, total = 0, table.metadata.num_rows
    for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=names):
        columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
        rest = {name: column.to_pylist() for name, column in columns.items() if name != kind}
        for at in range(batch.num_rows):
            array = _array(columns[kind].slice(at, 1), LEVELS[kind], f"row {done + at}: {kind}")
            texts = [_text(rest, name, at, done) for name in ("domain", "phase")]
            steps = rest["steps"][at] if "steps" in rest else None
            yield done + at, array, texts[0], texts[1] or None, steps
        done += batch.num_rows
        tell(options, done, total)


def _text(rest: dict[str, list[Any]], name: str, at: int, done: int) -> str:
    value = rest[name][at] if name in rest else None
    if value is not None and not isinstance(value, str):
        raise FileError(f"row {done + at}: {name} is {value!r}, expected text")
    return value or ""


def _array(column: Any, levels: int, where: str) -> NDArray[Any]:
    """One cell of nested lists as an array with an axis for each level."""
    pyarrow = _pyarrow()
    sizes = []
    for _ in range(levels):
        if not hasattr(column, "flatten") or column.null_count:
            raise FileError(
                f"{where} are {column.type}, expected {levels} levels of lists of whole numbers, no null"
            )
        lengths = np.unique(pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise FileError(f"{where} are ragged: lists of {lengths[:4].tolist()} items on one level")
        sizes.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
    if not pyarrow.types.is_integer(column.type) or column.null_count:
        raise FileError(f"{where} are of type {column.type}, expected whole numbers, no null")
    flat: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return flat.reshape(sizes)


def _sequences(table: Any, options: ReadOptions, header: Header) -> Iterator[Sequence]:
    shape: tuple[int, ...] = ()
    for number, picks, domain, phase, _ in _rows(table, "picks", options):
        if not len(picks):
            continue
        shape = shape or picks.shape[1:]
        check_picks(picks, header.experts, shape, f"row {number}")
        yield Sequence(picks, domain, phase)


def _counts(table: Any, options: ReadOptions) -> Iterator[CountSlice]:
    for number, counts, domain, phase, steps in _rows(table, "counts", options):
        if steps is not None and (type(steps) is not int or not 1 <= steps < 2**31):
            raise FileError(f"row {number}: steps is {steps!r}, expected a whole number of 1 or more")
        yield CountSlice(counts, domain, phase, steps)


def _recognises(path: Path) -> bool:
    return head(path, 4) == b"PAR1"


@contextmanager
def _writer(path: Path, fields: dict[str, Any], header: Header) -> Iterator[Any]:
    pyarrow = _pyarrow()
    text = json.dumps(header.document()).encode()
    schema = pyarrow.schema(fields.items(), metadata={METADATA_KEY: text})
    with replacing(path) as target, pyarrow.parquet.ParquetWriter(target, schema) as writer:
        yield writer


def _nested(array: NDArray[Any], pyarrow: Any) -> Any:
    """An array as one cell of nested lists."""
    flat = pyarrow.array(np.ascontiguousarray(array).reshape(-1))
    count = array.size
    for size in reversed(array.shape):
        count //= size
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
        flat = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), flat)
    return flat


def _write_trace(path: Path, file: TraceFile) -> Written:
    with in_file(path):
        pyarrow = _pyarrow()
        trace, steps = file.trace, file.trace.steps_per_slice
        fields = {"counts": pyarrow.list_(pyarrow.list_(pyarrow.int64()))}
        fields |= {"domain": pyarrow.string(), "phase": pyarrow.string(), "steps": pyarrow.int64()}
        with _writer(path, fields, Header(trace.experts, file.layers, file.synthetic)) as writer:
            group = _Group(writer)
            for at, counts in enumerate(trace.tokens):
                group.add(
                    counts,
                    (file.domain[at] or None) if file.domain else None,
                    (file.phase[at] or None) if file.phase else None,
                    None if steps is None else int(steps[at]),
                )
            group.flush()
    return Written((path,), ())


def _write_sequences(
    path: Path, sequences: Iterable[Sequence], layers: Layers, experts: int | None
) -> Written:
    with in_file(path):
        pyarrow = _pyarrow()
        fields = {"picks": pyarrow.list_(pyarrow.list_(pyarrow.list_(pyarrow.int16())))}
        fields |= {"domain": pyarrow.string(), "phase": pyarrow.string()}
        shape: tuple[int, ...] = ()
        synthetic, known = made_up(sequences)
        with _writer(path, fields, Header(experts, layers, synthetic)) as writer:
            group = _Group(writer)
            for at, sequence in enumerate(known):
                shape = shape or sequence.picks.shape[1:]
                check_picks(sequence.picks, experts, shape, f"sequence {at}")
                # A request without a token has no shape that a cell could show.
                if len(sequence.picks):
                    group.add(sequence.picks.astype(np.int16), sequence.domain or None, sequence.phase)
            group.flush()
    return Written((path,), ())


class _Group:
    """Rows that wait to become one row group."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._rows: list[tuple[Any, ...]] = []
        self._values = 0

    def add(self, array: NDArray[Any], *rest: Any) -> None:
        self._rows.append((array, *rest))
        self._values += array.size
        if self._values >= GROUP_VALUES:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        pyarrow = _pyarrow()
        arrays, *rest = zip(*self._rows, strict=True)
        cells = pyarrow.concat_arrays([_nested(array, pyarrow) for array in arrays])
        schema = self._writer.schema
        columns = [pyarrow.array(each, type=schema.types[at + 1]) for at, each in enumerate(rest)]
        self._writer.write_table(pyarrow.Table.from_arrays([cells, *columns], schema=schema))
        self._rows, self._values = [], 0


FORMATS = (
    Format(
        name=NAME,
        title="our own trace of counts or picks (Parquet)",
        recognises=_recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
        write_trace=_write_trace,
        write_sequences=_write_sequences,
        suffix=".parquet",
    ),
)
