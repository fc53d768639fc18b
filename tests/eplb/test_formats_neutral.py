"""The neutral map file: what is written is read back, and nothing that is not a map is accepted."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.formats.facts import Layers
from eplb.formats.layers import layers_of
from eplb.formats.neutral import NeutralMap, dump_map, parse_map, read_map, write_map
from placement import Placement


def example(rows=((0, 1, 1, 2), (2, 0, 1, 0)), shares=None, experts=3):
    return NeutralMap(2, 1, 2, experts, (3, 5)[: len(rows)], Placement(np.array(rows), shares))


def document(**changes):
    base = json.loads(dump_map(example()))
    base.update(changes)
    return json.dumps(base)


def refused(text, *, live=False):
    with pytest.raises(FileError) as caught:
        parse_map(text, live=live)
    return str(caught.value)


def same(one, two):
    return (
        one.layers == two.layers
        and one.topology() == two.topology()
        and (one.placement.physical_to_logical == two.placement.physical_to_logical).all()
        and ((one.placement.shares is None) == (two.placement.shares is None))
        and (one.placement.shares is None or (one.placement.shares == two.placement.shares).all())
    )


def test_a_map_is_read_back_as_written(tmp_path):
    """Facts, layers, rows and shares survive exactly."""
    shares = [[1.0, 1 / 3, 2 / 3, 1.0], [1.0, 0.5, 1.0, 0.5]]
    neutral = example(shares=shares)
    write_map(tmp_path / "map.json", neutral)
    assert same(read_map(tmp_path / "map.json"), neutral)


@pytest.mark.parametrize(("layers", "hidden"), [(None, None), (None, 7), ((3, 5), 6), ((3, 5), None)])
def test_what_is_known_of_layers_survives(layers, hidden):
    """Unknown layers are null; unknown layers of the model are left out, as in files of earlier versions."""
    neutral = replace(example(), model_layer=layers, hidden_layers=hidden)
    assert same(parse_map(dump_map(neutral)), neutral)
    assert ("hidden_layers" in dump_map(neutral)) == (hidden is not None)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None)
def test_any_live_map_is_read_back_as_written(seed, ranks, slots, layers):
    """Twins, gaps and lost experts included, when it is read as a live map."""
    rng = np.random.default_rng(seed)
    experts = int(rng.integers(1, ranks * slots + 1))
    rows = rng.integers(-1, experts, (layers, ranks * slots))
    neutral = NeutralMap(ranks, 1, slots, experts, tuple(range(layers)), Placement(rows))
    assert same(parse_map(dump_map(neutral), live=True), neutral)
    assert dump_map(parse_map(dump_map(neutral), live=True)) == dump_map(neutral)


def test_io_06_ids_stay_whole_when_the_map_grows():
    """IO-06: a rank of -1 appended to an int64 map stays whole, is written as -1 and read back; 0 is written, not 0.0."""
    rows = np.array([[0, 1], [2, 3]], dtype=np.int64)
    grown = np.concatenate([rows, np.full((1, 2), -1)])
    assert grown.dtype == np.int64
    neutral = NeutralMap(3, 1, 2, 4, (0,), Placement(grown.reshape(1, -1)))
    assert json.loads(dump_map(neutral))["physical_to_logical"] == [[0, 1, 2, 3, -1, -1]]
    assert "0.0" not in dump_map(neutral)
    assert parse_map(dump_map(neutral), live=True).placement.physical_to_logical.tolist() == [
        [0, 1, 2, 3, -1, -1]
    ]


@pytest.mark.parametrize("value", ["2.0", "2.5", "1e0", '"2"', "null", "true", "NaN", "99999999999"])
def test_io_06_an_id_that_is_not_a_whole_number_is_refused(value):
    """IO-06: 2.0 and 2.5 are no ids, nor is anything else that is not a plain whole number in range."""
    text = document().replace("[0, 1, 1, 2]", f"[0, 1, 1, {value}]")
    message = refused(text, live=True)
    assert value == "NaN" or "physical_to_logical[0][3]" in message


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"schema": "eplb-map/2"}, "schema is 'eplb-map/2', this version reads 'eplb-map/1'"),
        ({"extra": 1}, "unknown: ['extra']"),
        ({"pool": {"ranks": 2}}, "pool is"),
        ({"pool": {"ranks": 2, "nodes": 3, "slots_per_rank": 2, "experts": 3}}, "3 nodes for 2 ranks"),
        ({"pool": {"ranks": 0, "nodes": 1, "slots_per_rank": 2, "experts": 3}}, "pool.ranks is 0"),
        ({"pool": {"ranks": 2, "nodes": 1, "slots_per_rank": 2, "experts": 5}}, "5 experts in 4 slots"),
        (
            {"pool": {"ranks": 2, "nodes": 1, "slots_per_rank": 2, "experts": 2**31}},
            "pool.experts is 2147483648",
        ),
        ({"model_layer": [3, 10**9]}, "model_layer[1] is 1000000000"),
        ({"model_layer": []}, "model_layer is []"),
        ({"model_layer": [3, 3]}, "names a layer twice"),
        ({"model_layer": [3]}, "has 2 rows, model_layer 1"),
        ({"hidden_layers": 5}, "hidden_layers is 5, expected 6.."),
        ({"hidden_layers": 7.0}, "hidden_layers is 7.0"),
        ({"model_layer": None, "physical_to_logical": []}, "physical_to_logical has no rows"),
        (
            {"physical_to_logical": [[0, 1, 2], [0, 1, 2, 0]]},
            "physical_to_logical[0] has 3 slots, the pool 4",
        ),
        ({"physical_to_logical": [[0, 1, 1, 0], [2, 0, 1, 0]]}, "expert 2 has no slot"),
        ({"physical_to_logical": [[0, 0, 1, 2], [2, 0, 1, 0]]}, "a second time on its rank"),
        (
            {"physical_to_logical": [[0, 3, 1, 2], [2, 0, 1, 0]]},
            "physical_to_logical[0][1] is 3, expected -1..2",
        ),
        ({"shares": [[1, 1, 1, 1], [1, 1, 1, 1]]}, "shares[0] of expert 1 sum to 2"),
        ({"shares": [[1, 0.5, 0.5, 2], [1, 0.5, 1, 0.5]]}, "shares[0][3] is 2"),
        ({"shares": [[1, 0.5, 0.5], [1, 0.5, 1, 0.5]]}, "shares[0] has 3 slots"),
        ({"shares": "even"}, "shares has str rows"),
    ],
)
def test_a_document_that_is_no_map_is_refused_with_its_place(changes, part):
    """Each message names the place, the value and what was expected."""
    assert part in refused(document(**changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 100_000, '{"schema": "eplb-map/1"}'])
def test_text_that_is_no_document_is_refused(text):
    """Damage is a FileError, whatever the parser thinks of it."""
    refused(text)


def test_an_empty_slot_has_no_share():
    """A share on a gap would be lost tokens."""
    text = document(physical_to_logical=[[0, 1, -1, 2]] * 2, shares=[[1, 1, 0.5, 1]] * 2)
    assert "empty slot" in refused(text, live=True)


def test_a_missing_file_is_named(tmp_path):
    """The message starts with the path."""
    with pytest.raises(FileError, match=r"none\.json: cannot be read"):
        read_map(tmp_path / "none.json")


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    """Neither a half file nor a temporary one."""
    with pytest.raises(FileError, match="cannot be written"):
        write_map(tmp_path / "no" / "map.json", example())
    (tmp_path / "map.json").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        write_map(tmp_path / "map.json", example())
    assert [path.name for path in tmp_path.iterdir()] == ["map.json"]


def test_an_old_file_is_replaced_whole(tmp_path):
    """A second write leaves exactly the second map."""
    path = tmp_path / "map.json"
    write_map(path, example())
    write_map(path, example(rows=((2, 1, 1, 0),)))
    assert read_map(path).placement.physical_to_logical.tolist() == [[2, 1, 1, 0]]
    assert [found.name for found in tmp_path.iterdir()] == ["map.json"]


def test_draft_layers_come_back_and_stand_behind_the_model():
    """They have no row, but an engine's file must name them; without any the key is absent."""
    neutral = NeutralMap(2, 1, 2, 3, (3, 4), Placement(np.array([[0, 1, 2, 0]] * 2)), 5, (5, 6))
    assert parse_map(dump_map(neutral)).layers == neutral.layers
    assert "draft_layers" not in dump_map(replace(neutral, draft_layers=()))
    for wrong in ("[4]", "[5, 5]", "[5.0]", "5"):
        with pytest.raises(FileError, match="draft_layers"):
            parse_map(dump_map(neutral).replace("[5, 6]", wrong))


def test_given_draft_layers_must_stand_behind_the_model():
    """Layer 3 has a row of its own."""
    with pytest.raises(FileError, match="draft layers are \\(3\\), expected different numbers from 5 on"):
        layers_of(Layers((3, 4), None), Layers(None, None, (3,)), 2)
    assert layers_of(Layers((3, 4), None, (7,)), Layers(None, 5, (5,)), 2) == Layers((3, 4), 5, (5,))
