"""TensorRT-LLM's load-balancer file and statistics folders: exact to what the engine reads and writes."""

import json

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from eplb.errors import FileError
from eplb.formats import trtllm, trtllm_statistics
from eplb.formats.facts import Layers, MapFacts, ReadOptions
from eplb.formats.neutral import NeutralMap
from eplb.formats.registry import recognise
from placement import Placement

YAML = """\
initial_global_assignments:
  3: [0, 1, 2, 3, 0, 1]
  4: [3, 1, 2, 0, 3, 1]
layer_updates_per_iter: 0
num_slots: 6
"""
ROWS = [[0, 1, 2, 3, 0, 1], [3, 1, 2, 0, 3, 1]]


def neutral(rows=ROWS, layers=(3, 4), hidden=5, drafts=(), ranks=2):
    placement = Placement(np.array(rows))
    return NeutralMap(ranks, 1, placement.slots // ranks, 4, layers, placement, hidden, drafts)


def saved(tmp_path, text, name="balance.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def codes(notes):
    return [note.code for note in notes]


# --- maps ---------------------------------------------------------------------------------------------------------


def test_a_map_is_written_as_the_engine_writes_its_own(tmp_path):
    """Keys sorted, one line a layer, the engine's numbers of the layers."""
    path = tmp_path / "balance.yaml"
    written = trtllm.write_map(path, neutral())
    assert path.read_text() == YAML
    assert written.start_with == (
        "enable_attention_dp: true",
        "moe_expert_parallel_size: 2",
        f"moe_config: {{backend: WIDEEP, load_balancer: {path}}}",
    )
    assert codes(written.notes) == ["ignored_in_silence", "stale_shared_memory", "not_in_file"]


def test_the_lines_to_start_with_are_yaml_whatever_the_path(tmp_path):
    """A path may hold what YAML takes for its own."""
    folder = tmp_path / "a, b: #c"
    folder.mkdir()
    written = trtllm.write_map(folder / "m.yaml", neutral())
    settings = yaml.safe_load("\n".join(written.start_with))
    assert settings["moe_config"]["load_balancer"] == str(folder / "m.yaml")


def test_a_map_comes_back(tmp_path):
    """The layers are in the file; the ranks are not."""
    path = saved(tmp_path, YAML)
    assert recognise(path).name == "trtllm"
    back = trtllm.read_map(path, MapFacts(ranks=2, layers=Layers(None, 5)))
    assert back.layers == Layers((3, 4), 5)
    assert back.placement.physical_to_logical.tolist() == ROWS
    assert (back.ranks, back.slots_per_rank, back.experts) == (2, 3, 4)


def test_a_rank_count_that_scripts_add_is_read(tmp_path):
    """The engine refuses the key, so it is never written."""
    assert trtllm.read_map(saved(tmp_path, YAML + "ep_size: 3\n"), MapFacts()).ranks == 3


@pytest.mark.parametrize(
    ("text", "facts", "words"),
    [
        (YAML, MapFacts(), ("--ranks",)),
        (YAML, MapFacts(ranks=4), ("6 slots", "4 ranks")),
        (YAML, MapFacts(ranks=2, experts=3), ("layer 3, slot 3 is 3",)),
        (YAML, MapFacts(ranks=2, layers=Layers((3, 4, 5), 61)), ("no row for MoE layers 5",)),
        (YAML, MapFacts(ranks=2, layers=Layers((3,), 61)), ("rows for layers 4",)),
        (YAML, MapFacts(ranks=2, layers=Layers(None, 4)), ("hidden_layers is 4",)),
        (YAML + "iteration_interval: 3\n", MapFacts(ranks=2), ("'iteration_interval'", "refuses")),
        (YAML.replace("num_slots: 6", "num_slots: 5"), MapFacts(ranks=1), ("[3] has 6 slots", "5")),
        (YAML.replace("[3,", "[3.0,"), MapFacts(ranks=2), ("slot 0 is 3.0",)),
        (YAML.replace("[3,", "[-1,"), MapFacts(ranks=2), ("slot 0 is -1",)),
        (YAML.replace("  3:", "  x:"), MapFacts(ranks=2), ("'x'",)),
        (YAML.replace("  4:", "  3:"), MapFacts(ranks=2), ("'3' stands twice",)),
        ("num_slots: 6\nlayer_updates_per_iter: 2\n", MapFacts(ranks=2), ("online balancing",)),
        ("num_slots: [6\n", MapFacts(ranks=2), ("not YAML",)),
        ("!!python/object/apply:os.system [id]\n", MapFacts(ranks=2), ("not YAML",)),
        (f"num_slots: {'[' * 100_000}\n", MapFacts(ranks=2), ("not YAML",)),
        (YAML.replace("num_slots: 6", "num_slots: 0x" + "f" * 10_000), MapFacts(ranks=2), ("num_slots is",)),
        (YAML.replace("num_slots: 6", "num_slots: 1" + ":1" * 10_000), MapFacts(ranks=2), ("longer than",)),
        (YAML.replace("num_slots: 6", "<<: {num_slots: 6}"), MapFacts(ranks=2), ("merge",)),
    ],
)
def test_a_map_that_cannot_be_meant_is_refused(tmp_path, text, facts, words):
    """Each refusal names the place and what was expected."""
    with pytest.raises(FileError) as caught:
        trtllm.read_map(saved(tmp_path, text), facts)
    for word in ("balance.yaml", *words):
        assert word in str(caught.value)


def test_io_01_draft_layers_get_the_start_row_and_others_must_be_there(tmp_path):
    """NVIDIA/TensorRT-LLM#13974: layer 2 belongs to multi-token prediction; one warning. A layer 7 is an error that names it."""
    text = "initial_global_assignments:\n  0: [0, 1, 2, 3, 0, 1]\n  1: [1, 2, 3, 0, 1, 2]\nlayer_updates_per_iter: 0\nnum_slots: 6\n"
    facts = MapFacts(ranks=2, experts=4, layers=Layers((0, 1), 2, (2,)))
    back = trtllm.read_map(saved(tmp_path, text), facts)
    written = trtllm.write_map(tmp_path / "out.yaml", back)
    assignments = yaml.safe_load((tmp_path / "out.yaml").read_text())["initial_global_assignments"]
    assert assignments == {0: [0, 1, 2, 3, 0, 1], 1: [1, 2, 3, 0, 1, 2], 2: [0, 1, 2, 3, 0, 1]}
    assert codes(written.notes).count("draft_layers") == 1
    assert trtllm.read_map(tmp_path / "out.yaml", facts).layers == facts.layers
    with pytest.raises(FileError, match="no row for MoE layers 1"):
        trtllm.read_map(saved(tmp_path, text.replace("  1: [1, 2, 3, 0, 1, 2]\n", "")), facts)
    with pytest.raises(FileError, match="rows for layers 7"):
        trtllm.read_map(saved(tmp_path, text.replace("  1:", "  7: [1, 2, 3, 0, 1, 2]\n  1:")), facts)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (neutral(layers=None), ("--moe-layers 1-26 --hidden-layers 27",)),
        (neutral(drafts=(4,)), ("draft layers",)),
        (neutral(rows=[[0, 1, 2, 3, 0, -1]] * 2), ("slot 5 of model layer 3 is empty",)),
        (neutral(rows=[[0, 1, 2, 2, 0, 1]] * 2), ("expert 3 has no slot",)),
        (neutral(rows=[[0, 1, 2, 3]] * 2, ranks=1), ("expert parallelism",)),
    ],
)
def test_a_map_that_the_engine_would_stop_on_or_ignore_is_not_written(tmp_path, what, words):
    """Before a rolling restart, not in it."""
    with pytest.raises(FileError) as caught:
        trtllm.write_map(tmp_path / "m.yaml", what)
    for word in ("m.yaml", *words):
        assert word in str(caught.value)
    assert not (tmp_path / "m.yaml").exists()


