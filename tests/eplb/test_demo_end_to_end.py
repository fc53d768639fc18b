"""The whole loop with real processes: store, daemon and ranks, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MARK = "DEMO_TEST_MARK"


def command(*arguments: str) -> list[str]:
    """The demo as a user starts it."""
    return [sys.executable, "-m", "eplb.cli.main", "demo", *arguments]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )


def test_two_placements_meet_the_limits_and_no_token_is_wrong(shared_data):
    """Placed <= .35 x start, shifted >= 1.8 x placed, replaced <= .6 x shifted, of the excess by the runtime's own counters; every output equals the reference."""
    done = demo("--json", "--seed", "0", "--trace", str(shared_data / "gptoss20b_decode.npz"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    start, placed, shifted, replaced = (
        report[f"ratio_{name}"] - 1 for name in ("start", "placed", "shifted", "replaced")
    )
    assert placed <= 0.35 * start
    assert shifted >= 1.8 * placed
    assert replaced <= 0.6 * shifted
    assert min(report["steps_read"].values()) >= 50
    assert report["output_mismatches"] == 0
    assert report["tokens_sent"] == report["tokens_combined"] == report["tokens"] * 4 * 6
    assert report["outputs_checked"] == report["tokens"] * 6
    assert report["map_version"] == 2
    assert report["waves"] > 2  # two placements, at least one of them in parts
    assert report["moved_bytes"] == report["moves"] * 3 * 64 * 96 * 4
    wanted = ["trace", "layers", "batch", "store", "seed", "step_ms_median", "step_ms_worst"]
    assert set(wanted) <= set(report)
    assert report["limits_binding"] is True
    assert 0 < report["gate_ms_worst"] <= report["step_ms_worst"]  # a step's time holds the gate before it
    assert report["last_decision_before_pause"].partition(":")[0] not in {"", "paused"}


@pytest.mark.parametrize("fault", ["wrong-expert", "lost-token", "split-switch"])
def test_a_fault_put_into_one_rank_stops_the_run_and_is_named(fault):
    """Found by its symptoms: exit status 1, and a line on stderr that begins with the word."""
    broken = demo("--break", fault, "--json", "--trace", "synthetic")
    assert broken.returncode == 1
    assert f"error: {fault}:" in broken.stderr
    report = json.loads(broken.stdout)
    assert report["fault"] == fault
    assert (report["tokens_sent"] != report["tokens_combined"]) == (fault == "lost-token")


def marked_processes(mark: str) -> list[int]:
    """Processes that inherited the mark from the demo."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it ended meanwhile
        if f"{MARK}={mark}".encode() in environment and state != "Z":
            found.append(int(entry.name))
    return found


def wait_until_none(mark: str) -> list[int]:
    """Processes left after at most half a minute."""
    for _ in range(150):
        left = marked_processes(mark)
        if not left:
            return []
        time.sleep(0.2)
    return marked_processes(mark)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_demo(ending, tmp_path):
    """Store, daemon and ranks end with the parent, whether it is interrupted or killed."""
    mark = f"{os.getpid()}-{ending}"
    environment = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("--ranks", "4", "--trace", "synthetic"), cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        for line in running.stderr:
            if "reading 1 of 4" in line:
                break
        assert len(marked_processes(mark)) >= 4 + 3  # ranks, store and its guard, daemon
        running.send_signal(ending)
        running.communicate(timeout=60)
    assert wait_until_none(mark) == []
    assert not list(tmp_path.glob("eplb-demo-*"))
    assert running.returncode == (130 if ending is signal.SIGINT else -signal.SIGKILL)


def test_a_run_that_gets_too_little_time_says_what_it_reached():
    """The error names the stage and the daemon's last decision; JSON comes all the same, even where no step was served."""
    short = demo("--seconds", "1", "--ranks", "2", "--trace", "synthetic", "--json")
    assert short.returncode == 1
    assert "error: --seconds 1 ended" in short.stderr
    assert "last decision" in short.stderr
    assert json.loads(short.stdout)["finished"] is False
