"""vllm-ascend's expert map: positions count, every device is alike, and nothing that would load and be wrong is accepted."""

import json
import os
import shlex

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.formats import files, registry, vllm_ascend
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.neutral import NeutralMap
from eplb.formats.same_pool import differing_slots
from placement import Placement

LITERAL = (
    '{"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_count": 2, "device_list": '
    '[{"device_id": 0, "device_expert": [3, 1, 2]}, {"device_id": 1, "device_expert": [0, 3, 1]}]}]}'
)


def cards(*layers):
    """A document of these devices' experts."""
    return {
        "moe_layer_count": len(layers),
        "layer_list": [
            {
                "layer_id": at,
                "device_count": len(layer),
                "device_list": [
                    {"device_id": number, "device_expert": list(held)} for number, held in enumerate(layer)
                ],
            }
            for at, layer in enumerate(layers)
        ],
    }


def neutral(rows, ranks=2, experts=None, model_layer=None, shares=None):
    array = np.array(rows)
    return NeutralMap(
        ranks,
        1,
        array.shape[1] // ranks,
        int(array.max()) + 1 if experts is None else experts,
        model_layer,
        Placement(array, shares),
    )


def rows_of(found):
    return found.placement.physical_to_logical.tolist()


def refused(document, facts=None):
    with pytest.raises(FileError) as caught:
        vllm_ascend.parse_map(document, facts or MapFacts())
    return str(caught.value)


def test_the_literal_is_read(tmp_path):
    """Slot p is on rank p // 3 at position p % 3; experts are the highest id + 1."""
    path = tmp_path / "expert_map.json"
    path.write_text(LITERAL)
    assert registry.recognise(path).name == "vllm-ascend"
    found = registry.read_map(path)
    assert rows_of(found) == [[3, 1, 2, 0, 3, 1]]
    assert (found.ranks, found.nodes, found.slots_per_rank, found.experts) == (2, 1, 3, 4)
    assert found.model_layer is None
    assert vllm_ascend.redundant(found) == 2


def test_what_is_written_is_the_literal(tmp_path):
    """The same document, key by key; equal maps give equal text."""
    written = vllm_ascend.write_map(tmp_path / "m.json", neutral([[3, 1, 2, 0, 3, 1]]))
    assert json.loads((tmp_path / "m.json").read_text()) == json.loads(LITERAL)
    assert written.files == (tmp_path / "m.json",)
    assert vllm_ascend.dump_map(neutral([[3, 1, 2, 0, 3, 1]])) == (tmp_path / "m.json").read_text()


def test_facts_of_the_person_complete_the_map():
    """Nodes, experts and layers are not in the file."""
    facts = MapFacts(ranks=2, nodes=2, experts=4, layers=Layers((3,), 5))
    found = vllm_ascend.parse_map(json.loads(LITERAL), facts)
    assert (found.nodes, found.model_layer, found.hidden_layers) == (2, (3,), 5)


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        (MapFacts(ranks=3), "the map is for 2 ranks, asked for 3"),
        (MapFacts(nodes=3), "3 nodes for 2 ranks"),
        (MapFacts(nodes=0), "0 nodes for 2 ranks"),
        (MapFacts(experts=5), "expert 4 has no slot"),
        (MapFacts(experts=3), "slot 0 is 3, expected an expert, 0..2"),
        (MapFacts(experts=7), "7 experts (highest id 3) do not fit into 6 slots"),
        (MapFacts(layers=Layers((3, 4))), "--moe-layers"),
        (MapFacts(layers=Layers((3,), 3)), "--hidden-layers"),
    ],
)
def test_facts_that_contradict_the_file_are_refused(facts, part):
    """Whoever gives a flag is told which one is wrong."""
    assert part in refused(json.loads(LITERAL), facts)


@pytest.mark.parametrize("value", [2.0, 2.5, True, "2", None, [2], -1, 2**31, 10**30])
def test_an_id_is_a_whole_number(value):
    """2.0 and true would be accepted by Python and are damage here; the place is named."""
    message = refused(cards([[3, 1, value], [0, 3, 1]]))
    assert message.startswith("layer_list[0].device_list[0].device_expert[2] is ")


