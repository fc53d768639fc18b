"""Traces in Parquet: nested lists as any data tool writes them, read piece by piece, checked like all others."""

import json
import sys

import numpy as np
import pytest
from damage import answers, damaged, damages, settle
from hypothesis import given, settings

from eplb.errors import FileError
from eplb.formats import parquet
from eplb.formats.facts import Layers, ReadOptions, Sequence
from eplb.formats.parquet import FORMATS, read_sequences, read_trace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PICKS = [[[[0, 1], [2, 3]]], [[[1, 3], [-1, 0]], [[0, 1], [2, 1]]]]
COUNTS = [[[1, 0, 2], [3, 0, 0]], [[0, 0, 5], [5, 0, 0]]]


def saved(tmp_path, metadata=None, types=None, **columns):
    table = pa.table(
        {name: pa.array(values, type=(types or {}).get(name)) for name, values in columns.items()}
    )
    if metadata is not None:
        table = table.replace_schema_metadata({"eplb": json.dumps(metadata)})
    path = tmp_path / "trace.parquet"
    pq.write_table(table, path)
    return settle(path, path.read_bytes())


def refused(tmp_path, metadata=None, types=None, **columns):
    with pytest.raises(FileError) as caught:
        read_trace(saved(tmp_path, metadata, types, **columns), ReadOptions())
    assert str(caught.value).startswith(f"{tmp_path}/trace.parquet: ")
    return str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.list_(pa.int64()))),
        pa.large_list(pa.list_(pa.list_(pa.int8()))),
        pa.list_(pa.list_(pa.list_(pa.int16(), 2), 2)),
    ],
)
def test_nested_lists_of_any_kind_are_read(tmp_path, kind):
    """One request a row; other columns are left alone."""
    path = saved(
        tmp_path, types={"picks": kind}, picks=PICKS, domain=["a", None], phase=["decode", None], extra=[1, 2]
    )
    sequences = list(read_sequences(path, ReadOptions()))
    assert [each.picks.tolist() for each in sequences] == PICKS
    assert [(each.domain, each.phase) for each in sequences] == [("a", "decode"), ("", None)]
    assert read_trace(path, ReadOptions()).trace.tokens.sum() == 11


def test_counts_and_a_header_are_read(tmp_path):
    """One slice a row, steps if there are any."""
    header = {"schema": "eplb-trace/1", "model_layer": [3, 4], "hidden_layers": 5}
    file = read_trace(saved(tmp_path, header, counts=COUNTS, steps=[1, 2]), ReadOptions())
    assert file.trace.tokens.tolist() == COUNTS
    assert file.layers == Layers((3, 4), 5)
    assert file.trace.steps_per_slice.tolist() == [1, 2]


def test_row_groups_are_written_and_read_in_pieces(tmp_path, monkeypatch):
    """Many small groups hold the same as one."""
    monkeypatch.setattr(parquet, "GROUP_VALUES", 5)
    path = tmp_path / "trace.parquet"
    sequences = [Sequence(np.array(each)) for each in PICKS] * 5
    FORMATS[0].write_sequences(path, sequences, Layers(), None)
    assert pq.ParquetFile(path).metadata.num_row_groups > 2
    assert [each.picks.tolist() for each in read_sequences(path, ReadOptions())] == PICKS * 5


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"other": [1]}, "has columns ['other'], expected one of picks and counts"),
        ({"picks": PICKS, "counts": COUNTS}, "expected one of picks and counts"),
        ({"picks": [[[[0.0]]]]}, "row 0: picks are of type double, expected whole numbers"),
        ({"picks": [[[0]]]}, "expected 3 levels of lists"),
        ({"picks": [7]}, "expected 3 levels of lists"),
        ({"picks": [[[[0]], [[0], [1]]]]}, "row 0: picks are ragged"),
        ({"picks": [[[[0, None]]]]}, "no null"),
        ({"picks": [PICKS[0], None]}, "row 1: picks are"),
        ({"picks": [[[[0, 70_000]]]]}, "row 0: picks[token 0, layer 0, 1] is 70000"),
        ({"picks": PICKS, "domain": [1, 2]}, "row 0: domain is 1, expected text"),
        ({"picks": PICKS, "phase": ["a", "b"]}, "phase is 'a'"),
        ({"counts": [[[1, -1]]]}, "counts[layer 0, expert 1] is -1"),
        ({"counts": COUNTS, "steps": [0, 1]}, "row 0: steps is 0"),
        ({"picks": PICKS, "metadata": {"schema": 2}}, "schema is '2'"),
        ({"counts": []}, "holds no slice"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_number(tmp_path, columns, part):
    """Each message names the file, the row and the value."""
    assert part in refused(tmp_path, **columns)


def test_a_row_group_that_claims_too_much_is_not_read(tmp_path, monkeypatch):
    """Run lengths can make anything of a few bytes."""
    path = saved(tmp_path, counts=[[[1] * 1000]])
    monkeypatch.setattr(parquet, "MOST_GROUP_VALUES", 999)
    with pytest.raises(FileError, match="write smaller row groups"):
        read_trace(path, ReadOptions())


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    """Both ways."""
    path = saved(tmp_path, picks=PICKS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FileError, match=r"pip install 'eplb-daemon\[parquet\]'"):
        read_trace(path, ReadOptions())
    with pytest.raises(FileError, match=r"pip install 'eplb-daemon\[parquet\]'"):
        FORMATS[0].write_sequences(tmp_path / "new", [], Layers(), None)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("parquet"), picks=PICKS, domain=["a", "b"])


@given(damage=damages(1800))
@settings(max_examples=100)
def test_a_damaged_file_is_read_or_refused(original, damage):
    """Whatever the bytes, the answer is a trace or a FileError."""
    data = original.read_bytes()
    path = settle(original.parent / "damaged.parquet", damaged(data.ljust(1800, b"\0"), damage))
    assert answers(lambda path: read_trace(path, ReadOptions()), path)
    # The end says where all the rest is: damage it alone as well.
    settle(path, data[:-200] + damaged(data[-200:].rjust(1800, b"\0"), damage)[-200:])
    assert answers(lambda path: read_trace(path, ReadOptions()), path)