def test_layers_between_others_that_have_no_row_are_said(tmp_path):
    """The engine stops there if they are MoE layers."""
    assert "layers_between" in codes(
        trtllm.write_map(tmp_path / "m.yaml", neutral(layers=(3, 5), hidden=6)).notes
    )


# --- statistics ---------------------------------------------------------------------------------------------------

KEYS = ("100_3", "100_4", "101_3", "101_4")


def counts_of(rank):
    """Counts that tell rank, iteration and layer apart: E = 4, top-2."""
    return {key: np.array([1, 5, 2, 9 + at], dtype=np.int64) * (rank + 1) for at, key in enumerate(KEYS)}


def folder(tmp_path, files, meta=None):
    path = tmp_path / "expert_statistic"
    path.mkdir(exist_ok=True)
    meta = {"num_experts": 4, "num_experts_per_token": 2} | (meta or {})
    (path / "meta_info.json").write_text(json.dumps(meta))
    for name, content in files.items():
        if name.endswith(".json"):
            (path / name).write_text(json.dumps(content))
        else:
            save_file(content, path / name)
    return path


def two_ranks(tmp_path, **changes):
    files = {"rank0.safetensors": counts_of(0), "rank1.safetensors": counts_of(1)}
    return folder(tmp_path, files, changes)


