"""Rules of a store that answers and refuses: each refusal says what to do, and measuring goes on where nothing must be written."""

from contextlib import contextmanager

import pytest
import redis
import structlog
from pool_world import FACTS, make_pool, serve
from redis.exceptions import MovedError, OutOfMemoryError, ResponseError

from eplb.errors import StoreError
from eplb.store.advice import refusal_advice
from eplb.store.client import Store

pytestmark = pytest.mark.redis


@contextmanager
def full(url):
    """A store that has reached its maxmemory."""
    with redis.Redis.from_url(url) as server:
        before = server.config_get("maxmemory")["maxmemory"]
        server.config_set("maxmemory", 1)
        try:
            yield
        finally:
            server.config_set("maxmemory", before)


@contextmanager
def replica(url):
    """A store that was made a replica, as after a failover."""
    with redis.Redis.from_url(url) as server:
        server.replicaof("127.0.0.1", 1)
        try:
            yield
        finally:
            server.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    ("fault", "words"), [(full, "it is full: raise maxmemory"), (replica, "the primary")]
)
def test_a_write_that_is_refused_says_what_to_do(store_url, fault, words):
    """Both by a script's write and by a plain one."""
    with Store(store_url, "p") as store:
        store.write_control({"paused": b"0"})
        with fault(store_url):
            with pytest.raises(StoreError, match=words):
                store.write_control({"paused": b"1"})
            with pytest.raises(StoreError, match=words):
                store.append_log(b"{}")
        assert store.read_control() == {"paused": b"0"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OutOfMemoryError("command not allowed"), "raise maxmemory"),
        (MovedError("3999 127.0.0.1:6381"), "one node of a cluster"),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots"), "the server's log"),
        (
            ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
            "delete that key",
        ),
        (ResponseError("unknown command 'XADD'"), "Redis 6.2 or later"),
    ],
)
def test_each_refusal_has_its_own_next_step(error, words):
    """An old server is only the last guess."""
    assert words in refusal_advice(error)


def test_a_full_store_is_said_once_and_the_cycles_go_on(store_url, tmp_path):
    """Nothing is decided by the decision log, so a log that takes no record must not blind the daemon; what waited is sent later."""
    pool = make_pool(store_url, tmp_path)
    with structlog.testing.capture_logs() as events, Store(store_url, FACTS.pool) as store:
        try:
            serve(pool, lambda snapshot: snapshot.leader)
            pool.cycle()
            before = len(store.read_log(100))
            with full(store_url):
                codes = {pool.cycle().decision["code"] for _ in range(3)}
            pool.cycle()
            after = len(store.read_log(100))
        finally:
            pool.close()
    assert codes == {"not_enough_data"}
    assert after == before + 4
    told = [event["event"] for event in events if event["event"].startswith("decisions_")]
    assert told == ["decisions_not_logged", "decisions_logged_again"]
