"""eplb eval: a map in any format is scored on a trace in any format, under the rule of any engine."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from eplb.cli.evaluate import evaluate_cmd
from eplb.cli.main import main
from eplb.formats import registry
from eplb.formats.neutral import NeutralMap
from eplb.offline.engines import ENGINES, NAMES
from placement import LoadTrace, Placement, evaluate

ROWS = np.array([[3, 1, 2, 0, 3, 1], [0, 1, 2, 3, 0, 1]])


@pytest.fixture
def tokens():
    return np.rint(np.random.default_rng(1).lognormal(3, 1, (8, 2, 4))).astype(np.int64)


@pytest.fixture
def trace(tmp_path, tokens):
    np.savez(tmp_path / "trace.npz", counts=tokens, model_layer=np.array([3, 4]), hidden_layers=np.array(5))
    return tmp_path / "trace.npz"


def saved(path, form="neutral", layers=(3, 4), rows=ROWS, experts=4):
    neutral = NeutralMap(2, 2, 3, experts, layers, Placement(rows), 5 if layers else None)
    registry.write_map(path, neutral, form)
    return path


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "case",
    [
        ("neutral", "m.json"),
        ("sglang", "m.json"),
        ("trtllm", "m.yaml", "--ranks", "2", "--nodes", "2"),
        ("vllm-ascend", "m.json", "--nodes", "2"),
        ("deepseek", "m.npz", "--ranks", "2", "--nodes", "2"),
    ],
)
def test_a_map_in_any_format_has_the_ratio_that_the_library_finds(trace, tokens, tmp_path, capsys, case):
    """What its format leaves out is given, or taken from the trace."""
    form, name, *extra = case
    code, out, _ = run(capsys, "eval", saved(tmp_path / name, form), trace, "--json", *extra)
    report = json.loads(out)
    topology = NeutralMap(2, 2, 3, 4, None, Placement(ROWS)).topology()
    ratio = evaluate(Placement(ROWS), LoadTrace(tokens), topology).mean_ratio
    assert code == 0
    assert report["ratio_mean"] == pytest.approx(ratio, abs=1e-6)
    assert report["violations"] == []
    assert [layer["model_layer"] for layer in report["layers"]] == [3, 4]


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_and_every_engine_can_be_asked_for(trace, tokens, tmp_path, capsys, name):
    """An engine's name stands for its rule; what the trace lacks for it is said."""
    code, out, _ = run(capsys, "eval", saved(tmp_path / "m.json"), trace, "--dispatch", name, "--json")
    report = json.loads(out)
    rule = ENGINES[name].dispatch if name in ENGINES else name
    topology = NeutralMap(2, 2, 3, 4, None, Placement(ROWS)).topology()
    score = evaluate(Placement(ROWS), LoadTrace(tokens), topology, rule)
    assert (code, report["dispatch"]) == (0, rule)
    assert report["ratio_mean"] == pytest.approx(score.mean_ratio, abs=1e-6)
    assert [each["code"] for each in report["reasons"]] == [each.code for each in score.reasons]


def test_a_map_of_another_model_is_refused(trace, tmp_path, capsys):
    """The layers of both sides are named; so is a number of rows that does not fit."""
    code, _, err = run(capsys, "eval", saved(tmp_path / "m.json", layers=(2, 4)), trace)
    assert (code, "model_layer is 2 (2, 4) in the map, asked for 2 (3, 4)" in err) == (1, True)
    code, _, err = run(capsys, "eval", saved(tmp_path / "m.json", layers=None, rows=ROWS[:1]), trace)
    assert (code, "m.json" in err) == (1, True)


def test_a_file_that_is_no_map_is_refused_by_name(trace, capsys):
    """Exit code 1."""
    code, _, err = run(capsys, "eval", trace, trace)
    assert (code, "trace.npz" in err, "expected a map" in err) == (1, True, True)


def test_a_trace_without_load_has_no_ratio(tmp_path, capsys):
    """unknown in text, never NaN and never a crash."""
    np.savez(tmp_path / "empty.npz", counts=np.zeros((2, 2, 4), dtype=np.int64))
    code, out, _ = run(capsys, "eval", saved(tmp_path / "m.json"), tmp_path / "empty.npz")
    assert (code, "no layer has load" in out, "mean unknown" in out) == (0, True, True)


def test_the_hottest_layers_come_first(tmp_path, capsys):
    """By their number in the model; the last layer has all its load on one expert."""
    counts = np.ones((1, 2, 4), dtype=np.int64)
    counts[0, 1] = [0, 0, 9, 0]
    np.savez(tmp_path / "t.npz", counts=counts, model_layer=np.array([3, 4]))
    code, out, _ = run(capsys, "eval", saved(tmp_path / "m.json"), tmp_path / "t.npz")
    assert (code, "hottest    model layers 4 (2.000)" in out) == (0, True)


def test_the_command_runs_alone_too(trace, tmp_path):
    """As a plain click command, with stdout and stderr apart."""
    saved(tmp_path / "m.json")
    result = CliRunner().invoke(evaluate_cmd, [str(tmp_path / "m.json"), str(trace), "--top-k", "2"])
    assert result.exit_code == 0
    assert "dispatch even" in result.stdout
    assert "reading" in result.stderr
    assert "reading" not in result.stdout


@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ("neutral", "even"),
        ("sglang", "nearest"),
        ("trtllm", "block_round_robin"),
    ],
)
def test_the_rule_is_that_of_the_map_s_engine_unless_told(trace, tmp_path, capsys, form, rule):
    """As ``eplb place`` plans for it."""
    name = "m.yaml" if form == "trtllm" else "m.json"
    given = (saved(tmp_path / name, form), trace, "--json", "--ranks", "2", "--nodes", "2")
    assert json.loads(run(capsys, "eval", *given)[1])["dispatch"] == rule
    assert json.loads(run(capsys, "eval", *given, "--dispatch", "even")[1])["dispatch"] == "even"


def test_the_format_of_the_map_can_be_named(trace, tmp_path, capsys):
    """--from is the trace's."""
    given = saved(tmp_path / "m.json")
    assert run(capsys, "eval", given, trace, "--map-from", "neutral", "--from", "npz")[0] == 0
    assert run(capsys, "eval", given, trace, "--map-from", "sglang")[0] == 1
