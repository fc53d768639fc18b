"""eplb place: data on stdout, progress on stderr, exit codes 0, 1, 2 and 3, a forecast that is one, and a map that engines can read."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from eplb.cli.main import main
from eplb.cli.place import place
from eplb.formats import registry
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.neutral import NeutralMap, read_map, write_map
from eplb.offline.engines import ENGINES
from eplb.offline.holdout import kinds_of, split
from placement import LoadTrace, Placement, Topology, evaluate, solve, violations

POOL = ["--ranks", "4", "--nodes", "2", "--slots-per-rank", "3", "--effort", "fast"]


@pytest.fixture
def trace(tmp_path):
    tokens = np.rint(np.random.default_rng(1).lognormal(3, 1, (8, 2, 10))).astype(np.int64)
    np.savez(tmp_path / "trace.npz", counts=tokens, model_layer=np.array([3, 4]))
    return tmp_path / "trace.npz"


@pytest.fixture
def picks(tmp_path):
    """8 groups of 4 requests, half of them decode; a token picks the two experts of a pair (e, 7 - e)."""
    rng = np.random.default_rng(3)
    one = rng.integers(0, 8, (32, 25, 2))
    np.savez(
        tmp_path / "picks.npz",
        picks=np.stack([one, 7 - one], axis=-1).reshape(800, 2, 2),
        offsets=np.arange(33) * 25,
        phase=np.array(["prefill", "decode"] * 16),
    )
    return tmp_path / "picks.npz"


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def live_map(path, rows, *, ranks=4, slots=3, layers=(3, 4)):
    write_map(path, NeutralMap(ranks, 2, slots, 10, layers, Placement(np.array(rows))))
    return path


def test_place_writes_a_valid_map_and_says_what_it_gains(trace, tmp_path, capsys):
    """Exit code 0; the file has the pool's facts and the model's layers; stdout names ratio, bound, moves and file."""
    code, out, err = run(capsys, "place", trace, *POOL, "-o", tmp_path / "map.json")
    assert code == 0
    neutral = read_map(tmp_path / "map.json")
    assert (neutral.ranks, neutral.nodes, neutral.slots_per_rank, neutral.experts) == (4, 2, 3, 10)
    assert neutral.model_layer == (3, 4)
    assert violations(neutral.placement, neutral.topology(), 10) == []
    for word in ("ratio", "bound", "moves", "map.json", "experts in the order of their ids", "held out"):
        assert word in out
    assert "policy_global" not in out  # two nodes alone ask for no groups
    assert "reading" in err
    assert "solving" in err


def test_the_reported_ratio_is_that_of_the_written_map(trace, tmp_path, capsys):
    """What place says of the slices that it planned on, the library finds."""
    code, out, _ = run(capsys, "place", trace, *POOL, "--json", "-o", tmp_path / "map.json")
    report = json.loads(out)
    neutral = read_map(tmp_path / "map.json")
    tokens = LoadTrace(np.load(trace)["counts"])
    ratio = evaluate(neutral.placement, tokens, neutral.topology()).mean_ratio
    assert code == 0
    whole = report["in_sample"]
    assert (whole["slices_planned"], whole["slices_scored"]) == (8, 8)
    assert whole["ratio_after"] == report["objective"] == pytest.approx(ratio, abs=1e-6)
    assert report["bound"] <= whole["ratio_after"] < whole["ratio_before"]


def test_place_from_the_current_map_moves_within_the_limit(trace, tmp_path, capsys):
    """At most two slots change, and their bytes are named."""
    rows = np.tile(np.arange(12) % 10, (2, 1))
    current = live_map(tmp_path / "current.json", rows)
    options = [
        "--current",
        current,
        "--max-moves",
        "2",
        "--bytes-per-expert",
        "1000",
        "--json",
        "-o",
        tmp_path / "new.json",
    ]
    code, out, _ = run(capsys, "place", trace, *POOL, *options)
    report = json.loads(out)
    assert code == 0
    assert 0 < report["moves"] <= 2
    assert report["bytes"] == report["moves"] * 1000
    assert report["before_map"] == "current"
    assert (
        int((read_map(tmp_path / "new.json").placement.physical_to_logical != rows).sum()) == report["moves"]
    )


def test_nothing_to_do_is_exit_code_3_and_writes_nothing(trace, tmp_path, capsys):
    """With no move allowed the current map stays, no file appears, and the output says so."""
    current = live_map(tmp_path / "current.json", np.tile(np.arange(12) % 10, (2, 1)))
    code, out, _ = run(
        capsys, "place", trace, *POOL, "--current", current, "--max-moves", "0", "-o", tmp_path / "new.json"
    )
    assert code == 3
    assert "the current map stays" in out
    assert not (tmp_path / "new.json").exists()


def test_a_broken_current_map_is_repaired_and_told(trace, tmp_path, capsys):
    """Twins and lost experts of a live map are read, mended and named."""
    current = live_map(tmp_path / "current.json", np.tile([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, -1, 2], (2, 1)))
    code, out, _ = run(capsys, "place", trace, *POOL, "--current", current, "-o", tmp_path / "new.json")
    assert code == 0
    assert "repaired_twin" in out
    assert "reload" in out
    assert re.search(r"held out +unknown", out)
    read_map(tmp_path / "new.json")


def test_a_forecast_is_made_on_slices_that_its_plan_did_not_see(trace, tmp_path, capsys):
    """The held-out ratio is that of a map planned on the other slices: solving those alone gives the same number."""
    code, out, _ = run(
        capsys, "place", trace, *POOL, "--holdout", "0.5", "--json", "-o", tmp_path / "map.json"
    )
    held = json.loads(out)["held_out"]
    assert code == 0
    assert (held["slices_planned"], held["slices_scored"]) == (4, 4)
    file = registry.read_trace(trace)
    parts = split(file.trace, kinds_of(file), 0.5)
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3)
    alone = solve(parts.seen, topology, effort="fast").placement
    expected = evaluate(alone, parts.unseen, topology).mean_ratio
    assert held["ratio_after"] == pytest.approx(expected, abs=1e-6)


def test_a_quarter_is_held_out_unless_told_otherwise(trace, tmp_path, capsys):
    """Without a word 2 of 8 slices; with 0 none, and the text says that the forecast is missing; of one slice nothing can be."""
    target = ("-o", tmp_path / "map.json")
    held = json.loads(run(capsys, "place", trace, *POOL, "--json", *target)[1])["held_out"]
    assert (held["slices_planned"], held["slices_scored"]) == (6, 2)
    text = run(capsys, "place", trace, *POOL, "--holdout", "0", *target)[1]
    assert "nothing was held out" in text
    np.savez(tmp_path / "one.npz", counts=np.ones((1, 2, 10), dtype=np.int64))
    assert "nothing was held out" in run(capsys, "place", tmp_path / "one.npz", *POOL, *target)[1]
    code, _, err = run(capsys, "place", tmp_path / "one.npz", *POOL, "--holdout", "0.5", *target)
    assert (code, "--holdout needs at least 2 slices" in err) == (1, True)


def test_noise_stands_beside_the_ratio_where_top_k_is_known(trace, tmp_path, capsys):
    """Counts of no known model need --top-k."""
    target = ("--json", "-o", tmp_path / "map.json")
    for extra, known in (((), False), (("--top-k", "2"), True)):
        whole = json.loads(run(capsys, "place", trace, *POOL, *extra, *target)[1])["in_sample"]
        assert (whole["ratio_floor"] is not None) == known
    assert whole["ratio_floor"] > 1


@pytest.mark.parametrize(
    ("form", "suffix"), [("sglang", ".json"), ("trtllm", ".yaml"), ("vllm-ascend", ".json")]
)
def test_a_map_for_an_engine_is_planned_for_its_dispatch_and_says_how_to_start(
    trace, tmp_path, capsys, form, suffix
):
    """The file reads back as a valid map; the rule is the engine's own unless another is given."""
    target = tmp_path / f"map{suffix}"
    options = ["--hidden-layers", "5", "--format", form, "--json", "-o", target]
    code, out, _ = run(capsys, "place", trace, *POOL, *options)
    report = json.loads(out)
    assert code == 0
    assert report["dispatch"] == ENGINES[form].dispatch
    assert report["written"]["start_with"]
    back = registry.read_map(target, MapFacts(4, 2, 10, Layers((3, 4), 5)), form)
    assert violations(back.placement, back.topology(), 10) == []
    even = run(capsys, "place", trace, *POOL, "--dispatch", "even", *options)[1]
    assert json.loads(even)["dispatch"] == "even"


