"""The HTTP side over a real socket."""

from __future__ import annotations

import json
import socket
import threading

import httpx
import numpy as np
import pytest
from snapshots import reading, snapshot

from eplb.api import ApiServer, create_app, state_json, why_not_ready
from eplb.errors import ConfigError


class Daemon:
    """What the loop gives the API: snapshots and the age of its last cycle, set by the test."""

    def __init__(self):
        self.snapshots = ()
        self.loop_age_s = 0.0


@pytest.fixture
def daemon():
    return Daemon()


@pytest.fixture
def client(daemon):
    app = create_app(lambda: daemon.snapshots, lambda: daemon.loop_age_s, live_within_s=10.0)
    with ApiServer(app, "127.0.0.1", 0) as server, httpx.Client(base_url=server.url) as connected:
        yield connected


def test_metrics_are_served_in_the_text_format(client, daemon):
    """The newest snapshot at each scrape."""
    daemon.snapshots = (snapshot(reading([[3, 1]])),)
    first = client.get("/metrics")
    daemon.snapshots = (snapshot(reading([[1, 1]])),)
    second = client.get("/metrics")

    assert first.headers["content-type"].startswith("text/plain")
    assert 'eplb_imbalance_ratio{layer="0",phase="decode",pool="a"} 1.5' in first.text
    assert 'eplb_imbalance_ratio{layer="0",phase="decode",pool="a"} 1.0' in second.text


def test_the_daemon_is_live_as_long_as_its_loop_turns(client, daemon):
    """Liveness is the age of the last loop and nothing else: a store that is away is no reason to restart."""
    daemon.snapshots = (snapshot(store_up=False),)
    assert client.get("/livez").status_code == 200

    daemon.loop_age_s = 10.1
    answer = client.get("/livez")
    assert answer.status_code == 503
    assert answer.json() == {"alive": False, "loop_age_s": 10.1, "limit_s": 10.0}


def test_the_daemon_is_ready_after_its_first_cycle_while_the_store_answers(client, daemon):
    """A standby is as ready as the leader."""
    assert client.get("/readyz").status_code == 503

    daemon.snapshots = (snapshot(leader=False),)
    assert client.get("/readyz").json() == {"ready": True, "reason": None}

    daemon.snapshots = (snapshot(), snapshot(pool="b", store_up=False))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "the store does not answer for: b" in answer.json()["reason"]
    assert why_not_ready(()) == "no cycle has ended yet"


def test_state_shows_the_whole_snapshot_as_json(client, daemon):
    """Arrays are lists, NaN is null, integers beyond 2^53 are exact."""
    big = 2**63 + 1
    daemon.snapshots = (
        snapshot(
            reading([[0, 0], [9, 1]]),
            counters={"bytes": big},
            decision={"code": "cooldown", "ratios": np.array([1.5, np.nan]), "digest": np.uint64(big)},
            stale_ranks=(3,),
        ),
    )

    answer = client.get("/state")
    pool = answer.json()["pools"][0]

    assert answer.headers["content-type"] == "application/json"
    assert pool["readings"][0]["ratio_by_layer"] == [None, 1.8]
    assert pool["readings"][0]["layer_rank_load"][1] == [1.8, 0.2]
    assert pool["counters"]["bytes"] == pool["decision"]["digest"] == big
    assert pool["decision"]["ratios"] == [1.5, None]
    assert pool["stale_ranks"] == [3]
    assert pool["readings"][0]["step_us"] is None


def test_state_is_strict_json():
    """No reader has to understand NaN."""

    def refuse(word):
        raise AssertionError(word)

    text = state_json((snapshot(reading([[0, 0], [0, 0]]), newest_age_s=float("inf")),))

    assert json.loads(text, parse_constant=refuse)["pools"][0]["newest_age_s"] is None


def test_state_of_one_pool_can_be_asked_for(client, daemon):
    """An unknown one is named with those that are known."""
    daemon.snapshots = (snapshot(), snapshot(pool="b"))

    assert [pool["pool"] for pool in client.get("/state", params={"pool": "b"}).json()["pools"]] == ["b"]
    answer = client.get("/state", params={"pool": "c"})
    assert (answer.status_code, answer.json()) == (404, {"error": "no pool 'c'; known: a, b"})


def test_the_api_changes_nothing(client):
    """Other paths and methods are refused."""
    assert client.get("/nothing").status_code == 404
    assert client.post("/state").status_code == 405


def test_a_fault_in_one_request_does_not_end_the_server(daemon):
    """The next request is answered."""

    def snapshots():
        if daemon.loop_age_s:
            raise RuntimeError("broken snapshot")
        return ()

    app = create_app(snapshots, lambda: 0.0, live_within_s=1.0)
    with ApiServer(app, "127.0.0.1", 0) as server:
        daemon.loop_age_s = 1.0
        assert httpx.get(f"{server.url}/state").status_code == 500
        daemon.loop_age_s = 0.0
        assert httpx.get(f"{server.url}/state").json() == {"pools": []}


def test_port_0_gives_a_real_port_and_stopping_frees_it():
    """The thread ends and the port can be used again, while a client still holds a connection."""
    app = create_app(tuple, lambda: 0.0, live_within_s=1.0)
    server = ApiServer(app, "127.0.0.1", 0)
    server.start()
    with httpx.Client(base_url=server.url) as held:
        assert held.get("/livez").status_code == 200
        server.stop()
        server.stop()

    assert server.port > 0
    assert "eplb-api" not in {thread.name for thread in threading.enumerate()}
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_a_server_that_never_started_can_be_stopped():
    """Its port is freed."""
    server = ApiServer(create_app(tuple, lambda: 0.0, live_within_s=1.0), "127.0.0.1", 0)
    server.stop()

    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_a_port_in_use_is_refused_with_what_to_do():
    """At construction, before anything else begins."""
    app = create_app(tuple, lambda: 0.0, live_within_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*; set http\.host"):
            ApiServer(app, "127.0.0.1", port)


def test_a_host_that_does_not_exist_is_refused():
    """A name that cannot be resolved is a setting that is wrong."""
    app = create_app(tuple, lambda: 0.0, live_within_s=1.0)
    with pytest.raises(ConfigError, match=r"cannot listen on 256\.0\.0\.1:0"):
        ApiServer(app, "256.0.0.1", 0)
