"""The load history of the EPLB optimisation benchmark: entries become slices, however long the file is."""

import io
import json
import os

import pytest
from damage import answers, damaged, damages, settle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.formats import files, json_items, load_history, registry
from eplb.formats.facts import Layers, ReadOptions, TraceFile
from eplb.formats.json_items import items

LOADS = [[[1, 5, 2, 9], [4, 4, 4, 5]], [[2, 0, 3, 1], [6, 0, 0, 0]]]


def document(loads=LOADS, **more):
    return more | {"load_history": [{"logical_expert_load": load} for load in loads]}


def saved(tmp_path, value):
    path = tmp_path / "expert-load.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    os.utime(path, (1, 1))
    return path


def refused(path, **options):
    with pytest.raises(FileError) as caught:
        load_history.read_trace(path, ReadOptions(**options))
    assert str(caught.value).count(str(path)) == 1
    return str(caught.value)


def parsed(text, key="load_history"):
    """Items of the list under ``key``, from text."""
    return [value for _, value in items(_Text(text), key, ReadOptions())]


class _Text(io.BytesIO):
    """Bytes in memory with the size that a file on disk would tell."""

    def __init__(self, text):
        super().__init__(text.encode())
        self._null = open(os.devnull, "rb")  # noqa: SIM115, PTH123 - closed with this object

    def fileno(self):
        return self._null.fileno()

    def close(self):
        self._null.close()
        super().close()


def test_every_entry_is_a_slice(tmp_path):
    """Counts as they stand; phase and layer numbers are not in the file."""
    path = saved(tmp_path, document())
    assert registry.recognise(path).name == "load-history"
    file = registry.read_trace(path)
    assert file.trace.tokens.tolist() == LOADS
    assert file.trace.steps_per_slice is None
    assert file.layers == Layers()
    assert (file.phase, file.domain, file.live_map) == (None, None, None)
    assert {note.code for note in file.notes} == {"phase_unknown", "steps_unknown"}


def test_layers_are_the_readers_to_give(tmp_path):
    """And must fit."""
    path = saved(tmp_path, document())
    assert registry.read_trace(path, ReadOptions(layers=Layers((3, 4), 5))).layers == Layers((3, 4), 5)
    assert "--moe-layers" in refused(path, layers=Layers((3,)))
    assert "4 experts, asked for 5" in refused(path, experts=5)
    assert "leave --phase out" in refused(path, phase="decode")


def test_other_keys_are_passed_over(tmp_path):
    """Of the document, before and behind, and of an entry."""
    value = {"model": {"name": "m", "list": [1, {}]}, "ranks": 32}
    value |= document() | {"text": "load_history", "last": 7}
    value["load_history"][0]["step"] = 3
    assert registry.read_trace(saved(tmp_path, value)).trace.tokens.tolist() == LOADS


def test_loads_may_be_written_with_a_point(tmp_path):
    """A tensor of floats gives 2.0; it is a count, and whole."""
    loads = [[[1.0, 5.0, 2, 9], [4, 4, 4, 5]]]
    assert registry.read_trace(saved(tmp_path, document(loads))).trace.tokens.tolist() == LOADS[:1]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("", "the end' stands at character 0, expected an object"),
        ("[]", "'[' stands at character 0, expected an object"),
        ("{}", "holds no 'load_history'"),
        ('{"load_history": {}}', "expected load_history to be a list"),
        ('{"load_history": []}', "holds no slice"),
        ('{"load_history": []} x', "text follows the document at character 21"),
        ('{"load_history": [], "load_history": []}', "holds the key 'load_history' twice"),
        (
            '{"load_history": [{"logical_expert_load": [[1]], "logical_expert_load": [[2]]}]}',
            "the key 'logical_expert_load' is given twice",
        ),
        ('{"load_history": [,]}', "damaged, or cut off, in the value at character 18"),
        ('{"load_history": [1,]}', "load_history[0] is not an object with logical_expert_load"),
        ('{1: 2, "load_history": []}', "1 stands before character 2, expected a key"),
        ('{"a" 2}', "expected ':' behind the key 'a'"),
        ('{"a": 2 "b": 3}', "expected ',' or '}'"),
        ('{"a": NaN}', "NaN is not a number"),
        (document([[]]), "load_history[0] is not an object with logical_expert_load, a list of layers"),
        (document([[3]]), "logical_expert_load[0] is int, expected a list of at least 1 loads"),
        (document([[[]]]), "logical_expert_load[0] is 0 experts"),
        (document([[[1, 2], [1]]]), "logical_expert_load[1] is 1 experts, expected a list of 2 loads"),
        (document([[[1, 2]], [[1, 2, 3]]]), "slice 1"),
        (document([[[1, 2]], [[1, 2]] * 2]), "slice 1"),
        (document([[[1, True]]]), "load_history[0].logical_expert_load[0][1] is True"),
        (document([[[1, 2.5]]]), "[0][1] is 2.5, expected tokens, a whole number"),
        (document([[[1, "2"]]]), "[0][1] is '2'"),
        (document([[[1, None]]]), "[0][1] is None"),
        (document([[[1, -2]]]), "[0][1] is -2"),
        (document([[[1, 10**30]]]), "is 1000000000000000000000000000000, expected"),
        (document([[[1, 1e300]]]), "[0][1] is 1e+300"),
        ('{"load_history": [' + "[" * 100_000, "damaged, or cut off, in the value at character 18"),
    ],
)
def test_a_document_that_is_no_history_is_refused_with_its_place(tmp_path, value, part):
    """Each message names the place, the value and what was expected."""
    assert part in refused(saved(tmp_path, value))


