"""Rules of `eplb run` as a real process: it serves, reports, survives a store that goes away, and ends on SIGTERM."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from daemon_world import LIMIT_S, Running, environment, eventually

from eplb.store.client import Store

CONFIG = {
    "cycle_s": 0.2,
    "http": {"port": 0},
    "store": {"embedded": True},
    "pools": [
        {
            "name": name,
            "topology": {"ranks": 4, "nodes": 2, "slots_per_rank": 3},
            "model": {"experts": 8, "top_k": 2, "moe_layers": "3-5"},
            "kind": "received_slots",
            "phases": [phase],
        }
        for name, phase in (("prefill", "prefill"), ("decode", "decode"))
    ],
}


def write(path, **changes):
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return path


@pytest.mark.slow
def test_one_daemon_serves_two_pools_and_ends_on_sigterm(tmp_path):
    """Both pools are led and shown on every endpoint; SIGTERM gives exit code 0 and nothing on stdout."""
    with Running(tmp_path, "--config", str(write(tmp_path / "c.yaml"))) as daemon:
        url = daemon.wait_for("serving")["http"]
        eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
        eventually(lambda: all(pool["leader"] for pool in httpx.get(f"{url}/state").json()["pools"]))
        pools = httpx.get(f"{url}/state").json()["pools"]
        metrics = httpx.get(f"{url}/metrics").text
        assert httpx.get(f"{url}/livez").status_code == 200
        assert daemon.end() == 0
        stdout = daemon.process.stdout.read()
    assert [pool["pool"] for pool in pools] == ["prefill", "decode"]
    assert re.search(r'eplb_leader\{pool="decode"\} 1\.0', metrics)
    assert daemon.events()[-1]["event"] == "stopping"
    assert stdout == b""


@pytest.mark.slow
def test_no_orphan_store_after_sigkill(tmp_path):
    """The embedded store dies with a daemon that is killed outright."""
    with Running(tmp_path, "--config", str(write(tmp_path / "c.yaml"))) as daemon:
        socket = Path(daemon.wait_for("serving")["store"].removeprefix("unix://"))
        assert socket.exists()
        daemon.process.kill()
        daemon.process.wait()
        eventually(lambda: not socket.exists())


@pytest.mark.slow
def test_commands_look_at_pause_and_resume_a_running_daemon(embedded_store_url, tmp_path):
    """status, history, pause and resume work from another process through the store, with their exit codes."""
    with Store(embedded_store_url, "decode") as store:
        store.redis.flushall()
    path = write(tmp_path / "c.yaml", store={"url": embedded_store_url})

    def eplb(*arguments):
        command = [sys.executable, "-m", "eplb", *arguments, "--config", str(path), "--pool", "decode"]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)

    assert eplb("history").returncode == 3
    with Running(tmp_path, "--config", str(path)) as daemon:
        daemon.wait_for("leading")
        assert [eplb("pause").returncode, eplb("pause").returncode] == [0, 3]
        eventually(lambda: json.loads(eplb("status", "--json").stdout)["decision"]["code"] == "paused")
        assert "PAUSED" in eplb("status").stdout
        assert eplb("resume").returncode == 0
        eventually(
            lambda: json.loads(eplb("status", "--json").stdout)["decision"]["code"] == "not_enough_data"
        )
        assert "not_enough_data: no rank has reported yet" in eplb("history", "--count", "3").stdout
        assert daemon.end() == 0


@pytest.mark.slow
def test_second_daemon_stands_by_and_takes_over(embedded_store_url, tmp_path):
    """One leader at a time; when it ends, the other leads under a higher term."""
    with Store(embedded_store_url, "decode") as store:
        store.redis.flushall()
    path = str(write(tmp_path / "c.yaml", store={"url": embedded_store_url}))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Running(tmp_path / "a", "--config", path) as first:
        first.wait_for("leading")
        with Running(tmp_path / "b", "--config", path) as second:
            url = second.wait_for("serving")["http"]
            eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
            assert not any(pool["leader"] for pool in httpx.get(f"{url}/state").json()["pools"])
            assert first.end() == 0
            assert second.wait_for("leading")["term"] == 2
            assert second.end() == 0


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({"store": {"url": "http://here"}}, [], "redis://host:6379/0"),
        ({"cycle_seconds": 1}, [], "cycle_s"),
        ({}, ["--set", "pools[0].model.experts=16"], "at least 4 slots per rank"),
    ],
)
def test_bad_settings_end_with_a_reason(tmp_path, change, arguments, words):
    """A wrong store URL, an unknown key and slots that cannot hold the experts each say what to do, with exit code 1."""
    path = write(tmp_path / "c.yaml", **change)
    command = [sys.executable, "-m", "eplb", "run", "--config", str(path), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


@pytest.mark.slow
def test_a_store_that_is_not_there_is_said_and_waited_for(tmp_path):
    """The daemon stays up, is not ready, says what to do, and changes nothing."""
    path = write(tmp_path / "c.yaml", store={"url": "redis://127.0.0.1:1/0"})
    with Running(tmp_path, "--config", str(path)) as daemon:
        url = daemon.wait_for("serving")["http"]
        away = daemon.wait_for("decision")
        assert away["code"] == "store_away"
        assert "does not answer" in away["sentence"]
        assert httpx.get(f"{url}/readyz").status_code == 503
        assert httpx.get(f"{url}/livez").status_code == 200
        assert daemon.end() == 0