def test_iterations_are_slices_and_ranks_add_up(tmp_path):
    """Layers are those of the keys; the load by source rank is kept; a step's tokens are counts over top-k."""
    path = two_ranks(tmp_path)
    assert recognise(path).name == "trtllm-statistics"
    file = trtllm_statistics.read_trace(path, ReadOptions())
    assert file.trace.tokens.tolist() == [[[3, 15, 6, 27], [3, 15, 6, 30]], [[3, 15, 6, 33], [3, 15, 6, 36]]]
    assert file.trace.source_tokens.tolist() == [
        [[2, 10, 4, 20], [2, 10, 4, 22]],
        [[4, 20, 8, 40], [4, 20, 8, 44]],
    ]
    assert file.trace.batch_tokens.tolist() == [26.25, 29.25]
    assert file.trace.steps_per_slice.tolist() == [1, 1]
    assert file.layers == Layers((3, 4))
    assert codes(file.notes) == ["ranks_by_files"]


def test_layers_beyond_the_model_are_draft_layers(tmp_path):
    """With 4 hidden layers, layer 4 belongs to multi-token prediction: not planned, but not forgotten."""
    file = trtllm_statistics.read_trace(two_ranks(tmp_path), ReadOptions(layers=Layers(None, 4)))
    assert file.layers == Layers((3,), 4, (4,))
    assert file.trace.layers == 1
    assert "draft_layers" in codes(file.notes)


def test_named_layers_choose_among_those_that_are_counted(tmp_path):
    """One that is not counted is an error, and so is one that is counted and left out."""
    file = trtllm_statistics.read_trace(two_ranks(tmp_path), ReadOptions(layers=Layers((4, 3), 61)))
    assert file.layers == Layers((3, 4), 61)
    with pytest.raises(FileError, match="layers 3 hold counts but are not among --moe-layers"):
        trtllm_statistics.read_trace(two_ranks(tmp_path), ReadOptions(layers=Layers((4,), 61)))
    with pytest.raises(FileError, match="no counts of layers 5"):
        trtllm_statistics.read_trace(two_ranks(tmp_path), ReadOptions(layers=Layers((4, 5), 61)))


@pytest.mark.parametrize("name", ["rank{}_raw.safetensors", "token_selected_experts_rank{}.safetensors"])
def test_raw_picks_give_routes_with_their_source_rank(tmp_path, name):
    """Counts follow from the picks where the run wrote no others."""
    picks = [[[0, 1], [2, 3]], [[3, 0]]]
    files = {
        name.format(rank): {key: np.array(picks[rank], dtype=np.int32) for key in KEYS} for rank in (0, 1)
    }
    path = folder(tmp_path, files)
    assert recognise(path).name == "trtllm-statistics"
    file = trtllm_statistics.read_trace(path, ReadOptions(most_routes=100))
    assert file.trace.tokens.tolist() == [[[2, 1, 1, 2]] * 2] * 2
    assert file.trace.routes.experts[:, 0].tolist() == [[0, 1], [2, 3], [3, 0]] * 2
    assert file.trace.routes.sources.tolist() == [0, 0, 1] * 2
    assert file.trace.routes.requests.tolist() == [0, 0, 0, 1, 1, 1]
    found = list(trtllm_statistics.read_sequences(path, ReadOptions()))
    assert [each.picks.tolist() for each in found] == [
        [[[0, 1]] * 2, [[2, 3]] * 2],
        [[[3, 0]] * 2],
    ] * 2


def test_tokens_that_pick_an_expert_twice_give_no_route_and_that_is_said(tmp_path):
    """No router does that: the counts are as the file holds them, and the note says to look at it."""
    picks = np.array([[0, 1], [2, 2]], dtype=np.int32)
    path = folder(tmp_path, {f"rank{rank}_raw.safetensors": dict.fromkeys(KEYS, picks) for rank in (0, 1)})
    file = trtllm_statistics.read_trace(path, ReadOptions(most_routes=100))
    assert {tuple(route) for route in file.trace.routes.experts[:, 0].tolist()} == {(0, 1)}
    (note,) = (note for note in file.notes if note.code == "twin_picks")
    assert note.sentence.startswith("4 sampled tokens")


@pytest.mark.parametrize(("counts", "codes_said"), [([2, 1, 1, 2], False), ([2, 1, 2, 1], True)])
def test_picks_that_do_not_make_the_counts_beside_them_are_told(tmp_path, counts, codes_said):
    """They may be of another run with the same iterations."""
    picks = np.array([[0, 1], [2, 3], [3, 0]], dtype=np.int32)
    path = folder(
        tmp_path,
        {
            "rank0.safetensors": {key: np.array(counts) for key in KEYS},
            "rank0_raw.safetensors": dict.fromkeys(KEYS, picks),
        },
    )
    file = trtllm_statistics.read_trace(path, ReadOptions(most_routes=100))
    assert file.trace.tokens[0].tolist() == [counts] * 2
    assert ("picks_differ" in codes(file.notes)) == codes_said


