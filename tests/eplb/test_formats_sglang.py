"""SGLang's map files and recordings: exact to what the engine reads and writes, and nothing wrong in silence."""

import json

import numpy as np
import pytest
import torch

from eplb.errors import FileError
from eplb.formats import sglang, sglang_recorder
from eplb.formats.facts import Layers, MapFacts, ReadOptions
from eplb.formats.neutral import NeutralMap
from eplb.formats.registry import recognise
from placement import Placement

ROWS = [[0, 1, 2, 3, 0, 1], [3, 1, 2, 0, 3, 1]]
MAP = '{"physical_to_logical_map": [[0, 1, 2, 3, 0, 1], [3, 1, 2, 0, 3, 1]]}'
COUNTS = '{"logical_count": [[0, 0, 0, 0], [1, 5, 2, 9]]}'


def saved(tmp_path, content, name="recorded.pt"):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        torch.save(content, path)
    return path


def record(number, rank, **fields):
    return {"forward_pass_id": number, "rank": rank, "gatherer_key": "primary", **fields}


def counted(number, rank, slots):
    """One pass that counts ``slots`` in layer 1; layer 0 is dense."""
    return record(number, rank, global_physical_count=torch.tensor([[0] * 6, slots], dtype=torch.int32))


def dump(*records):
    return {"records": list(records), "last_physical_to_logical_map": torch.tensor(ROWS)}


def neutral(rows=([3, 1, 2, 0, 3, 1],), layers=(1,), hidden=2, drafts=()):
    placement = Placement(np.array(rows))
    return NeutralMap(2, 1, 3, 4, layers, placement, hidden, drafts)


def codes(notes):
    return {note.code for note in notes}


def refused(read, path, *words, options=None):
    with pytest.raises(FileError) as caught:
        read(path, options or ReadOptions())
    for word in (path.name, *words):
        assert word in str(caught.value)


# --- maps ---------------------------------------------------------------------------------------------------------


def test_a_map_has_one_row_for_every_layer_of_the_model(tmp_path):
    """Without word of the layers it stays unknown which rows are MoE layers; --moe-layers drops the dense ones."""
    path = saved(tmp_path, MAP, "map.json")
    assert recognise(path).name == "sglang"
    every = sglang.read_map(path, MapFacts(ranks=2))
    assert every.layers == Layers(None, 2)
    assert every.placement.physical_to_logical.tolist() == ROWS
    moe = sglang.read_map(path, MapFacts(ranks=2, layers=Layers((1,), 2)))
    assert moe.layers == Layers((1,), 2)
    assert moe.placement.physical_to_logical.tolist() == ROWS[1:]


def test_a_torch_map_reads_as_the_json_one(tmp_path):
    """The engine takes both."""
    path = saved(tmp_path, {"physical_to_logical_map": torch.tensor(ROWS)}, "map.pt")
    assert recognise(path).name == "sglang"
    assert sglang.read_map(path, MapFacts(ranks=2)).placement.physical_to_logical.tolist() == ROWS


@pytest.mark.parametrize(
    ("text", "facts", "words"),
    [
        (MAP, MapFacts(), ("--ranks",)),
        (MAP, MapFacts(ranks=4), ("6 slots", "4 ranks")),
        (MAP, MapFacts(ranks=2, nodes=3), ("3 nodes",)),
        (MAP, MapFacts(ranks=2, experts=3), ("layer 0, slot 3 is 3", "0..2")),
        (MAP, MapFacts(ranks=2, layers=Layers(None, 61)), ("2 rows", "61 layers")),
        (MAP, MapFacts(ranks=2, layers=Layers((2,), 2)), ("hidden_layers", "--hidden-layers")),
        (MAP.replace("]}", '], "ranks": 2}'), MapFacts(ranks=2), ("'ranks'", "second key")),
        (MAP.replace("[3,", "[3.0,"), MapFacts(ranks=2), ("expected whole numbers",)),
        (MAP.replace("[3,", "[true,"), MapFacts(ranks=2), ("[1][0] is True",)),
        (MAP.replace("[3,", "[-1,"), MapFacts(ranks=2), ("layer 1, slot 0 is -1",)),
        (MAP.replace("[3,", "["), MapFacts(ranks=2), ("[1] has 5 items",)),
        ('{"physical_to_logical_map": []}', MapFacts(ranks=2), ("expected whole numbers [layers, slots]",)),
        ('{"physical_to_logical_map": [[0, 1]', MapFacts(ranks=2), ("not JSON",)),
        ("[1]", MapFacts(ranks=2), ("map.json",)),
    ],
)
def test_a_map_that_cannot_be_meant_is_refused(tmp_path, text, facts, words):
    """Each refusal names the place and what was expected."""
    with pytest.raises(FileError) as caught:
        sglang.read_map(saved(tmp_path, text, "map.json"), facts)
    for word in ("map.json", *words):
        assert word in str(caught.value)


