"""``eplb generate``: what it writes can be read and inspected, says that it is synthetic, and is measured, not asserted."""

import json

import numpy as np
import pytest

from eplb.cli.main import main
from eplb.formats import registry
from eplb.formats.facts import Layers

SHAPE = ("--layers", "4", "--experts", "32", "--top-k", "4", "--tokens", "32")


def generated(capsys, *arguments):
    """Standard output of one run."""
    assert main(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_file_is_a_trace_of_the_model(tmp_path, capsys):
    """Rows have the model's numbers; every sequence its domain and phase."""
    path = tmp_path / "trace.npz"
    out = generated(capsys, "--model", "deepseek-v2-lite", "--sequences", 12, "--tokens", 16, "-o", path)
    assert out.startswith(f"SYNTHETIC  {path}: ")
    file = registry.read_trace(path)
    assert file.layers == Layers(tuple(range(1, 27)), 27)
    assert (file.trace.layers, file.trace.experts) == (26, 64)
    assert set(file.domain) == {"synthetic-0", "synthetic-1", "synthetic-2"}
    assert set(file.phase) == {"prefill", "decode"}
    assert file.synthetic.startswith("eplb generate: ")


def test_inspect_says_that_it_is_synthetic_and_finds_nothing_wrong(tmp_path, capsys):
    """Picks and counts alike."""
    for name, amount in (("picks", ("--sequences", 48)), ("counts", ("--slices", 24))):
        path = tmp_path / f"{name}.npz"
        generated(capsys, *SHAPE, *amount, "--no-measure", "-o", path)
        assert main(["inspect", str(path), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [note["code"] for note in report["notes"]] == ["synthetic"]
        assert report["suspicions"] == []


def test_the_same_seed_gives_the_same_file(tmp_path, capsys):
    """Byte by byte, picks and counts; another seed another one."""
    for amount in ("--sequences", "--slices"):
        files = []
        for at, seed in enumerate((5, 5, 6)):
            path = tmp_path / f"{at}.npz"
            generated(capsys, *SHAPE, amount, 12, "--seed", seed, "--no-measure", "-o", path)
            files.append(path.read_bytes())
        assert files[0] == files[1]
        # The header of the archive names the seed, so look at the numbers.
        key = "picks" if amount == "--sequences" else "counts"
        one, other = (np.load(tmp_path / f"{at}.npz")[key] for at in (1, 2))
        assert one.shape != other.shape or (one != other).any()


def test_the_default_name_says_synthetic(tmp_path, capsys, monkeypatch):
    """Nobody finds it later and takes it for a recording."""
    monkeypatch.chdir(tmp_path)
    generated(capsys, "--model", "gpt-oss-20b", "--sequences", 2, "--tokens", 4, "--seed", 3)
    assert [each.name for each in tmp_path.iterdir()] == ["synthetic-gpt-oss-20b-3.npz"]


def test_json_shows_what_was_measured_beside_the_targets(tmp_path, capsys):
    """A flat trace misses the target of its hottest expert, and says so."""
    big = ("--layers", 4, "--experts", 256, "--top-k", 8, "--sequences", 24, "--tokens", 64)
    reports = [
        json.loads(generated(capsys, *big, *more, "--json", "-o", tmp_path / "t.npz"))["statistics"]
        for more in ((), ("--skew", 0, "--domain-spread", 0))
    ]
    calibrated, flat = (report["hottest_expert"] for report in reports)
    assert calibrated["target"] == flat["target"] == [5.6, 8.1]
    assert flat["fits"] is False
    assert flat["measured"] < calibrated["measured"]
    assert reports[0]["rank_ratio_low"]["target"] is None


def test_counts_of_single_tokens_are_not_held_against_noise_of_requests(tmp_path, capsys):
    """And pairs cannot be seen in them."""
    out = generated(capsys, *SHAPE, "--slices", 12, "--json", "-o", tmp_path / "t.npz")
    found = json.loads(out)["statistics"]
    assert found["slice_noise"]["target"] is None
    assert found["pair_lift"]["measured"] is None


def test_one_phase_can_be_asked_for(tmp_path, capsys):
    """Then phases cannot be compared."""
    path = tmp_path / "t.npz"
    out = generated(capsys, *SHAPE, "--phase", "decode", "--sequences", 12, "--json", "-o", path)
    assert json.loads(out)["statistics"]["phase_cosine"]["measured"] is None
    assert set(registry.read_trace(path).phase) == {"decode"}


def test_a_shape_by_hand_may_say_which_layers_it_is(tmp_path, capsys):
    """As everywhere else."""
    path = tmp_path / "t.npz"
    generated(
        capsys,
        *SHAPE,
        "--moe-layers",
        "2-5",
        "--hidden-layers",
        6,
        "--sequences",
        4,
        "--no-measure",
        "-o",
        path,
    )
    assert registry.read_trace(path).layers == Layers((2, 3, 4, 5), 6)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "give --model, or all of --layers"),
        (("--model", "kimi-k2", "--layers", "3"), "leave the others out"),
        (("--model", "kimi-k2", "--sequences", "3", "--slices", "3"), "give one of them"),
        (("--model", "unknown"), "'unknown' is not one of 'deepseek-v3'"),
        ((*SHAPE, "--skew", "9"), "9.0 is not in the range"),
    ],
)
def test_what_cannot_be_is_a_usage_error(arguments, part, capsys):
    """Exit code 2, and what to give instead."""
    assert main(["generate", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    """Exit code 1."""
    path = tmp_path / "missing" / "t.npz"
    assert main(["generate", *SHAPE, "--sequences", "2", "-o", str(path)]) == 1
    assert f"{path}: cannot be written" in capsys.readouterr().err
