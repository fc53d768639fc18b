"""Traces as JSON lines: a header, then one request or one slice a line; whole numbers and nothing else."""

import json

import pytest
from damage import answers, damaged, damages, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.formats.facts import Layers, ReadOptions
from eplb.formats.jsonl import read_sequences, read_trace

HEADER = '{"schema": "eplb-trace/1", "experts": 4, "model_layer": [1, 2], "hidden_layers": 3}'
PICKS = '{"picks": [[[0, 1], [2, 3]], [[1, 3], [-1, 0]]], "domain": "code", "phase": "prefill"}'
COUNTS = '{"counts": [[1, 0, 2, 0], [3, 0, 0, 0]], "phase": "decode", "steps": 2}'


def saved(tmp_path, *lines):
    return settle(tmp_path / "trace.jsonl", "\n".join(lines).encode())


def refused(tmp_path, *lines):
    with pytest.raises(FileError) as caught:
        read_trace(saved(tmp_path, *lines), ReadOptions())
    return str(caught.value)


def test_requests_are_read(tmp_path):
    """With what they are about; -1 counts nowhere; blank lines do not matter."""
    path = saved(tmp_path, HEADER, "", PICKS, "")
    file = read_trace(path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[1, 2, 0, 1], [1, 0, 1, 1]]]
    assert file.layers == Layers((1, 2), 3)
    assert (file.domain, file.phase) == (("code",), ("prefill",))
    assert [len(each.picks) for each in read_sequences(path, ReadOptions())] == [2]


def test_slices_are_read(tmp_path):
    """As they are, in their order."""
    file = read_trace(
        saved(tmp_path, HEADER, COUNTS, '{"counts": [[0, 0, 0, 1], [0, 0, 0, 1]]}'), ReadOptions()
    )
    assert file.trace.tokens[:, 0].tolist() == [[1, 0, 2, 0], [0, 0, 0, 1]]
    assert file.phase == ("decode", "")
    assert file.trace.steps_per_slice is None


def test_a_header_may_say_nothing(tmp_path):
    """Experts are then those that are named, layers unknown."""
    file = read_trace(saved(tmp_path, '{"schema": "eplb-trace/1"}', PICKS), ReadOptions())
    assert file.layers == Layers(None, None)
    assert file.trace.experts == 4


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ((), "schema is 'None'"),
        ((PICKS,), "line 1: schema is 'None', this version reads 'eplb-trace/1'"),
        (('{"schema": "eplb-trace/1", "model": 1}', PICKS), "unknown keys ['model']"),
        (('{"schema": "eplb-trace/1", "experts": true}', PICKS), "line 1: holds true"),
        (('{"schema": "eplb-trace/1", "model_layer": [1, null]}', PICKS), "model_layer[1] is null"),
        (('{"schema": "eplb-trace/1", "model_layer": 3}', PICKS), "model_layer is 3"),
        ((HEADER,), "holds a header and nothing else"),
        ((HEADER, PICKS[:-9]), "line 2: not JSON"),
        ((HEADER, PICKS, COUNTS), "line 3: has keys ['counts', 'phase', 'steps'], expected picks"),
        ((HEADER, "7"), "line 2: is a int, expected an object"),
        ((HEADER, '{"other": 1}'), "line 2: has keys ['other']"),
        ((HEADER, '{"picks": [[[0]], [[0], [1]]]}'), "line 2: picks are ragged"),
        ((HEADER, '{"picks": [[[0.0, 1]]]}'), "line 2: not JSON: 0.0 is not a number that may stand here"),
        ((HEADER, '{"picks": [[[true, 1]]]}'), "line 2: holds true"),
        ((HEADER, '{"picks": [[["1", "2"]]]}'), "expected whole numbers [tokens, layers, top_k]"),
        ((HEADER, '{"picks": []}'), "expected whole numbers [tokens, layers, top_k]"),
        ((HEADER, '{"picks": [[[4, 1], [0, 1]]]}'), "line 2: picks[token 0, layer 0, 0] is 4, expected 0..3"),
        ((HEADER, '{"picks": [[[99999999999999999999, 1], [0, 1]]]}'), "expected whole numbers"),
        ((HEADER, '{"picks": [[[0, 1]]]}'), "model_layer names 2 layers"),
        ((HEADER, '{"counts": [[1, 0, 2, -1], [3, 0, 0, 0]]}'), "counts[layer 0, expert 3] is -1"),
        ((HEADER, '{"counts": [[1, 2], [3, 0]]}'), "counts have 2 experts, asked for 4"),
        ((HEADER, '{"counts": [[1, 0, 0, 0], [3, 0, 0, 0]], "steps": 0}'), "steps is 0"),
        ((HEADER, PICKS.replace('"code"', "7")), "line 2: domain is 7, expected text"),
        ((HEADER, PICKS.replace("prefill", "warm")), "phase is 'warm'"),
    ],
)
def test_a_line_that_cannot_be_is_refused_with_its_number(tmp_path, lines, part):
    """Each message names the file, the line and the value."""
    message = refused(tmp_path, *lines)
    assert part in message
    assert message.startswith(f"{tmp_path}/trace.jsonl: ")


def test_true_in_a_text_is_text(tmp_path):
    """Only a truth value is refused."""
    file = read_trace(saved(tmp_path, HEADER, PICKS.replace("code", "true or false")), ReadOptions())
    assert file.domain == ("true or false",)


@given(damages(len(HEADER) + len(PICKS) + 1))
@settings(max_examples=100)
def test_damaged_lines_are_read_or_refused(tmp_path_factory, damage):
    """Whatever the bytes, the answer is a trace or a FileError."""
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    settle(path, damaged(f"{HEADER}\n{PICKS}".encode(), damage))
    assert answers(lambda path: read_trace(path, ReadOptions()), path)
    assert answers(lambda path: list(read_sequences(path, ReadOptions())), path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["picks", "counts", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["picks", "counts", "domain", "phase", "steps"]))
@settings(max_examples=100)
def test_any_json_in_any_place_is_read_or_refused(tmp_path_factory, value, key):
    """Of the right outer shape, with anything inside."""
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    record = json.loads(PICKS if key == "picks" else COUNTS) | {key: value}
    settle(path, f"{HEADER}\n{json.dumps(record)}".encode())
    assert answers(lambda path: read_trace(path, ReadOptions()), path)