def test_a_written_map_has_one_key_and_a_valid_row_for_dense_layers(tmp_path):
    """Row 0 is dense: every expert has a slot there too. The flags to start with are exact."""
    path = tmp_path / "map.json"
    written = sglang.write_map(path, neutral())
    assert json.loads(path.read_text()) == {"physical_to_logical_map": ROWS}
    assert written.files == (path, tmp_path / "map.meta.json")
    assert written.start_with == (
        f"--init-expert-location {path}",
        "--ep-num-redundant-experts 2",
        "--ep-size 2",
    )
    assert codes(written.notes) == {"same_flags", "nearest_replica", "dense_rows"}


def test_what_the_file_cannot_say_comes_back_from_the_file_beside_it(tmp_path):
    """Pool, MoE layers and draft layers survive the round trip without a flag."""
    path = tmp_path / "map.json"
    sglang.write_map(path, neutral(drafts=(2,)))
    back = sglang.read_map(path, MapFacts())
    assert (back.ranks, back.nodes, back.slots_per_rank, back.experts) == (2, 1, 3, 4)
    assert back.layers == Layers((1,), 2, (2,))
    assert back.placement.physical_to_logical.tolist() == ROWS[1:]


def test_a_description_of_another_map_is_refused(tmp_path):
    """The map was replaced by hand: its old description would shift every layer."""
    path = tmp_path / "map.json"
    sglang.write_map(path, neutral())
    path.write_text(MAP.replace("[3, 1", "[1, 3"))
    with pytest.raises(FileError, match="another map"):
        sglang.read_map(path, MapFacts(ranks=2))


@pytest.mark.parametrize(
    ("name", "what", "words"),
    [
        ("map.json", neutral(layers=None), ("--moe-layers 1-26 --hidden-layers 27",)),
        ("map.json", neutral(hidden=None), ("hidden_layers is not known", "--hidden-layers")),
        ("map.json", neutral(hidden=1), ("hidden_layers is 1",)),
        ("map.json", neutral(hidden=10**9), ("names layer 999999999",)),
        ("map.json", neutral(rows=([3, 1, 2, 0, 3, -1],)), ("slot 5 of model layer 1 is empty",)),
        ("map.json", neutral(rows=([3, 1, 2, 1, 3, 2],)), ("expert 0 has no slot", "model layer 1")),
        ("map.json", neutral(rows=([3, 1, 3, 0, 2, 1],)), ("second time on its rank",)),
        ("map.json", neutral(rows=([3, 1, 2, 0],)), ("4 slots",)),
        ("map.txt", neutral(), (".json",)),
    ],
)
def test_a_map_that_the_engine_would_serve_wrongly_is_not_written(tmp_path, name, what, words):
    """The engine itself says nothing about most of these."""
    path = tmp_path / name
    with pytest.raises(FileError) as caught:
        sglang.write_map(path, what)
    for word in (name, *words):
        assert word in str(caught.value)
    assert not path.exists()


# --- stat recordings ----------------------------------------------------------------------------------------------


def test_counts_in_json_are_one_slice_of_the_layers_that_are_used(tmp_path):
    """The dense layer is dropped, and said."""
    path = saved(tmp_path, COUNTS, "counts.json")
    assert recognise(path).name == "sglang-recorder"
    file = sglang_recorder.read_trace(path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[1, 5, 2, 9]]]
    assert file.layers == Layers((1,), 2)
    assert codes(file.notes) == {"dense_layers"}