def test_it_is_recognised_by_its_key(tmp_path):
    """At the head of an object."""
    for text, ours in (
        ('{"load_history": 3}', True),
        (' {"a": 1, "load_history": [', True),
        ('["load_history"]', False),
        ('{"logical_count": []}', False),
        ("", False),
    ):
        assert load_history.recognises(saved(tmp_path, text)) is ours
    assert not load_history.recognises(tmp_path / "absent")
    assert not load_history.recognises(tmp_path)


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_the_size_of_the_pieces_does_not_matter(tmp_path, monkeypatch, chunk):
    """Numbers, keys, spaces and characters of several bytes may be cut anywhere."""
    monkeypatch.setattr(json_items, "CHUNK_BYTES", chunk)
    text = json.dumps({"é€𝄞": [1, 234, "é€𝄞"], "n": 1234} | document(), ensure_ascii=False, indent=1)
    path = saved(tmp_path, text)
    assert registry.read_trace(path).trace.tokens.tolist() == LOADS
    assert parsed('{"load_history": [12345, -1.5e3, "a\\u00e9", true, null, [{}]] }') == json.loads(
        '[12345, -1.5e3, "a\\u00e9", true, null, [{}]]'
    )


def test_a_value_that_never_ends_is_given_up(tmp_path, monkeypatch):
    """A damaged file of any size is not read into memory as one value."""
    monkeypatch.setattr(json_items, "CHUNK_BYTES", 64)
    monkeypatch.setattr(json_items, "MOST_ITEM_BYTES", 1000)
    for text in ('{"load_history": ["' + "x" * 10_000, '{"load_history": [' + "1" * 4000):
        read = []
        path = saved(tmp_path, text)
        assert "damaged, or cut off, in the value at character 18" in refused(
            path, progress=lambda done, total, read=read: read.append((done, total))
        )
        assert read[-1][0] < 3000
        assert read[-1][1] == len(text)


def test_progress_is_told(tmp_path, monkeypatch):
    """Bytes of the file, up to all of them."""
    monkeypatch.setattr(json_items, "CHUNK_BYTES", 16)
    path = saved(tmp_path, document())
    told = []
    registry.read_trace(path, ReadOptions(progress=lambda done, total: told.append((done, total))))
    size = path.stat().st_size
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_file_that_is_being_written_is_read_again(tmp_path, monkeypatch):
    """The rest comes while the reader waits."""
    text = json.dumps(document())
    path = tmp_path / "expert-load.json"
    path.write_text(text[:40])
    monkeypatch.setattr(files.time, "sleep", lambda _: path.write_text(text))
    assert registry.read_trace(path).trace.tokens.tolist() == LOADS


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """In the middle and at the end."""
    path = saved(tmp_path, document())
    data = path.read_bytes()
    for wrong in (data[:30] + b"\xff" + data[30:], data + b"\xc3"):
        path.write_bytes(wrong)
        os.utime(path, (1, 1))
        assert "not UTF-8 text" in refused(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.lists(JSON, max_size=4), st.booleans())
def test_items_are_those_that_json_reads(others, listed, pretty):
    """Whatever stands beside the list and in it."""
    text = json.dumps(others | {"wanted": listed}, indent=1 if pretty else None)
    assert parsed(text, "wanted") == listed


@given(
    st.lists(
        st.lists(st.lists(st.integers(-1, 3) | st.floats() | st.booleans(), max_size=3), max_size=3),
        max_size=3,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_history_is_a_trace_or_refused(tmp_path, loads):
    """Nothing but a FileError, whatever the loads are."""
    path = saved(tmp_path, document(loads))
    try:
        assert isinstance(load_history.read_trace(path, ReadOptions()), TraceFile)
    except FileError as error:
        assert path.name in str(error)  # noqa: PT017 - either outcome is right, a third is not


@given(damages(len(json.dumps(document()))))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_a_trace_or_refused(tmp_path, damage):
    """Truncations, flipped bytes, noise."""
    path = settle(tmp_path / "load.json", damaged(json.dumps(document()).encode(), damage))
    assert load_history.recognises(path) in {True, False}
    assert answers(lambda found: load_history.read_trace(found, ReadOptions()), path)