@pytest.mark.parametrize(
    ("document", "part"),
    [
        ([], "the document is a list"),
        (7, "the document is a int"),
        ({}, "layer_list is a NoneType"),
        ({"moe_layer_count": 0, "layer_list": []}, "layer_list is an empty list"),
        ({"layer_list": [{}]}, "moe_layer_count is None"),
        ({"moe_layer_count": True, "layer_list": [{}]}, "moe_layer_count is True"),
        ({"moe_layer_count": 2, "layer_list": [{}]}, "moe_layer_count is 2, layer_list has 1"),
        ({"moe_layer_count": 1, "layer_list": [3]}, "layer_list[0] is a int"),
        ({"moe_layer_count": 1, "layer_list": [{}]}, "layer_list[0].device_list is a NoneType"),
        ({"moe_layer_count": 1, "layer_list": [{"device_list": [4]}]}, "device_list[0] is a int"),
        ({"moe_layer_count": 1, "layer_list": [{"device_list": [{}]}]}, "device_expert is a NoneType"),
        (cards([[], []]), "device_expert is an empty list"),
        (cards([[0, 1], [1, 1]]), "holds expert 1 a second time on its rank"),
        (cards([[0, 1], [1, 3]]), "expert 2 has no slot"),
        (cards([[0, 1], [1, 9]]), "layer 0, slot 3 is 9"),
        (cards([[0, 1], [2, 3]], [[0, 1, 2], [1, 2, 3]]), "layer 1, device 0 holds 3 experts, layer 0"),
        (cards([[0, 1], [2, 3]], [[0, 1, 2, 3]]), "layer 1 has 1 devices, layer 0 has 2"),
    ],
)
def test_a_document_that_is_no_map_is_refused_with_its_place(document, part):
    """What the engine would load silently, or crash on later, is named here."""
    assert part in refused(document)


def test_deep_nesting_is_shown_short():
    """Text that parses may be too deep to print."""
    deep = json.loads("[" * 900 + "]" * 900)
    message = refused(cards([[3, 1, deep], [0, 3, 1]]))
    assert message.startswith("layer_list[0].device_list[0].device_expert[2] is ")
    assert len(message) < 200


def test_positions_count_and_ids_may_be_missing_or_those_of_the_model():
    """The engine reads no ids: absent ones are fine, model layers too, as long as they rise."""
    bare = json.loads(LITERAL)
    del bare["layer_list"][0]["layer_id"], bare["layer_list"][0]["device_count"]
    del bare["layer_list"][0]["device_list"][0]["device_id"]
    assert rows_of(vllm_ascend.parse_map(bare, MapFacts())) == [[3, 1, 2, 0, 3, 1]]
    two = cards([[0, 1], [2, 3]], [[3, 2], [1, 0]])
    two["layer_list"][0]["layer_id"], two["layer_list"][1]["layer_id"] = 3, 4
    assert rows_of(vllm_ascend.parse_map(two, MapFacts())) == [[0, 1, 2, 3], [3, 2, 1, 0]]


def test_ids_that_contradict_the_positions_are_refused():
    """A list in another order than its ids means something else than the engine will do."""
    document = cards([[0, 1], [2, 3]], [[3, 2], [1, 0]])
    document["layer_list"].reverse()
    assert "layer_list[1].layer_id is 0 behind 1" in refused(document)
    document = cards([[0, 1], [2, 3]])
    document["layer_list"][0]["device_list"].reverse()
    assert "layer_list[0].device_list[1].device_id is 0 behind 1" in refused(document)
    document = cards([[0, 1], [2, 3]])
    document["layer_list"][0]["device_count"] = 3
    assert "device_count is 3, device_list has 2" in refused(document)


def test_io_02_devices_with_different_numbers_of_experts_are_refused():
    """IO-02: layer, card and both numbers are named: 2 against 3."""
    message = refused(cards([[0, 1, 2], [3, 4]]))
    assert "layer 0, device 1 holds 2 experts, layer 0, device 0 holds 3" in message