def test_a_ring_gives_one_slice_a_filled_row_and_says_that_its_order_is_not_time(tmp_path):
    """Six passes in four rows would stand as 5, 6, 3, 4; here one row is unfilled."""
    counts = torch.zeros(4, 2, 4, dtype=torch.int32)
    for row, tokens in enumerate((5, 6, 3)):
        counts[row, 1] = tokens
    path = saved(tmp_path, {"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None})
    assert recognise(path).name == "sglang-recorder"
    file = sglang_recorder.read_trace(path, ReadOptions())
    assert file.trace.tokens[:, 0, 0].tolist() == [5, 6, 3]
    assert file.trace.steps_per_slice.tolist() == [1, 1, 1]
    assert codes(file.notes) == {"dense_layers", "ring_order", "unfilled_rows"}


def test_named_layers_win_over_counts(tmp_path):
    """A MoE layer that nobody used stays; counts outside the named layers are refused."""
    path = saved(tmp_path, COUNTS, "counts.json")
    both = sglang_recorder.read_trace(path, ReadOptions(layers=Layers((0, 1), 2)))
    assert both.trace.tokens.tolist() == [[[0, 0, 0, 0], [1, 5, 2, 9]]]
    with pytest.raises(FileError, match=r"counts\.json: layers 1 hold counts but are not among --moe-layers"):
        sglang_recorder.read_trace(path, ReadOptions(layers=Layers((0,), 2)))


def test_draft_layers_that_are_given_pass_through(tmp_path):
    """They have no row here, but TensorRT-LLM's map must name them; among the model's own they are refused."""
    path = saved(tmp_path, dump(counted(1, 0, [1] * 6), counted(1, 1, [2] * 6)))
    file = sglang_recorder.read_trace(path, ReadOptions(layers=Layers(draft_layers=(2,))))
    assert file.layers == file.live_map.layers == Layers((1,), 2, (2,))
    drafts = ReadOptions(layers=Layers(draft_layers=(1,)))
    refused(sglang_recorder.read_trace, path, "draft layers are (1)", options=drafts)


def test_counts_in_one_of_many_layers_are_a_broken_recorder(tmp_path):
    """All counts in layer 0 when the model does not tell its layer."""
    counts = torch.zeros(1, 5, 4, dtype=torch.int32)
    counts[0, 0] = 7
    file = sglang_recorder.read_trace(saved(tmp_path, {"rank": 0, "logical_count": counts}), ReadOptions())
    assert codes(file.notes) == {"one_layer", "ring_order"}


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (COUNTS.replace("9", "-9"), None, ("-9",)),
        (COUNTS.replace("9", "9.5"), None, ("9.5",)),
        (COUNTS.replace("9", "true"), None, ("True",)),
        (COUNTS.replace(", 9", ""), None, ("3 items",)),
        ('{"logical_count": [[0, 0], [0, 0]]}', None, ("none of its 2 layer rows",)),
        (COUNTS, ReadOptions(layers=Layers(None, 61)), ("--hidden-layers says 61",)),
        (COUNTS, ReadOptions(layers=Layers((4,), None)), ("--moe-layers names 4", "0..1")),
        (COUNTS, ReadOptions(experts=8), ("4 experts", "8")),
    ],
)
def test_counts_that_cannot_be_meant_are_refused(tmp_path, content, options, words):
    """With the place and the value."""
    refused(sglang_recorder.read_trace, saved(tmp_path, content, "counts.json"), *words, options=options)


# --- per_pass recordings ------------------------------------------------------------------------------------------


def test_slots_become_experts_and_ranks_add_up(tmp_path):
    """Map of layer 1: [3, 1, 2, 0, 3, 1]. Two ranks count over all slots: the load by source is kept."""
    saved(tmp_path, dump(counted(7, 0, [1, 2, 3, 4, 5, 6]), counted(8, 0, [0, 0, 0, 9, 0, 0])), "a_0.pt")
    saved(tmp_path, dump(counted(7, 1, [1, 0, 0, 0, 0, 0]), counted(8, 1, [0, 0, 0, 0, 0, 1])), "a_1.pt")
    assert recognise(tmp_path).name == "sglang-recorder"
    file = sglang_recorder.read_trace(tmp_path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[4, 8, 3, 7]], [[9, 1, 0, 0]]]
    assert file.trace.source_tokens.tolist() == [[[13, 8, 3, 6]], [[0, 1, 0, 1]]]
    assert file.live_map.placement.physical_to_logical.tolist() == ROWS[1:]
    assert (file.live_map.ranks, file.live_map.layers) == (2, Layers((1,), 2))
    assert codes(file.notes) == {"dense_layers", "last_map", "view"}


def test_a_rank_that_counts_its_own_slots_shows_no_sources(tmp_path):
    """Destination view: rank 0 has slots 0-2, rank 1 slots 3-5."""
    saved(tmp_path, dump(counted(7, 0, [1, 2, 3, 0, 0, 0])), "a_0.pt")
    saved(tmp_path, dump(counted(7, 1, [0, 0, 0, 4, 5, 6])), "a_1.pt")
    file = sglang_recorder.read_trace(tmp_path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[4, 8, 3, 6]]]
    assert file.trace.source_tokens is None
    (view,) = (note for note in file.notes if note.code == "view")
    assert "slots of their own" in view.sentence


