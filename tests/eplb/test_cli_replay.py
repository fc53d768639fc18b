"""eplb replay: the table on stdout, progress on stderr, exit codes 0, 1 and 2."""

import json

import numpy as np
import pytest
from replay_world import recording

from eplb.cli.main import main

POOL = ["--ranks", "4", "--slots-per-rank", "3", "--steps", "32", "--window-steps", "4", "--running", "8"]


@pytest.fixture
def trace(tmp_path):
    held = recording()
    np.savez(tmp_path / "t.npz", picks=held.picks, offsets=held.offsets, domain=np.array(held.domain))
    return str(tmp_path / "t.npz")


def test_replay_prints_a_table_and_says_what_it_is(trace, capsys):
    """Every policy has a row on every machine; the first line is the label."""
    chosen = ["--policy", "never", "--policy", "every:2", "--mix", "daily", "--seed", "3"]
    assert main(["replay", trace, *POOL, *chosen]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "recorded picks, simulated schedule"
    assert out.count("\nevery:2 ") == 2
    assert "seed 3: 8 of 8 windows" in err


def test_replay_as_json_with_arrivals_from_a_file(trace, tmp_path, capsys):
    """The arrivals' own times and lengths; stdout is one JSON object."""
    rows = "".join(f"2023-11-16 18:15:{second:02}.0,9,{1 + second % 7}\n" for second in range(60))
    (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    arguments = ["--arrivals", str(tmp_path / "a.csv"), "--step-ms", "500", "--policy", "never", "--json"]
    assert main(["replay", trace, *POOL, *arguments]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schedule"]["arrivals"] == 60
    assert body["accounts"][0]["steps"] == 32


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--policy", "sometimes"], 1, "policy 'sometimes' is unknown"),
        (["--first", "art"], 1, "no domain 'art'"),
        (["--mix", "weekly"], 2, "'weekly' is not one of"),
        (["--window-steps", "64"], 1, "32 steps are less than one window of 64"),
    ],
)
def test_what_is_wrong_is_named(trace, capsys, arguments, code, words):
    """2 for the command line itself, 1 for what it asks of this trace."""
    assert main(["replay", trace, *POOL, *arguments]) == code
    assert words in capsys.readouterr().err


def test_a_trace_without_picks_is_refused(tmp_path, capsys):
    """Counts cannot be put into another order."""
    np.savez(tmp_path / "c.npz", counts=np.ones((4, 2, 8), dtype=np.int64))
    assert main(["replay", str(tmp_path / "c.npz"), *POOL]) == 1
    assert "picks" in capsys.readouterr().err


def test_the_format_of_the_trace_can_be_named(trace, capsys):
    """A name that is none is usage."""
    assert main(["replay", trace, *POOL, "--policy", "never", "--from", "npz"]) == 0
    assert main(["replay", trace, *POOL, "--policy", "never", "--from", "nothing"]) == 2
    assert "no format is called 'nothing'" in capsys.readouterr().err