def test_io_02_a_draft_model_with_another_redundancy_is_refused(tmp_path):
    """IO-02: the engine allocates one number of redundant experts for both."""
    main, draft = tmp_path / "main.json", tmp_path / "draft.json"
    vllm_ascend.write_map(main, neutral([[0, 1, 2, 3, 0, 1]]))
    vllm_ascend.write_map(draft, neutral([[0, 1, 2, 3]]))
    with pytest.raises(FileError, match=r"draft\.json: has 0 redundant experts, the map of the main model 2"):
        vllm_ascend.read_pair(main, draft, MapFacts(), MapFacts())
    one, two = vllm_ascend.read_pair(main, main, MapFacts(), MapFacts())
    assert rows_of(one) == rows_of(two)
    vllm_ascend.write_map(draft, neutral([[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]], ranks=4))
    with pytest.raises(FileError, match="has 4 ranks, the map of the main model 2"):
        vllm_ascend.read_pair(main, draft, MapFacts(), MapFacts())


def test_io_03_the_start_layout_names_only_experts_that_exist():
    """IO-03: 8 experts and 2 redundant ones on 2 cards; without redundancy it is the plain split."""
    assert vllm_ascend.start_layout(8, 2, 2).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 0, 1]]
    assert vllm_ascend.start_layout(8, 0, 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 12))
def test_io_03_every_start_layout_is_a_valid_map_or_refused(experts, spare, devices):
    """IO-03: ids in range, each expert present, none twice on a card; refused only where no even split exists."""
    slots = experts + spare
    if slots % devices or slots // devices > experts:
        with pytest.raises(FileError):
            vllm_ascend.start_layout(experts, spare, devices)
        return
    layout = vllm_ascend.start_layout(experts, spare, devices)
    found = vllm_ascend.parse_map(cards(layout.tolist()), MapFacts(experts=experts))
    assert rows_of(found) == [layout.ravel().tolist()]


@pytest.mark.parametrize(
    ("experts", "spare", "devices"), [(8, 1, 2), (2, 6, 2), (0, 2, 2), (4, -2, 2), (4, 0, 0)]
)
def test_a_start_layout_that_cannot_be_is_refused(experts, spare, devices):
    """Uneven slots, more slots on a card than experts, and numbers that count nothing."""
    with pytest.raises(FileError, match="redundancy"):
        vllm_ascend.start_layout(experts, spare, devices)


def test_io_04_the_engines_start_map_is_adopted_never_assumed():
    """IO-04: 4 slots of card 1 differ; the engine's map is used and the difference is told."""
    engine = neutral([[0, 1, 2, 3, 4, 5, 0, 1]])
    assumed = neutral([[0, 1, 2, 3, 3, 4, 5, 0]])
    assert differing_slots(engine, assumed).tolist() == [[0, 4], [0, 5], [0, 6], [0, 7]]
    used, note = vllm_ascend.adopt_start(engine, assumed)
    assert rows_of(used) == rows_of(engine)
    assert note.code == "start_differs"
    assert note.sentence.startswith("4 slots, on devices 1, start with other experts")
    assert vllm_ascend.adopt_start(engine, engine) == (engine, None)


def test_rows_are_written_in_the_order_of_the_model(tmp_path):
    """The engine knows positions only."""
    given_map = neutral([[0, 1, 2, 3], [3, 2, 1, 0]], model_layer=(7, 3))
    written = vllm_ascend.write_map(tmp_path / "m.json", given_map)
    assert rows_of(registry.read_map(tmp_path / "m.json")) == [[3, 2, 1, 0], [0, 1, 2, 3]]
    assert "layers_by_position" in {note.code for note in written.notes}


def test_how_to_start_the_engine_is_exact(tmp_path):
    """One flag each; the JSON survives a shell, and names the redundancy that the engine must allocate."""
    path = tmp_path / "it's a map.json"
    written = vllm_ascend.write_map(path, neutral([[3, 1, 2, 0, 3, 1]]))
    words = shlex.split(" ".join(written.start_with))
    assert words[0] == "--enable-expert-parallel"
    assert words[1] == "--additional-config"
    assert json.loads(words[2]) == {"eplb_config": {"expert_map_path": str(path), "num_redundant_experts": 2}}
    plain = vllm_ascend.write_map(path, neutral([[0, 1, 2, 3]]))
    assert "num_redundant_experts" not in plain.start_with[1]
    assert {note.code for note in plain.notes} == {"static_maps_end", "positions_stay", "draft_layer"}