def test_a_missing_rank_is_an_error_where_ranks_count_their_own_slots(tmp_path):
    """Its experts would seem idle."""
    saved(tmp_path, dump(counted(7, 0, [1, 2, 0, 0, 0, 0])), "a_0.pt")
    saved(tmp_path, dump(counted(7, 2, [0, 0, 0, 0, 5, 6])), "a_2.pt")
    refused(sglang_recorder.read_trace, tmp_path, "ranks 1 have no file")


def test_ranks_with_the_same_tokens_count_once(tmp_path):
    """Without an all-to-all backend every rank sees the whole batch."""
    for rank in (0, 1):
        saved(tmp_path, dump(counted(7, rank, [1, 2, 3, 4, 5, 6])), f"a_{rank}.pt")
    file = sglang_recorder.read_trace(tmp_path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[4, 8, 3, 6]]]
    assert "copies" in codes(file.notes)


def test_passes_that_not_all_ranks_hold_and_idle_ones_are_left_out(tmp_path):
    """They would look lighter than they were."""
    saved(tmp_path, dump(counted(7, 0, [1] * 6), counted(8, 0, [2] * 6), counted(9, 0, [0] * 6)), "a_0.pt")
    saved(tmp_path, dump(counted(8, 1, [1] * 6), counted(9, 1, [0] * 6)), "a_1.pt")
    file = sglang_recorder.read_trace(tmp_path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[3, 6, 3, 6]]]
    assert {"uneven_passes", "idle_passes"} <= codes(file.notes)


def test_damage_in_a_recording_is_named(tmp_path):
    """One pass twice, a wrong width, a foreign file, another mode beside it, nothing in it."""
    twice = saved(tmp_path, dump(counted(7, 0, [1] * 6), counted(7, 0, [1] * 6)), "twice.pt")
    refused(sglang_recorder.read_trace, twice, "records[1]", "stands in")
    narrow = record(7, 0, global_physical_count=torch.ones(2, 5, dtype=torch.int32))
    refused(sglang_recorder.read_trace, saved(tmp_path, dump(narrow), "narrow.pt"), "[2, 5]", "[2, 6]")
    refused(sglang_recorder.read_trace, saved(tmp_path, {"weights": 1}, "foreign.pt"), "'weights'")
    refused(sglang_recorder.read_trace, saved(tmp_path, dump(), "empty.pt"), "holds no record")
    negative = counted(7, 0, [0, 0, -1, 0, 0, 0])
    refused(sglang_recorder.read_trace, saved(tmp_path, dump(negative), "neg.pt"), "[1][2] is -1")
    expanded = record(7, 0, global_physical_count=torch.ones(1, 1, dtype=torch.int32).expand(2**20, 2**20))
    refused(sglang_recorder.read_trace, saved(tmp_path, dump(expanded), "wide.pt"), "not stored in full")


# --- per_token recordings -----------------------------------------------------------------------------------------


def tokens(number, rank, slots, mode=1, lengths=None):
    """One pass whose tokens go to ``slots`` [tokens, top_k] of layer 1; layer 0 is dense."""
    ids = torch.full((2, len(slots), 8), -1, dtype=torch.int32)
    for at, row in enumerate(slots):
        ids[1, at, : len(row)] = torch.tensor(row, dtype=torch.int32)
    count = len(slots)
    return record(
        number,
        rank,
        input_ids=[rank * 100 + at for at in range(count)],
        positions=list(range(count)),
        extend_seq_lens=lengths,
        forward_mode=mode,
        misc_objects=[],
        topk_ids_of_layer=ids,
    )


def test_a_prefill_pass_is_cut_into_its_requests_and_padding_is_dropped(tmp_path):
    """Three tokens of two requests and one padded token; experts by the map, layer 0 dense."""
    path = saved(tmp_path, dump(tokens(1, 0, [[0, 1], [2, 3], [4, 5], []], lengths=[2, 1])))
    found = list(sglang_recorder.read_sequences(path, ReadOptions()))
    assert [each.phase for each in found] == ["prefill", "prefill"]
    assert [each.picks[:, 0].tolist() for each in found] == [[[3, 1], [2, 0]], [[3, 1]]]


