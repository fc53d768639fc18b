"""eplb inspect: says what a file is and what looks wrong, on stdout; progress goes to stderr."""

import json

import click
import numpy as np
import pytest
from click.testing import CliRunner

from eplb.cli import progress as progress_module
from eplb.cli.layer_options import layer_options, layers_from
from eplb.cli.main import main
from eplb.cli.progress import progress
from eplb.formats.facts import Layers
from eplb.formats.neutral import NeutralMap, write_map
from placement import Placement


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def picks(tmp_path):
    """Sixteen requests of 30 tokens, shaped like gpt-oss-20b."""
    rng = np.random.default_rng(0)
    tokens = rng.permuted(np.tile(np.arange(32, dtype=np.uint8), (480, 24, 1)), axis=2)[:, :, :4]
    phase = np.array(["prefill", "decode"] * 8)
    np.savez(
        tmp_path / "picks.npz",
        picks=tokens,
        offsets=np.arange(17) * 30,
        phase=phase,
        domain=np.repeat(["code", "law"], 8),
        hidden_layers=np.array(24),
        model_layer=np.arange(24),
    )
    return tmp_path / "picks.npz"


def test_a_trace_is_described(picks, capsys):
    """Format, guess, layers, experts, slices, phases, domains, skew, ratio and noise; progress is not among the data."""
    code, out, err = run(capsys, "inspect", picks, "--ranks", 8, "--experts", 32)
    assert code == 0
    for part in (
        "our own trace of counts or picks (.npz)",
        "a guess from the shape: gpt-oss-20b",
        "24 rows, model layers 0-23 of 24",
        "32, top-4 (from the picks)",
        "4 (groups of 4 sequences, each of one of 2 domains, each of one of 2 phases), 46,080 picks",
        "decode 2, prefill 2 slices",
        "code 2, law 2 slices",
        "on 8 ranks in the order of the ids",
        "suspicion  none: nothing looks wrong",
    ):
        assert part in out
    assert "reading" in err
    assert "reading" not in out


def test_json_holds_the_same(picks, capsys):
    """For scripts; random picks are as uneven as noise makes them."""
    _, out, _ = run(capsys, "inspect", picks, "--ranks", 8, "--experts", 32, "--json")
    report = json.loads(out)
    assert (report["kind"], report["format"], report["picks"]) == ("trace", "npz", 46_080)
    assert report["layers"] == {"rows": 24, "model_layer": list(range(24)), "hidden_layers": 24}
    assert report["phases"] == {"decode": 2, "prefill": 2}
    assert report["pool"]["id_order_ratio"] == pytest.approx(report["pool"]["floor_ratio"], abs=0.03)
    assert report["skew"]["zero_cells"] == 0
    assert report["suspicions"] == []


def test_a_phase_can_be_looked_at_alone(picks, capsys):
    """Its slices only."""
    _, out, _ = run(capsys, "inspect", picks, "--phase", "decode", "--json")
    assert json.loads(out)["phases"] == {"decode": 2}


def test_slices_can_be_smaller(picks, capsys):
    """One request each."""
    _, out, _ = run(capsys, "inspect", picks, "--sequences-per-slice", 1, "--json")
    assert json.loads(out)["slices"] == 16


def test_what_looks_wrong_is_told_with_its_fix(tmp_path, capsys):
    """A recorder that knows one layer only."""
    counts = np.zeros((3, 5, 6), dtype=int)
    counts[:, 1] = np.random.default_rng(0).integers(1, 90, (3, 6))
    np.savez(tmp_path / "a.npz", counts=counts)
    code, out, _ = run(capsys, "inspect", tmp_path / "a.npz")
    assert code == 0
    assert "suspicion  one_layer: only row 1 of 5 has counts" in out
    assert "fix: the recorder does not know which layer it is in" in out
    assert "top-k unknown" in out
    assert "which layers of the model they are is not known" in out