def test_what_the_engine_needs_is_asked_for_before_the_solve(trace, tmp_path, capsys):
    """Layers, the file's name and its folder: refused by name, at once, and nothing is written."""
    target = tmp_path / "map.json"
    code, out, err = run(capsys, "place", trace, *POOL, "--format", "sglang", "-o", target)
    assert (code, out) == (1, "")
    assert "hidden_layers is not known" in err
    assert "--moe-layers 1-26 --hidden-layers 27" in err
    assert "solving" not in err
    known = ("--hidden-layers", "5", "--format", "sglang")
    for wrong in (tmp_path / "map.txt", tmp_path / "none" / "map.json"):
        code, _, err = run(capsys, "place", trace, *POOL, *known, "-o", wrong)
        assert (code, str(wrong) in err, "solving" in err) == (1, True, False)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.npz"]


def test_the_redundancy_can_be_given_in_slots_or_found(trace, tmp_path, capsys):
    """--redundant 2 is 3 slots on each of 4 ranks for 10 experts; auto takes the fewest that come close, and shows what it tried."""
    pool = ["--ranks", "4", "--nodes", "2", "--effort", "fast", "--json", "-o", tmp_path / "map.json"]
    report = json.loads(run(capsys, "place", trace, *pool, "--redundant", "2")[1])
    assert (report["pool"]["slots_per_rank"], report["redundancy"]) == (3, None)
    report = json.loads(run(capsys, "place", trace, *pool, "--redundant", "auto")[1])
    tries = report["redundancy"]["tries"]
    assert [each["slots_per_rank"] for each in tries] == [3, 4, 5, 6, 7]
    best = min(each["ratio"] for each in tries)
    fewest = next(each for each in tries if each["ratio"] <= best + report["redundancy"]["tolerance"])
    assert report["pool"]["slots_per_rank"] == report["redundancy"]["chosen"] == fewest["slots_per_rank"]
    code, _, err = run(capsys, "place", trace, *pool, "--redundant", "3")
    assert (code, "use 6 redundant slots" in err) == (1, True)


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        (("--slots-per-rank", "3", "--redundant", "2"), "give one of them"),
        ((), "give --slots-per-rank, or --redundant auto"),
        (("--redundant", "some"), "neither auto nor a number"),
        (("--slots-per-rank", "3", "--max-moves", "2"), "give it with --current"),
        (("--slots-per-rank", "3", "--policy", "hierarchical"), "--groups"),
        (("--redundant", "auto", "--current", "x.json"), "has its own"),
        (("--slots-per-rank", "3", "--moves", "2"), "--max-moves"),
        (("--slots-per-rank", "3", "--holdout", "nan"), "nan is no finite number"),
        (("--slots-per-rank", "3", "--traffic", "inf"), "inf is no finite number"),
        (("--slots-per-rank", "3", "--traffic", "1e7"), "--traffic"),
    ],
)
def test_options_that_contradict_each_other_are_usage(trace, tmp_path, capsys, extra, part):
    """Exit code 2, and what to give instead."""
    code, _, err = run(capsys, "place", trace, "--ranks", "4", *extra, "-o", tmp_path / "map.json")
    assert (code, part in " ".join(err.split())) == (2, True)


