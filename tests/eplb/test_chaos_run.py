"""Chaos for real, once over all kinds of faults, and once without each protection: the first must find nothing, the others must not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import redis

from eplb.chaos.faults import KINDS
from eplb.chaos.judge_steps import COUNTS, DIVERGENCES, MISMATCHES
from eplb.chaos.watch import PROTOCOL_STATES

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0
_JUDGES_OWN = ("judge_shares", "judge_steps", "judge_store", "load", "messages")


def chaos(*arguments):
    """Exit status, the JSON objects on stdout, and what was said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "eplb.chaos", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.slow
def test_nothing_is_lost_under_faults_of_all_kinds():
    """Each kind once, the leader killed in each state, waves that move and one of shares alone; the judge loads neither the agent nor the daemon."""
    status, reports, said = chaos("--short", "--seconds", "180")
    assert status == 0, said
    report = reports[0]
    assert report["tally"]["counts"] == dict.fromkeys(COUNTS, 0)
    assert set(report["kinds"]) == set(KINDS)
    assert set(report["kinds"]["kill_leader"]["details"]) == set(PROTOCOL_STATES)
    assert report["dispatch"] == "weighted"
    assert 0 < report["tally"]["shares_only"] < report["tally"]["waves"]
    assert report["tally"]["tokens"] == report["tally"]["outputs"] > 0
    assert report["lives"] >= 3
    judges_own = {f"eplb.chaos.{name}" for name in _JUDGES_OWN}
    model = {"eplb.demo", "eplb.demo.model", "eplb.demo.reference"}
    assert set(report["tally"]["loaded"]) == {"eplb", "eplb.chaos", *judges_own, *model}


@pytest.mark.slow
def test_without_a_protection_the_judge_finds_what_it_is_for():
    """No vote, no term checks, an engine that keeps its old shares: maps diverge; no digests: outputs are wrong."""
    each = [word for name in ("vote", "digests", "terms", "shares") for word in ("--without", name)]
    status, reports, said = chaos(*each, "--seconds", "120")
    assert status == 1, said
    found = {report["without"]: {finding["word"] for finding in report["findings"]} for report in reports}
    assert DIVERGENCES in found["vote"], said
    assert MISMATCHES in found["digests"], said
    assert found["terms"] == {DIVERGENCES}, said
    assert found["shares"] == {DIVERGENCES}, said
    told = [finding["sentence"] for finding in reports[-1]["findings"]]
    assert any("served one map with other shares" in sentence for sentence in told), said


DRIVER = """
import sys, time
from pathlib import Path
from eplb.chaos.processes import StoreProcess, start_fork_server
if __name__ == "__main__":
    start_fork_server()
    StoreProcess(Path(sys.argv[1])).start()
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_the_store_does_not_outlive_a_driver_that_is_killed(tmp_path):
    script, folder = tmp_path / "driver.py", Path(tempfile.mkdtemp(prefix="chaos-"))
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert driver.stdout.readline() == b"up\n"
        with redis.Redis(unix_socket_path=str(folder / "s")) as client:
            store = client.info("server")["process_id"]
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
        limit_s = time.monotonic() + 30.0
    while Path(f"/proc/{store}/exe").exists() and time.monotonic() < limit_s:
        time.sleep(0.05)
    shutil.rmtree(folder)
    assert not Path(f"/proc/{store}/exe").exists()
