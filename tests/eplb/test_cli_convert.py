"""eplb convert: the same map or trace in another format, read back, with the flags to start the engine with."""

import json

import numpy as np
import pytest

from eplb.cli.main import main
from eplb.formats import registry
from eplb.formats.facts import Layers, MapFacts, ReadOptions
from eplb.formats.neutral import NeutralMap
from placement import Placement

ROWS = [[3, 1, 2, 0, 3, 1], [0, 1, 2, 3, 0, 1]]
SUFFIX = {
    "neutral": ".json",
    "sglang": ".json",
    "trtllm": ".yaml",
    "vllm-ascend": ".json",
    "deepseek": ".npz",
}
START = {
    "neutral": [],
    "sglang": ["--init-expert-location", "--ep-num-redundant-experts 2", "--ep-size 2"],
    "trtllm": ["enable_attention_dp: true", "moe_expert_parallel_size: 2", "load_balancer:"],
    "vllm-ascend": ["--enable-expert-parallel", "num_redundant_experts"],
    "deepseek": ["numpy.load"],
}
GIVEN = ("--ranks", "2", "--nodes", "1", "--moe-layers", "3,4", "--hidden-layers", "5")


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def saved(path, form="neutral", layers=(3, 4), rows=ROWS, shares=None):
    hidden = None if layers is None else 5
    registry.write_map(path, NeutralMap(2, 1, 3, 4, layers, Placement(np.array(rows), shares), hidden), form)
    return path


def rows_of(path, form):
    facts = MapFacts(2, None, 4, Layers((3, 4), 5))
    return registry.read_map(path, facts, form).placement.physical_to_logical.tolist()


@pytest.mark.parametrize("to", SUFFIX)
@pytest.mark.parametrize("form", SUFFIX)
def test_a_map_goes_from_every_format_to_every_other(tmp_path, capsys, form, to):
    """The rows stay; the flags that start the engine are printed; what a format leaves out is given."""
    source = saved(tmp_path / f"source{SUFFIX[form]}", form)
    target = tmp_path / f"target{SUFFIX[to]}"
    code, out, _ = run(capsys, "convert", source, target, "--to", to, *GIVEN)
    assert code == 0
    assert rows_of(target, to) == ROWS
    assert f"wrote      {target} ({to}), and read it back" in out
    for part in START[to]:
        assert part in out


@pytest.mark.parametrize("to", ["sglang", "trtllm"])
def test_an_engine_that_numbers_by_model_layer_needs_to_know_them(tmp_path, capsys, to):
    """Refused by the name of the flag, and nothing is written; the flag is all that was missing."""
    source = saved(tmp_path / "source.json", layers=None)
    target = tmp_path / f"target{SUFFIX[to]}"
    code, out, err = run(capsys, "convert", source, target, "--to", to)
    assert (code, out, target.exists()) == (1, "", False)
    assert "--moe-layers 1-26 --hidden-layers 27" in err
    code, _, _ = run(
        capsys, "convert", source, target, "--to", to, "--moe-layers", "3,4", "--hidden-layers", "5"
    )
    assert (code, rows_of(target, to)) == (0, ROWS)


def test_draft_layers_reach_the_engine_that_names_them(tmp_path, capsys):
    """TensorRT-LLM stops at a layer without a row."""
    source, target = saved(tmp_path / "source.json"), tmp_path / "target.yaml"
    code, out, _ = run(capsys, "convert", source, target, "--to", "trtllm", "--draft-layers", "5")
    assert (code, "draft_layers" in out) == (0, True)
    assert "  5: [0, 1, 2, 3, 0, 1]" in target.read_text()


def test_what_the_source_says_is_not_overruled(tmp_path, capsys):
    """Other ranks or layers than the file's are refused with both."""
    source, target = saved(tmp_path / "source.json"), tmp_path / "target.yaml"
    for flag, value, part in (
        ("--ranks", "3", "the map is for 2 ranks, asked for 3"),
        ("--moe-layers", "2,4", "model_layer is 2 (3, 4) in the map, asked for 2 (2, 4)"),
        ("--hidden-layers", "9", "hidden_layers is 5 in the map, asked for 9"),
    ):
        code, _, err = run(capsys, "convert", source, target, "--to", "trtllm", flag, value)
        assert (code, part in err, "leave" in err) == (1, True, True)


