"""eplb place and eplb eval: data on stdout, progress on stderr, exit codes 0, 1, 2 and 3, and a map that others can read."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from eplb.cli.main import main
from eplb.cli.offline import evaluate_cmd, place
from eplb.formats.neutral import NeutralMap, read_map, write_map
from placement import LoadTrace, Placement, evaluate, violations

POOL = ["--ranks", "4", "--nodes", "2", "--slots-per-rank", "3", "--effort", "fast"]


@pytest.fixture
def trace(tmp_path):
    tokens = np.rint(np.random.default_rng(1).lognormal(3, 1, (8, 2, 10))).astype(np.int64)
    np.savez(tmp_path / "trace.npz", counts=tokens, model_layer=np.array([3, 4]))
    return tmp_path / "trace.npz"


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
    for word in ("ratio", "bound", "moves", "map.json", "id order"):
        assert word in out
    assert "policy_global" not in out  # two nodes alone ask for no groups
    assert "reading" in err
    assert "solving" in err


def test_the_reported_ratio_is_that_of_the_written_map(trace, tmp_path, capsys):
    """What place promises, eval and the library find."""
    code, out, _ = run(capsys, "place", trace, *POOL, "--json", "-o", tmp_path / "map.json")
    report = json.loads(out)
    neutral = read_map(tmp_path / "map.json")
    tokens = LoadTrace(np.load(trace)["counts"])
    ratio = evaluate(neutral.placement, tokens, neutral.topology()).mean_ratio
    assert code == 0
    assert report["ratio_after"] == pytest.approx(ratio, abs=1e-6)
    assert report["ratio_after"] < report["ratio_before"]
    code, out, _ = run(capsys, "eval", tmp_path / "map.json", trace, "--json")
    scored = json.loads(out)
    assert code == 0
    assert scored["ratio_mean"] == report["ratio_after"]
    assert scored["violations"] == []
    assert [layer["model_layer"] for layer in scored["layers"]] == [3, 4]


def test_place_from_the_current_map_moves_within_the_limit(trace, tmp_path, capsys):
    """At most two slots change, and their bytes are named."""
    rows = np.tile(np.arange(12) % 10, (2, 1))
    current = live_map(tmp_path / "current.json", rows)
    options = [
        "--current",
        current,
        "--moves",
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
        capsys, "place", trace, *POOL, "--current", current, "--moves", "0", "-o", tmp_path / "new.json"
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
    assert "unknown before" in out
    read_map(tmp_path / "new.json")


def test_holdout_scores_on_slices_that_were_not_planned_on(trace, tmp_path, capsys):
    """Every second slice plans, the others score."""
    code, out, _ = run(capsys, "place", trace, *POOL, "--holdout", "--json", "-o", tmp_path / "map.json")
    held = json.loads(out)["held_out"]
    assert code == 0
    assert (held["slices_planned"], held["slices_scored"]) == (4, 4)
    assert held["ratio_after"] >= 1
    text = run(capsys, "place", trace, *POOL, "--holdout", "-o", tmp_path / "map.json")[1]
    assert "held out" in text


def test_equal_input_writes_equal_files(trace, tmp_path, capsys):
    """Byte for byte."""
    for name in ("one.json", "two.json"):
        assert run(capsys, "place", trace, *POOL, "-o", tmp_path / name)[0] == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_slots_that_cannot_hold_the_experts_are_an_error_with_the_cure(trace, tmp_path, capsys):
    """Exit code 1, one line on stderr, no file."""
    pool = ["--ranks", "4", "--slots-per-rank", "2"]
    code, out, err = run(capsys, "place", trace, *pool, "-o", tmp_path / "map.json")
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
    code, _, err = run(capsys, "eval", trace, trace)
    assert (code, "trace.npz" in err) == (1, True)


def test_a_map_of_another_pool_or_model_is_refused(trace, tmp_path, capsys):
    """The numbers of both sides are named."""
    other = live_map(tmp_path / "other.json", np.tile(np.arange(12) % 10, (2, 1)), ranks=2, slots=6)
    code, _, err = run(capsys, "place", trace, *POOL, "--current", other, "-o", tmp_path / "map.json")
    assert (code, "(2, 6, 10)" in err, "(4, 3, 10)" in err) == (1, True, True)
    layers = live_map(tmp_path / "layers.json", np.tile(np.arange(12) % 10, (2, 1)), layers=(3, 5))
    code, _, err = run(capsys, "eval", layers, trace)
    assert (code, "model layers 2 (3, 5), the trace has 2 (3, 4)" in err) == (1, True)


def test_a_trace_without_load_has_no_ratio(tmp_path, capsys):
    """null in JSON, unknown in text, never NaN and never a crash."""
    np.savez(tmp_path / "empty.npz", counts=np.zeros((2, 1, 4), dtype=np.int64))
    pool = ["--ranks", "2", "--slots-per-rank", "2"]
    code, out, _ = run(capsys, "place", tmp_path / "empty.npz", *pool, "--json", "-o", tmp_path / "map.json")
    assert (code, json.loads(out)["ratio_after"]) == (0, None)
    code, out, _ = run(capsys, "eval", tmp_path / "map.json", tmp_path / "empty.npz")
    assert (code, "no layer has load" in out) == (0, True)


def test_the_commands_run_alone_too(trace, tmp_path):
    """As plain click commands, with stdout and stderr apart."""
    result = CliRunner().invoke(place, [str(trace), *POOL, "-o", str(tmp_path / "map.json")])
    assert result.exit_code == 0
    assert "solving" not in result.stdout
    assert "solving" in result.stderr
    scored = CliRunner().invoke(
        evaluate_cmd, [str(tmp_path / "map.json"), str(trace), "--dispatch", "weighted"]
    )
    assert "dispatch weighted" in scored.stdout


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
        "--moves",
        "0",
    ]
    done = subprocess.run(
        [*command, "-o", tmp_path / "new.json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "the current map stays" in done.stdout
    assert "solving" in done.stderr
