"""The embedded store lives exactly as long as the process that opened it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import redis

from eplb.errors import StoreUnavailable
from eplb.store.embedded import EmbeddedStore

OWNER = """
import sys, time
from eplb.store.embedded import EmbeddedStore
store = EmbeddedStore().start()
print(store.url, flush=True)
time.sleep(600)
"""


def test_it_serves_on_a_private_unix_socket_and_writes_nothing_to_disk():
    """The server has no TCP port, no snapshots and no append-only file."""
    with EmbeddedStore() as store, redis.Redis.from_url(store.url) as client:
        client.set("k", "v")
        assert client.get("k") == b"v"
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("save")["save"] == ""
        assert client.config_get("appendonly")["appendonly"] == "no"
        socket = Path(store.url.removeprefix("unix://"))
        assert socket.is_socket()
    assert not socket.parent.exists()


def test_it_serves_on_the_path_it_is_given_and_refuses_one_in_use(monkeypatch):
    """Ranks can be told the URL before the store runs, and two stores do not share a path."""
    with tempfile.TemporaryDirectory(prefix="eplb-") as folder:
        path = Path(folder) / "store.sock"
        with EmbeddedStore(socket_path=path) as store, redis.Redis.from_url(f"unix://{path}") as client:
            assert store.url == f"unix://{path}"
            assert client.ping()
            monkeypatch.setattr("tempfile.tempdir", folder)
            with pytest.raises(StoreUnavailable, match="already in use"):
                EmbeddedStore(socket_path=path).start()
            assert client.ping()
            assert [entry.name for entry in Path(folder).iterdir()] == ["store.sock"]
        assert not path.exists()


def test_its_url_is_an_error_before_start_and_after_stop():
    """A store that does not run has no URL."""
    store = EmbeddedStore()
    with pytest.raises(StoreUnavailable, match="not running"):
        _ = store.url
    with store:
        pass
    store.stop()
    with pytest.raises(StoreUnavailable, match="not running"):
        _ = store.url


def test_a_socket_path_that_is_too_long_is_named(tmp_path, monkeypatch):
    """The operating system's limit on socket paths gives a sentence with what to do."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(StoreUnavailable, match="TMPDIR"):
        EmbeddedStore().start()
    assert list(deep.iterdir()) == []


@pytest.mark.slow
def test_it_dies_with_a_parent_that_is_killed():
    """SIGKILL of the owner leaves neither server nor folder behind."""
    root = Path(__file__).parents[2]
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=root, stdout=subprocess.PIPE, text=True)
    socket = Path(owner.stdout.readline().strip().removeprefix("unix://"))
    with redis.Redis(unix_socket_path=str(socket)) as client:
        server_pid = client.info("server")["process_id"]
    ended = os.pidfd_open(server_pid)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert select.select([ended], [], [], 30.0)[0], "the server outlived its parent"
    os.close(ended)
    for _ in range(300):
        if not socket.parent.exists():
            break
        select.select([], [], [], 0.1)
    assert not socket.parent.exists()