def test_router_groups_are_kept_on_one_node_each(trace, tmp_path, capsys):
    """10 experts in 2 groups on 2 nodes: no group has a copy on both."""
    target = tmp_path / "map.json"
    code, out, _ = run(
        capsys, "place", trace, *POOL, "--groups", "2", "--policy", "hierarchical", "--json", "-o", target
    )
    assert (code, json.loads(out)["policy"]) == (0, "hierarchical")
    rows = read_map(target).placement.physical_to_logical
    for nodes in (rows[:, :6], rows[:, 6:]):
        assert all(len(set((row // 5).tolist())) == 1 for row in nodes)


def test_traffic_needs_picks_and_tells_the_fan_out(picks, trace, tmp_path, capsys):
    """Counts are refused by name. Pairs that go together end on one node each, so a token touches fewer nodes than at random."""
    target = ("--json", "-o", tmp_path / "map.json")
    pool = ["--ranks", "4", "--nodes", "2", "--slots-per-rank", "2", "--effort", "fast"]
    report = json.loads(run(capsys, "place", picks, *pool, "--traffic", "0.5", *target)[1])
    fans = report["fan_out"]
    assert fans["bins"] == "nodes"
    assert 1 <= fans["after"] < fans["random"]
    assert "traffic" in {reason["code"] for reason in report["reasons"]}
    ignored = json.loads(
        run(capsys, "place", picks, *pool, "--traffic", "0.5", "--dispatcher", "all_gather", *target)[1]
    )
    assert ignored["fan_out"] is None
    assert "traffic_ignored" in {reason["code"] for reason in ignored["reasons"]}
    code, _, err = run(capsys, "place", trace, *POOL, "--traffic", "0.5", *target)
    assert (code, "--traffic needs the picks" in err) == (1, True)


def test_one_phase_can_be_planned_for(picks, tmp_path, capsys):
    """Slices of the other phase are not read."""
    pool = [
        "--ranks",
        "4",
        "--slots-per-rank",
        "2",
        "--effort",
        "fast",
        "--json",
        "-o",
        tmp_path / "map.json",
    ]
    both = json.loads(run(capsys, "place", picks, *pool)[1])
    decode = json.loads(run(capsys, "place", picks, *pool, "--phase", "decode")[1])
    assert (both["trace"]["slices"], decode["trace"]["slices"]) == (8, 4)
    code, _, err = run(capsys, "place", picks, *pool, "--phase", "mixed")
    assert (code, "holds decode, prefill" in err) == (1, True)


def test_the_live_map_may_be_in_an_engines_format(trace, tmp_path, capsys):
    """Its pool follows from it: --slots-per-rank is not needed, and another number is refused with both."""
    first = tmp_path / "live.json"
    start = ["--ranks", "4", "--nodes", "2", "--effort", "fast"]
    known = ["--hidden-layers", "5", "--format", "vllm-ascend"]
    assert run(capsys, "place", trace, *start, *known, "--slots-per-rank", "3", "-o", first)[0] == 0
    target = ["--current", first, "--max-moves", "0", "-o", tmp_path / "new.json"]
    code, out, _ = run(capsys, "place", trace, *start, *known, *target)
    assert (code, "the current map stays" in out) == (3, True)
    code, _, err = run(capsys, "place", trace, *start, *known, "--slots-per-rank", "4", *target)
    assert (code, "has 3 slots a rank, asked for 4" in err) == (1, True)


def test_counts_by_source_rank_of_another_pool_are_left_out(tmp_path, capsys):
    """A TensorRT-LLM run on 2 ranks can be planned for 4; it is said that who sent what is not used."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "meta_info.json").write_text(json.dumps({"num_experts": 4, "num_experts_per_token": 2}))
    for rank in range(2):
        save_file(
            {f"{at}_3": np.array([5, 1, 3, 7 + rank]) for at in range(4)}, folder / f"rank{rank}.safetensors"
        )
    code, out, _ = run(
        capsys,
        "place",
        folder,
        "--ranks",
        "4",
        "--slots-per-rank",
        "2",
        "--effort",
        "fast",
        "-o",
        tmp_path / "map.json",
    )
    assert (code, "sources_of_another_pool" in out) == (0, True)


@pytest.mark.slow
def test_a_recorded_trace_becomes_a_file_for_sglang(tmp_path, capsys, shared_data):
    """One key, 27 rows of 80 slots, the dense row valid too, every expert in every row."""
    target = tmp_path / "map.json"
    pool = ["--ranks", "16", "--nodes", "4", "--slots-per-rank", "5", "--effort", "fast", "--holdout", "0"]
    layers = ["--moe-layers", "1-26", "--hidden-layers", "27", "--format", "sglang"]
    assert run(capsys, "place", shared_data / "dsv2lite_prefill.npz", *pool, *layers, "-o", target)[0] == 0
    document = json.loads(target.read_text())
    assert list(document) == ["physical_to_logical_map"]
    rows = document["physical_to_logical_map"]
    assert [len(row) for row in rows] == [80] * 27
    assert all(set(row) == set(range(64)) for row in rows)


def test_equal_input_writes_equal_files(trace, tmp_path, capsys):
    """Byte for byte."""
    for name in ("one.json", "two.json"):
        assert run(capsys, "place", trace, *POOL, "-o", tmp_path / name)[0] == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_slots_that_cannot_hold_the_experts_are_an_error_with_the_cure(trace, tmp_path, capsys):
    """Exit code 1, one line on stderr, no file."""
    pool = ["--ranks", "4", "--slots-per-rank", "2"]
    for form in ("neutral", "sglang"):
        code, out, err = run(capsys, "place", trace, *pool, "--format", form, "-o", tmp_path / "map.json")
        assert (code, out) == (1, "")
        assert "error: 4 live ranks have 8 slots for 10 experts" in err
        assert "at least 3 slots per rank" in err
    assert not (tmp_path / "map.json").exists()


def test_bad_files_are_errors_and_bad_options_are_usage(trace, tmp_path, capsys):
    """Exit code 1 with the file's name; exit code 2 for the command line."""
    code, _, err = run(capsys, "place", tmp_path / "none.npz", *POOL, "-o", tmp_path / "map.json")
    assert (code, "none.npz" in err) == (1, True)
    assert run(capsys, "place", trace, "--ranks", "0", "--slots-per-rank", "3", "-o", "x")[0] == 2
    assert run(capsys, "place", trace, *POOL)[0] == 2


def test_a_map_of_another_pool_or_model_is_refused(trace, tmp_path, capsys):
    """The numbers of both sides are named."""
    other = live_map(tmp_path / "other.json", np.tile(np.arange(12) % 10, (2, 1)), ranks=2, slots=6)
    code, _, err = run(capsys, "place", trace, *POOL, "--current", other, "-o", tmp_path / "map.json")
    assert (code, "the map is for 2 ranks, asked for 4" in err) == (1, True)
    layers = live_map(tmp_path / "layers.json", np.tile(np.arange(12) % 10, (2, 1)), layers=(3, 5))
    code, _, err = run(capsys, "place", trace, *POOL, "--current", layers, "-o", tmp_path / "map.json")
    assert (code, "model_layer is 2 (3, 5) in the map, asked for 2 (3, 4)" in err) == (1, True)


def test_a_trace_without_load_has_no_ratio(tmp_path, capsys):
    """null in JSON, unknown in text, never NaN and never a crash."""
    np.savez(tmp_path / "empty.npz", counts=np.zeros((2, 1, 4), dtype=np.int64))
    pool = ["--ranks", "2", "--slots-per-rank", "2"]
    code, out, _ = run(capsys, "place", tmp_path / "empty.npz", *pool, "--json", "-o", tmp_path / "map.json")
    assert (code, json.loads(out)["in_sample"]["ratio_after"]) == (0, None)
    assert "unknown" in run(capsys, "place", tmp_path / "empty.npz", *pool, "-o", tmp_path / "map.json")[1]


def test_the_command_runs_alone_too(trace, tmp_path):
    """As a plain click command, with stdout and stderr apart."""
    result = CliRunner().invoke(place, [str(trace), *POOL, "-o", str(tmp_path / "map.json")])
    assert result.exit_code == 0
    assert "solving" not in result.stdout
    assert "solving" in result.stderr


@pytest.mark.slow
def test_a_real_process_ends_with_code_3_when_there_is_nothing_to_do(trace, tmp_path):
    """The shell sees the exit code, data on stdout and progress on stderr."""
    current = live_map(tmp_path / "current.json", np.tile(np.arange(12) % 10, (2, 1)))
    command = [
        sys.executable,
        "-m",
        "eplb.cli.main",
        "place",
        trace,
        *POOL,
        "--current",
        current,
        "--max-moves",
        "0",
    ]
    done = subprocess.run(
        [*command, "-o", tmp_path / "new.json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "the current map stays" in done.stdout
    assert "solving" in done.stderr


@pytest.mark.parametrize("name", ["trace.npz", "live.json"])
def test_what_is_read_is_never_written_over(trace, tmp_path, capsys, name):
    """Neither the trace nor the live map, which is still needed until the new one is live."""
    live = live_map(tmp_path / "live.json", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]] * 2)
    old = (tmp_path / name).read_bytes()
    code, _, err = run(capsys, "place", trace, *POOL, "--current", live, "-o", tmp_path / name)
    assert (code, "would be lost" in err) == (1, True)
    assert (tmp_path / name).read_bytes() == old


def test_the_nodes_are_those_of_the_live_map_unless_told(trace, tmp_path, capsys):
    """Other ones are refused: the pool would be another."""
    live = live_map(tmp_path / "live.json", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]] * 2)
    rest = ("--ranks", "4", "--effort", "fast", "--current", live, "--json", "-o", tmp_path / "map.json")
    code, out, _ = run(capsys, "place", trace, *rest)
    assert (code, json.loads(out)["pool"]["nodes"]) == (0, 2)
    code, _, err = run(capsys, "place", trace, *rest, "--nodes", "4")
    assert (code, "for 2 nodes, asked for 4: correct --nodes" in err) == (1, True)


def test_the_format_of_the_live_map_can_be_named(trace, tmp_path, capsys):
    """A name that is none is usage; a format that it is not in is refused."""
    live = live_map(tmp_path / "live.json", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]] * 2)
    rest = (*POOL, "--current", live, "-o", tmp_path / "map.json", "--current-from")
    assert run(capsys, "place", trace, *rest, "neutral")[0] == 0
    assert run(capsys, "place", trace, *rest, "trtllm")[0] == 1
    assert run(capsys, "place", trace, *rest, "nothing")[0] == 2