def test_phases_follow_the_forward_mode(tmp_path):
    """Decode and verification are decode, mixed is mixed; idle and draft passes are left out."""
    passes = [tokens(mode, 0, [[0, 1], [2, 3]], mode=mode) for mode in (1, 2, 3, 4, 5, 6)]
    path = saved(tmp_path, dump(*passes))
    file = sglang_recorder.read_trace(path, ReadOptions(sequences_per_slice=1))
    assert sorted(file.phase) == ["decode", "decode", "mixed", "prefill"]
    assert {"idle_passes", "draft_passes", "decode_passes"} <= codes(file.notes)
    decode = sglang_recorder.read_trace(path, ReadOptions(phase="decode"))
    assert decode.trace.tokens.tolist() == [[[2, 2, 2, 2]]]


def test_the_same_batch_on_a_second_rank_counts_once(tmp_path):
    """Without data-parallel attention every rank records every token."""
    one, two = tokens(1, 0, [[0, 1]]), tokens(1, 1, [[0, 1]])
    two["input_ids"] = one["input_ids"]
    saved(tmp_path, dump(one), "a_0.pt")
    saved(tmp_path, dump(two), "a_1.pt")
    file = sglang_recorder.read_trace(tmp_path, ReadOptions())
    assert int(file.trace.tokens.sum()) == 2
    assert "copies" in codes(file.notes)


def test_routes_are_sampled_from_tokens(tmp_path):
    """For co-activation, when they are asked for."""
    path = saved(tmp_path, dump(tokens(1, 0, [[0, 1], [2, 3]], lengths=[1, 1])))
    file = sglang_recorder.read_trace(path, ReadOptions(most_routes=10))
    assert file.trace.routes.experts[:, 0, :2].tolist() == [[3, 1], [2, 0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward_mode": 0}, ("forward_mode is 0",)),
        ({"forward_mode": True}, ("forward_mode is True",)),
        ({"extend_seq_lens": [3]}, ("sum to 3", "2 tokens")),
        ({"extend_seq_lens": [1.0, 1]}, ("extend_seq_lens[0] is 1.0",)),
        ({"input_ids": [1]}, ("input_ids 1 tokens",)),
        ({"topk_ids_of_layer": torch.full((2, 2, 8), 6, dtype=torch.int32)}, ("is 6", "0..5")),
        ({"topk_ids_of_layer": [[1]]}, ("topk_ids_of_layer",)),
        ({"rank": -1}, ("rank is -1",)),
        ({"gatherer_key": 1}, ("gatherer_key is 1",)),
    ],
)
def test_a_damaged_record_is_named(tmp_path, change, words):
    """With its number, the field and the value."""
    path = saved(tmp_path, dump(tokens(1, 0, [[0, 1], [2, 3]], lengths=[2]) | change))
    refused(sglang_recorder.read_trace, path, "records[0]", *words)


def test_the_width_of_a_token_is_its_top_k_not_the_recorders(tmp_path):
    """The recorder pads every token to eight places."""
    path = saved(tmp_path, dump(tokens(1, 0, [[0, 1], [2]], lengths=[2])))
    file = sglang_recorder.read_trace(path, ReadOptions(most_routes=10))
    assert file.trace.routes.top_k == 2


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_phase_of_the_sequences_can_be_asked_for(tmp_path, phase):
    """As of the trace."""
    path = saved(tmp_path, dump(tokens(1, 0, [[0, 1]], lengths=[1]), tokens(2, 0, [[2, 3]], mode=2)))
    found = list(sglang_recorder.read_sequences(path, ReadOptions(phase=phase)))
    assert [each.phase for each in found] == [phase]


@pytest.mark.parametrize("count", [2**40 + 1, 2**63])
def test_counts_whose_sums_would_overflow_are_refused(tmp_path, count):
    """With their place."""
    counts = np.zeros((2, 6), dtype=np.uint64)
    counts[1, 2] = count
    wild = record(7, 0, global_physical_count=torch.from_numpy(counts))
    refused(sglang_recorder.read_trace, saved(tmp_path, dump(wild)), f"[1][2] is {count}")


def test_a_rank_beyond_every_pool_is_refused(tmp_path):
    """Ranks up to it would be looked for one by one."""
    path = saved(tmp_path, dump(counted(7, 10**10, [1] * 6)))
    refused(sglang_recorder.read_trace, path, "rank is 10000000000")


def test_counts_give_no_sequences(tmp_path):
    """It says which mode would."""
    path = saved(tmp_path, dump(counted(1, 0, [1] * 6)))
    with pytest.raises(FileError, match="per_token"):
        list(sglang_recorder.read_sequences(path, ReadOptions()))