def test_the_co_occurrence_variant_is_read(tmp_path):
    """Counts are int32 there, and the matrices are not needed."""
    files = {
        "rank0.safetensors": {key: counts.astype(np.int32) for key, counts in counts_of(0).items()},
        "cooccurrence_rank0.safetensors": {key: np.zeros((4, 4), dtype=np.int32) for key in KEYS},
        "token_selected_experts_rank0.safetensors": {key: np.array([[0, 1]], dtype=np.int32) for key in KEYS},
    }
    file = trtllm_statistics.read_trace(folder(tmp_path, files), ReadOptions())
    assert file.trace.tokens[0].tolist() == [[1, 5, 2, 9], [1, 5, 2, 10]]


def test_the_dispatch_variant_is_checked_against_its_tokens(tmp_path):
    """Tokens times top-k is what a layer counts; ep_size says how many ranks there are."""
    counts = {key: np.array([1, 5, 2, 8], dtype=np.int64) for key in KEYS}
    files = {"rank0.safetensors": counts, "rank0_numtokens.json": dict.fromkeys(KEYS, 8)}
    file = trtllm_statistics.read_trace(folder(tmp_path, files, {"ep_size": 1}), ReadOptions())
    assert file.trace.batch_tokens.tolist() == [8, 8]
    assert file.notes == ()
    files["rank0_numtokens.json"] = dict.fromkeys(KEYS, 9)
    with pytest.raises(FileError, match="sums to 16, but 9 tokens"):
        trtllm_statistics.read_trace(folder(tmp_path, files, {"ep_size": 1}), ReadOptions())


def test_iterations_cut_off_at_an_end_are_left_out_and_said(tmp_path):
    """A run that was stopped leaves a last iteration without all its layers."""
    short = counts_of(1)
    del short["101_4"]
    files = {"rank0.safetensors": counts_of(0), "rank1.safetensors": short}
    file = trtllm_statistics.read_trace(folder(tmp_path, files), ReadOptions())
    assert file.trace.slices == 1
    assert codes(file.notes) == ["ranks_by_files", "cut_off"]


@pytest.mark.parametrize(
    ("files", "meta", "words"),
    [
        ({"rank0.safetensors": counts_of(0), "rank2.safetensors": counts_of(2)}, {}, ("ranks 1", "of 3")),
        ({"rank0.safetensors": counts_of(0)}, {"ep_size": 2}, ("ranks 1", "of 2")),
        (
            {"rank0.safetensors": counts_of(0), "rank1.safetensors": counts_of(1)},
            {"ep_size": 1},
            ("ep_size 1",),
        ),
        ({"rank0.safetensors": {"100_3": np.ones(5, dtype=np.int64)}}, {}, ("100_3 is int64 [5]", "[4]")),
        ({"rank0.safetensors": {"100_3": np.ones(4)}}, {}, ("float64",)),
        ({"rank0.safetensors": {"100_3": np.array([1, -1, 1, 1])}}, {}, ("expert 1 is -1",)),
        ({"rank0.safetensors": {"layer3": np.ones(4, dtype=np.int64)}}, {}, ("'layer3'", "100_3")),
        (
            {"rank0.safetensors": {f"{at}_3": np.ones(4, dtype=np.int64) for at in (1, 2, 4)}},
            {},
            ("iteration 3 is not whole", "rank 0 lacks layers 3"),
        ),
        ({"rank0_raw.safetensors": {"1_3": np.array([[0, 4]])}}, {}, ("[0][1] is 4", "0..3")),
        ({"rank0_raw.safetensors": {"1_3": np.array([[0, 1, 2]])}}, {}, ("[tokens, 2]",)),
        ({"rank0.safetensors": counts_of(0)}, {"num_experts": 4.0}, ("num_experts is 4.0",)),
        ({"rank0.safetensors": counts_of(0)}, {"num_experts_per_token": 5}, ("num_experts_per_token is 5",)),
        ({}, {}, ("no rank*.safetensors",)),
    ],
)
def test_a_folder_that_would_be_too_little_in_silence_is_refused(tmp_path, files, meta, words):
    """The engine's own script adds up whatever is there."""
    path = folder(tmp_path, files, meta)
    with pytest.raises(FileError) as caught:
        trtllm_statistics.read_trace(path, ReadOptions())
    for word in ("expert_statistic", *words):
        assert word in str(caught.value)


def test_counts_give_no_sequences(tmp_path):
    """They hold no picks."""
    with pytest.raises(FileError, match="counts, not picks"):
        list(trtllm_statistics.read_sequences(two_ranks(tmp_path), ReadOptions()))
