"""The two users that we ship can do what they need on a real server, and nothing else."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError

from collectors.facts import Kind, Phase, PoolFacts
from collectors.keys import FRAME_FIELD, control_key, desired_key, lease_key, live_key, load_key, log_key
from collectors.publisher import Publisher
from collectors.recorder import Recorder
from eplb.errors import StoreError
from eplb.store.client import Store
from eplb.store.lease import Lease

ACL = Path(__file__).parents[2] / "configs" / "redis" / "users.acl"
pytestmark = pytest.mark.redis


def start(folder: Path, acl: str) -> subprocess.Popen:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not on PATH")
    (folder / "users.acl").write_text(acl)
    options = ["--port", "0", "--unixsocket", str(folder / "s"), "--save", "", "--dir", str(folder)]
    return subprocess.Popen(
        [binary, *options, "--aclfile", str(folder / "users.acl")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def wait_for(path: Path) -> None:
    for _ in range(200):
        with socket.socket(socket.AF_UNIX) as attempt:
            if attempt.connect_ex(str(path)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("redis-server does not listen")


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="eplb-") as name:
        yield Path(name)


@pytest.fixture
def urls(folder):
    """URLs of the users, by name, on a server that has only these two."""
    acl = ACL.read_text()
    for user in ("rank", "daemon"):
        acl = acl.replace(
            f"{user.upper()}_PASSWORD_SHA256", hashlib.sha256(f"{user}-secret".encode()).hexdigest()
        )
    server = start(folder, acl)
    try:
        wait_for(folder / "s")
        yield {user: f"unix://{user}:{user}-secret@{folder / 's'}" for user in ("rank", "daemon")}
    finally:
        server.terminate()
        server.communicate(timeout=10)


@pytest.fixture
def rank(urls):
    with redis.Redis.from_url(urls["rank"], protocol=2) as client:
        yield client


@pytest.fixture
def daemon(urls):
    with Store(urls["daemon"], "p") as store:
        yield store


def test_the_file_does_not_load_before_passwords_are_put_in(folder):
    """An unedited file must not open a door."""
    server = start(folder, ACL.read_text())
    output, _ = server.communicate(timeout=10)
    assert server.returncode != 0
    assert b"password hash must be exactly 64" in output


def test_the_default_user_is_off(urls, folder):
    """Nobody comes in without a name."""
    with redis.Redis(unix_socket_path=str(folder / "s")) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_a_rank_does_its_work(rank, daemon):
    """Append a frame and trim by time, write its live record, read desired and control."""
    daemon.write_desired(1, {"map": b"m"})
    rank.xadd(load_key("p", 0), {FRAME_FIELD: b"x"}, minid="1-0", approximate=True)
    rank.hset(live_key("p"), "0", b"record")
    assert rank.hgetall(desired_key("p")) == {b"term": b"1", b"map": b"m"}
    assert rank.hmget(desired_key("p"), "term", "offer") == [b"1", None]
    assert rank.hgetall(control_key("p")) == {}


def test_the_publisher_works_as_a_rank(urls, daemon):
    """The real publisher needs no more than this user may."""
    facts = PoolFacts("p", 1, 1, 2, 2, 1, (0,))
    recorder = Recorder(facts, 0, Kind.ROUTED)
    recorder.register(1, -1)
    recorder.record_step(0, Phase.DECODE, [[1, 2]], 3)
    publisher = Publisher(recorder, url=urls["rank"], node=0)
    publisher.start()
    publisher.stop(timeout_s=10.0)
    assert publisher.stats.last_error == ""
    assert len(daemon.tail_load([0])) == publisher.stats.published >= 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hset", (desired_key("p"), "map", "m")),
        ("hset", (control_key("p"), "mode", "auto")),
        ("hset", ("elsewhere", "a", "b")),
        ("set", (lease_key("p"), "9:me")),
        ("xrange", (load_key("p", 0),)),
        ("xadd", (log_key("p"), {"r": "x"})),
        ("delete", (load_key("p", 0),)),
        ("eval", ("return 1", 0)),
        ("flushall", ()),
        ("config_get", ("*",)),
        ("keys", ("*",)),
    ],
)
def test_a_rank_cannot_steer_read_others_or_destroy(rank, name, arguments):
    """It cannot change a map, take the lease, read frames, or run anything."""
    with pytest.raises(NoPermissionError):
        getattr(rank, name)(*arguments)


def test_the_daemon_does_its_work(daemon, rank):
    """Every call of the store and the lease, as this user."""
    rank.xadd(load_key("p", 0), {FRAME_FIELD: b"x"})
    rank.hset(live_key("p"), "0", b"record")
    lease = Lease(daemon, 30.0, "me")
    term = lease.acquire()
    assert lease.renew()
    daemon.write_desired(term, {"map": b"m"})
    daemon.write_control({"paused": b"1"})
    daemon.append_log(b"{}")
    assert daemon.read_log(1) == [b"{}"]
    assert daemon.read_live() == {0: b"record"}
    assert daemon.read_control() == {"paused": b"1"}
    assert [payload for _, _, payload in daemon.tail_load([0])] == [b"x"]
    assert daemon.tail_load([0]) == []
    assert daemon.backlog_ms([0]) == 0
    lease.release()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("xadd", (load_key("p", 0), {"f": "x"})),
        ("hset", (live_key("p"), "0", "x")),
        ("delete", (live_key("p"),)),
        ("flushall", ()),
        ("config_set", ("save", "1 1")),
        ("set", ("elsewhere", "x")),
    ],
)
def test_the_daemon_cannot_speak_for_ranks_or_destroy(daemon, name, arguments):
    """Frames and live records come from ranks only."""
    with pytest.raises(NoPermissionError):
        getattr(daemon.redis, name)(*arguments)


def test_a_user_that_may_not_is_told_where_to_look(urls):
    """The daemon started with the rank's URL gets one sentence."""
    with Store(urls["rank"], "p") as store, pytest.raises(StoreError, match=r"configs/redis/users\.acl"):
        store.append_log(b"{}")
