"""Rules of keys, state and logs of the real daemon: signed end to end, restarted with its state, alive on a full disk."""

import json
import resource
import signal

import httpx
import pytest
from daemon_world import LIMIT_S, Running, eventually, pool_config
from pool_world import FACTS, Ranks

from eplb.agent.signing import RING, read_keys
from eplb.last_good import last_good_path, read_last_good
from eplb.store.client import Store
from eplb.store.control import set_paused


@pytest.fixture
def store(embedded_store_url):
    with Store(embedded_store_url, FACTS.pool) as opened:
        opened.redis.flushall()
        yield opened


def key_file(path, key):
    path.write_text(f"{key * 32}\n")
    path.chmod(0o600)
    return path


@pytest.mark.slow
def test_daemon_and_ranks_with_one_key_move_a_map_and_with_two_do_not(store, tmp_path):
    """A daemon with another key, or none, is refused by the ranks; with theirs, named by EPLB_MAP_KEY_FILE, the map moves."""
    ours, foreign = key_file(tmp_path / "ours.key", "ab"), key_file(tmp_path / "foreign.key", "cd")
    path = pool_config(tmp_path / "c.yaml", store.url)
    with RING.using(read_keys(ours)), Ranks(store.url) as ranks:
        with Running(tmp_path / "none", "--config", path) as daemon:
            # Without a key the daemon reads what is signed, so it gets as far as an offer.
            assert "is not signed" in daemon.wait_for("offer_not_read")["reason"]
            assert daemon.end() == 0
        with Running(
            tmp_path / "foreign", "--config", path, env={"EPLB_MAP_KEY_FILE": str(foreign)}
        ) as daemon:
            refused = daemon.wait_for("records_refused")
            assert "a key that is not in the key file" in refused["reason"]
            assert daemon.end() == 0
        assert ranks.version() == 0
        with Running(tmp_path / "ours", "--config", path, env={"EPLB_MAP_KEY_FILE": str(ours)}) as daemon:
            eventually(lambda: ranks.version() >= 1, daemon.log_path.read_text)
            assert daemon.end() == 0
            assert "abab" not in daemon.log_path.read_text()


def test_a_bad_key_file_ends_the_daemon_with_a_reason(store, tmp_path):
    """Before it leads anything."""
    key = key_file(tmp_path / "k", "ab")
    key.chmod(0o644)
    path = pool_config(tmp_path / "c.yaml", store.url, map_key_file=str(key))
    with Running(tmp_path / "d", "--config", path) as daemon:
        assert daemon.process.wait(LIMIT_S) == 1
        assert "chmod 600" in daemon.log_path.read_text()


@pytest.mark.slow
def test_a_restarted_daemon_restores_an_emptied_store_from_its_file_and_outlives_a_full_disk(store, tmp_path):
    """Nobody is left who remembers: the daemon was killed, the store emptied, the ranks are gone. Term, version and pause come
    from the file. Meanwhile the disk was full: the file stayed whole, the metric said so, and the log's lines were dropped.
    """
    path = pool_config(tmp_path / "c.yaml", store.url, state_folder=str(tmp_path / "state"))
    with Ranks(store.url) as ranks, Running(tmp_path / "a", "--config", path) as daemon:
        base = daemon.wait_for("serving")["http"]
        eventually(lambda: ranks.version() >= 1 and "settled" in daemon.codes(), daemon.log_path.read_text)
        good = eventually(lambda: served(tmp_path, ranks))
        before = last_good_path(tmp_path / "state", FACTS.pool).read_bytes()
        _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (100, hard))
        set_paused(store, paused=True)
        eventually(lambda: 'eplb_state_saved{pool="main"} 0.0' in httpx.get(f"{base}/metrics").text)
        assert httpx.get(f"{base}/livez").status_code == 200
        assert last_good_path(tmp_path / "state", FACTS.pool).read_bytes() == before
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        eventually(lambda: 'eplb_state_saved{pool="main"} 1.0' in httpx.get(f"{base}/metrics").text)
        assert daemon.process.poll() is None
        daemon.kill()
    store.redis.flushall()
    with Running(tmp_path / "b", "--config", path) as daemon:
        read = daemon.wait_for("last_good_read")
        led = daemon.wait_for("leading")
        eventually(lambda: store.read_control().get("paused") == b"1")
        assert daemon.end() == 0
    assert (read["map_version"], read["paused"]) == (good.map_version, True)
    assert led["term"] == read["term"] + 1 > good.term


def served(tmp_path, ranks):
    """The file's record, once it is the map that the ranks serve."""
    record, _ = read_last_good(tmp_path / "state", FACTS)
    rows = json.dumps(ranks.agents[0].live.tolist())
    return record if record is not None and json.dumps(record.rows) == rows else None


def test_a_log_that_cannot_be_written_does_not_end_the_daemon(store, tmp_path):
    """A full disk under stderr: lines are lost, serving goes on, and the end is orderly."""
    path = pool_config(tmp_path / "c.yaml", store.url)
    with Running(tmp_path / "d", "--config", path) as daemon:
        base = daemon.wait_for("serving")["http"]
        daemon.wait_for("leading")
        _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        size = daemon.log_path.stat().st_size
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (size, hard))
        set_paused(store, paused=True)
        eventually(lambda: httpx.get(f"{base}/state").json()["pools"][0]["decision"]["code"] == "paused")
        assert daemon.log_path.stat().st_size == size
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(LIMIT_S) == 0