def test_a_map_is_described(tmp_path, capsys):
    """Pool, replicas, layers, and the rules that it breaks."""
    write_map(
        tmp_path / "map.json",
        NeutralMap(2, 1, 3, 4, (3, 5), Placement([[0, 1, 2, 3, 0, 1], [0, 0, 1, 2, 3, 1]])),
    )
    code, out, _ = run(capsys, "inspect", tmp_path / "map.json", "--hidden-layers", 6)
    assert code == 0
    for part in (
        "map, our own map file (JSON)",
        "2 rows, model layers 3,5 of 6",
        "2 ranks on 1 node x 3 slots, 4 experts, 2 redundant",
        "1 for 4, 2 for 4 (layer, expert) pairs; 0 slots are empty",
        "suspicion  twin: layer 1, rank 0, slot 1 holds expert 0 a second time",
        "fix: ",
    ):
        assert part in out
    _, out, _ = run(capsys, "inspect", tmp_path / "map.json", "--json")
    report = json.loads(out)
    assert report["replicas"] == {"1": 4, "2": 4}
    assert [found["code"] for found in report["suspicions"]] == ["twin"]


@pytest.mark.parametrize("options", [["--from", "neutral"], ["--experts", "3"], ["--moe-layers", "1-2"]])
def test_what_cannot_be_read_is_an_error(picks, capsys, options):
    """Exit code 1, the reason on stderr, nothing on stdout."""
    code, out, err = run(capsys, "inspect", picks, *options)
    assert (code, out) == (1, "")
    assert "error: " in err


def test_a_file_in_no_format_is_an_error(tmp_path, capsys):
    """It says which formats are known."""
    (tmp_path / "a.csv").write_text("layer,expert\n")
    code, _, err = run(capsys, "inspect", tmp_path / "a.csv")
    assert code == 1
    assert "in no format that is known here" in err


@pytest.mark.parametrize("options", [["--from", "nothing"], ["--experts", "1000000000"], ["--ranks", "0"]])
def test_options_that_name_nothing_are_usage(picks, capsys, options):
    """Exit code 2 before anything is read."""
    code, out, err = run(capsys, "inspect", picks, *options)
    assert (code, out, options[0] in err, "reading" in err) == (2, "", True, False)


def test_a_top_k_that_the_picks_contradict_is_refused(picks, capsys):
    """The one that they have may be given."""
    code, _, err = run(capsys, "inspect", picks, "--top-k", 7)
    assert (code, "--top-k is 7, but a token of the trace picks 4" in err) == (1, True)
    assert run(capsys, "inspect", picks, "--top-k", 4)[0] == 0


@click.command()
@layer_options
def echo(**options):
    layers = layers_from(options)
    click.echo(f"{layers.model_layer} {layers.hidden_layers}")


@pytest.mark.parametrize(
    ("text", "numbers"), [("1-3", (1, 2, 3)), ("3-4,7", (3, 4, 7)), (" 5 , 2 ", (5, 2)), ("0", (0,))]
)
def test_layers_are_given_as_ranges(text, numbers):
    """In the order in which they are written."""
    result = CliRunner().invoke(echo, ["--moe-layers", text, "--hidden-layers", "9"])
    assert result.output == f"{numbers} 9\n"
    assert CliRunner().invoke(echo, []).output == f"{Layers().model_layer} None\n"


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1,1", "0-999999999", "1;2"])
def test_layers_that_cannot_be_are_a_usage_error(text):
    """Exit code 2, and how to write it."""
    result = CliRunner().invoke(echo, ["--moe-layers", text])
    assert result.exit_code == 2
    assert "Invalid value for '--moe-layers'" in result.output


def test_progress_is_told_now_and_then(capsys, monkeypatch):
    """Not more often than asked for; in percent where the whole is known."""
    clock = iter([0.0, 1.0, 2.5, 3.0, 5.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    told = progress("reading a", every_s=2.0)
    for done, total in ((10, 100), (25, 100), (30, 100), (5000, None)):
        told(done, total)
    assert capsys.readouterr().err == "reading a: 25%\nreading a: 5,000\n"