def test_experts_that_stay_keep_their_slots(tmp_path, capsys):
    """What vllm-ascend demands of a map for an engine that runs."""
    live = saved(tmp_path / "live.json", "vllm-ascend")
    source = saved(tmp_path / "source.json", rows=[[2, 0, 1, 1, 3, 0], [0, 1, 2, 3, 0, 1]])
    target = tmp_path / "target.json"
    code, _, _ = run(capsys, "convert", source, target, "--to", "vllm-ascend", "--current", live)
    # Rank 0 held 3, 1, 2 and now holds 0, 1, 2; rank 1 is as it was.
    assert (code, rows_of(target, "vllm-ascend")) == (0, [[0, 1, 2, 0, 3, 1], [0, 1, 2, 3, 0, 1]])


def test_shares_that_are_lost_are_told_only_where_they_are_uneven(tmp_path, capsys):
    """Even shares are what the engine does anyway."""
    for share, told in ((0.5, False), (0.75, True)):
        shares = np.array([[share, 0.5, 1, 1, 1 - share, 0.5], [0.5, 0.5, 1, 1, 0.5, 0.5]])
        source = saved(tmp_path / "source.json", shares=shares)
        for to in ("sglang", "trtllm", "vllm-ascend", "deepseek"):
            code, out, _ = run(capsys, "convert", source, tmp_path / f"t{SUFFIX[to]}", "--to", to)
            assert (code, "shares_dropped" in out) == (0, told)


@pytest.fixture
def picks(tmp_path):
    """Two requests of each of two domains; layers in the model's order, two phases."""
    np.savez(
        tmp_path / "picks.npz",
        picks=np.random.default_rng(1).permuted(np.tile(np.arange(4), (20, 2, 1)), axis=2)[..., :2],
        offsets=np.array([0, 5, 9, 14, 20]),
        domain=np.array(["law", "code", "law", "code"]),
        phase=np.array(["prefill", "prefill", "decode", "decode"]),
        model_layer=np.array([3, 4]),
    )
    return tmp_path / "picks.npz"


@pytest.mark.parametrize("to", ["npz", "jsonl", "parquet"])
def test_picks_stay_picks(picks, tmp_path, capsys, to):
    """Request by request, with their domains and phases; flags fill in what the source does not say."""
    target = tmp_path / f"target.{to}"
    code, _, err = run(capsys, "convert", picks, target, "--to", to, "--hidden-layers", "5")
    assert (code, "back" in err) == (0, True)
    one, two = (list(registry.read_sequences(path)) for path in (picks, target))
    assert [each.picks.tolist() for each in one] == [each.picks.tolist() for each in two]
    assert [(each.domain, each.phase) for each in one] == [(each.domain, each.phase) for each in two]
    assert registry.read_trace(target).layers == Layers((3, 4), 5)


def test_one_phase_can_be_taken_out(picks, tmp_path, capsys):
    """The others are left behind."""
    target = tmp_path / "target.jsonl"
    assert run(capsys, "convert", picks, target, "--to", "jsonl", "--phase", "decode")[0] == 0
    assert [each.phase for each in registry.read_sequences(target)] == ["decode", "decode"]


@pytest.mark.parametrize("to", ["npz", "jsonl", "parquet"])
def test_counts_stay_the_slices_that_they_are(tmp_path, capsys, to):
    """With their steps."""
    tokens = np.arange(24).reshape(3, 2, 4)
    np.savez(tmp_path / "counts.npz", counts=tokens, steps=np.array([1, 2, 3]))
    target = tmp_path / f"target.{to}"
    code, out, _ = run(capsys, "convert", tmp_path / "counts.npz", target, "--to", to, "--json")
    assert (code, json.loads(out)["kind"]) == (0, "trace")
    back = registry.read_trace(target, ReadOptions())
    assert back.trace.tokens.tolist() == tokens.tolist()
    assert back.trace.steps_per_slice.tolist() == [1, 2, 3]


def test_a_map_is_no_trace_and_a_trace_no_map(picks, tmp_path, capsys):
    """Refused by name, with what can be done."""
    code, _, err = run(capsys, "convert", picks, tmp_path / "m.json", "--to", "sglang")
    assert (code, "holds no map" in err, "eplb place" in err) == (1, True, True)
    code, _, err = run(capsys, "convert", saved(tmp_path / "s.json"), tmp_path / "t.npz", "--to", "npz")
    assert (code, "holds no trace" in err) == (1, True)
    target = ("--to", "npz", "--current", picks)
    assert run(capsys, "convert", picks, tmp_path / "t.npz", *target)[0] == 2
    assert run(capsys, "convert", picks, tmp_path / "t.npz", "--to", "sglang-recorder")[0] == 2


def test_a_source_is_never_written_over(tmp_path, capsys):
    """By another name of the same file neither."""
    source = saved(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to(source)
    for target in (source, tmp_path / "b.json"):
        code, _, err = run(capsys, "convert", source, target, "--to", "neutral")
        assert (code, "would be lost" in err) == (1, True)