def test_shares_are_left_out_and_that_is_said(tmp_path):
    """The engine gives each source rank one replica."""
    shares = [[0.7, 0.5, 1.0, 1.0, 0.3, 0.5]]
    written = vllm_ascend.write_map(tmp_path / "m.json", neutral([[3, 1, 2, 0, 3, 1]], shares=shares))
    assert "shares_dropped" in {note.code for note in written.notes}


@pytest.mark.parametrize(
    ("rows", "experts", "part"),
    [
        ([[0, 1, -1, 2]], 3, "slot 2 of row 0 is empty"),
        ([[0, 0, 1, 2]], 3, "a second time on its rank"),
        ([[0, 1, 1, 0]], 3, "expert 2 has no slot"),
        ([[0, 1, 2, 3]], 6, "6 experts (highest id 3) do not fit into 4 slots"),
    ],
)
def test_a_map_that_the_engine_cannot_serve_is_not_written(tmp_path, rows, experts, part):
    """Nothing is left behind."""
    with pytest.raises(FileError) as caught:
        vllm_ascend.write_map(tmp_path / "m.json", neutral(rows, experts=experts))
    assert part in str(caught.value)
    assert "m.json" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_name_must_end_in_json(tmp_path):
    """The engine refuses any other."""
    with pytest.raises(FileError, match=r"does not end in \.json"):
        vllm_ascend.write_map(tmp_path / "m.txt", neutral([[0, 1, 2, 3]]))


def test_a_record_that_is_being_rewritten_is_read_again(tmp_path, monkeypatch):
    """The engine rewrites it in place: half a file is no error when the other half comes while the reader waits."""
    path = tmp_path / "record.json"
    path.write_text(LITERAL[:90])
    monkeypatch.setattr(files.time, "sleep", lambda _: path.write_text(LITERAL))
    assert rows_of(vllm_ascend.read_map(path, MapFacts())) == [[3, 1, 2, 0, 3, 1]]


def test_half_a_record_that_stays_half_is_an_error(tmp_path):
    """An old torn file is damage."""
    path = tmp_path / "record.json"
    path.write_text(LITERAL[:90])
    os.utime(path, (1, 1))
    with pytest.raises(FileError, match=r"record\.json: not JSON"):
        vllm_ascend.read_map(path, MapFacts())


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_valid_map_is_read_back_as_written(tmp_path, seed, ranks, layers):
    """Through the neutral map and back."""
    rng = np.random.default_rng(seed)
    experts = ranks * int(rng.integers(1, 4))
    spare = ranks * int(rng.integers(0, experts // ranks + 1)) if ranks > 1 else 0
    row = (np.arange(experts + spare) % experts).reshape(ranks, -1)
    rows = np.array([rng.permutation(experts)[rng.permuted(row, axis=1)].ravel() for _ in range(layers)])
    first = neutral(rows, ranks=ranks, experts=experts)
    vllm_ascend.write_map(tmp_path / "m.json", first)
    found = registry.read_map(tmp_path / "m.json", MapFacts(experts=experts))
    assert rows_of(found) == rows.tolist()
    assert (found.ranks, found.slots_per_rank, found.experts) == (ranks, first.slots_per_rank, experts)


NODES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["layer_list", "device_list", "device_expert", "layer_id", "device_count", "x"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(NODES, st.lists(NODES, max_size=3))
def test_any_document_is_a_map_or_refused(document, layers):
    """Nothing but a FileError, whatever stands where."""
    for each in (document, {"moe_layer_count": len(layers), "layer_list": layers}):
        try:
            assert isinstance(vllm_ascend.parse_map(each, MapFacts()), NeutralMap)
        except FileError as error:
            assert str(error)  # noqa: PT017 - either outcome is right, a third is not


@given(st.integers(0, len(LITERAL) - 1), st.integers(0, 255), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_a_map_or_refused(tmp_path, place, byte, cut):
    """Truncations and flipped bytes."""
    data = bytearray(LITERAL.encode())
    if cut:
        del data[place:]
    else:
        data[place] = byte
    path = tmp_path / "m.json"
    path.write_bytes(bytes(data))
    os.utime(path, (1, 1))
    assert vllm_ascend.recognises(path) in {True, False}
    try:
        found = vllm_ascend.read_map(path, MapFacts())
    except FileError as error:
        assert "m.json" in str(error)  # noqa: PT017
    else:
        assert isinstance(found, NeutralMap)
