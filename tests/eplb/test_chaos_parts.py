"""Rules of the parts that break things: each fault happens exactly as ordered, on real bytes, and to nothing else."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import redis
import yaml

from collectors import Kind, Recorder, decode_frame
from collectors.errors import CollectorError
from collectors.facts import Phase
from collectors.keys import FRAME_FIELD, desired_key, lease_key, live_key, load_key, log_key
from collectors.shares import all_shares
from eplb.agent.live import LiveMap
from eplb.agent.transport import ThreadTransport
from eplb.agent.wire import LiveRecord, Offer, encode_live
from eplb.chaos import clocks
from eplb.chaos.daemon_faults import ClockJump, DaemonStop, FileLimit, KillDaemon, KillLeader
from eplb.chaos.judge_steps import COUNTS
from eplb.chaos.rank_faults import (
    CORRUPT,
    DAMAGE,
    DROP,
    EXCHANGE_DELAY,
    REORDER,
    REPEAT,
    FaultyPublisher,
    FaultyTransport,
    Switchboard,
    flipped,
)
from eplb.chaos.setup import DISPATCHES, LAYERS, POOL, SLOTS_PER_RANK, TOP_K, daemon_config, run_facts
from eplb.chaos.watch import Watch
from eplb.chaos.world import World
from eplb.config import load_config
from eplb.migration import Desired, make_plan
from eplb.start_map import start_map
from eplb.store.client import Store
from eplb.store.lease import Lease

FACTS = run_facts(0).facts
DEADLINE_S = 30.0


def eventually(holds):
    limit_s = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < limit_s, "did not become true"
        time.sleep(0.01)
    return found


# --- daemons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        KillDaemon("kill_daemon", "leader at rest"),
        KillLeader("kill_leader", "staging", state="staging"),
        DaemonStop("daemon_stop", "at any point"),
        DaemonStop("daemon_stop", "before a write"),
        FileLimit("file_limit"),
        ClockJump("clock_jump", clock="wall", seconds=3600.0),
    ],
    ids=lambda fault: f"{fault.kind} {fault.detail}",
)
def test_a_fault_that_found_no_daemon_to_break_is_not_counted(fault, tmp_path):
    """The leader may be gone between the look at the store and the fault."""
    world = World(None, [], None, Watch(FACTS, str(tmp_path / "nobody")))
    fault.begin(world)
    assert fault.heal(world)
    assert fault.missed


# --- frames -------------------------------------------------------------------------------------------------------


@pytest.fixture
def frames(store_url):
    """Publishes four frames of growing counts under an order and gives what then lies in the store: numbers, None = unreadable."""

    def publish(*orders):
        faults = Switchboard()
        recorder = Recorder(FACTS, 0, Kind.RECEIVED_SLOTS, stride=1)
        recorder.register(5, -1, np.arange(1, LAYERS + 1, dtype=np.uint64))
        publisher = FaultyPublisher(recorder, url=store_url, node=0, faults=faults)
        for number in range(4):
            counts = np.full((LAYERS, SLOTS_PER_RANK), 2, dtype=np.int64)
            recorder.record_step(number, Phase.DECODE, counts, counts[0].sum() // TOP_K)
            if number == 1:
                for name in orders:
                    faults.order(name, 1.0)
            publisher._publish()
        with redis.Redis.from_url(store_url, protocol=2) as client:
            raw = [fields[FRAME_FIELD] for _, fields in client.xrange(load_key(POOL, 0))]
        return [number_of(payload) for payload in raw], faults.happened()

    return publish


def number_of(payload):
    try:
        return decode_frame(payload).header.seq
    except CollectorError:
        return None


@pytest.mark.redis
@pytest.mark.parametrize(
    ("order", "found"),
    [
        ((), [0, 1, 2, 3]),
        ((DROP,), [0, 2, 3]),
        ((REPEAT,), [0, 1, 1, 2, 3]),
        ((REORDER,), [0, 2, 1, 3]),
        ((DAMAGE,), [0, None, 2, 3]),
    ],
    ids=["none", DROP, REPEAT, REORDER, DAMAGE],
)
def test_a_frame_goes_wrong_once_as_ordered(frames, order, found):
    assert frames(*order) == (found, order)


# --- parcels ------------------------------------------------------------------------------------------------------


def exchange(order=()):
    """Two ranks send each other two parcels; what rank 1 got, and what rank 0 still has."""
    faults = Switchboard()
    for name, value in order:
        faults.order(name, value)
    first, second = ThreadTransport.create(2)
    faulty = FaultyTransport(first, faults)
    sent = [np.arange(4000, dtype=np.uint8) + part for part in range(2)]
    got = [np.zeros(4000, dtype=np.uint8) for _ in range(2)]
    back = [np.zeros(4000, dtype=np.uint8) for _ in range(2)]
    other = threading.Thread(
        target=second.exchange,
        args=([(0, part, sent[part]) for part in range(2)], [(0, part, got[part]) for part in range(2)]),
    )
    other.start()
    faulty.exchange(
        [(1, part, sent[part]) for part in range(2)], [(1, part, back[part]) for part in range(2)]
    )
    other.join(DEADLINE_S)
    assert all(np.array_equal(x, y) for x, y in zip(sent, back, strict=True)), "only what is sent is damaged"
    return sent, got, faults.happened()


def test_a_parcel_is_damaged_on_its_way_once_and_its_source_stays_sound():
    sent, got, happened = exchange([(CORRUPT, 1.0)])
    assert not np.array_equal(got[0], sent[0])
    assert np.array_equal(got[0], flipped(sent[0]))
    assert np.array_equal(got[1], sent[1])
    assert happened == (CORRUPT,)


def test_without_an_order_everything_passes():
    sent, got, happened = exchange([(EXCHANGE_DELAY, 0.01)])
    assert all(np.array_equal(x, y) for x, y in zip(sent, got, strict=True))
    assert happened == ()


def test_damaged_weights_are_finite_and_wrong():
    weights = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    damaged = flipped(weights.view(np.uint8)).view(np.float32)
    assert np.isfinite(damaged).all()
    assert np.array_equal(np.flatnonzero(damaged != weights), np.arange(0, 3000, 97))


# --- clocks -------------------------------------------------------------------------------------------------------


def test_a_clock_jumps_alone(monkeypatch):
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "monotonic", time.monotonic)
    wall, monotonic = time.time(), time.monotonic()
    clocks.install()
    clocks.jump("wall", -3600.0)
    try:
        assert time.time() < wall - 3500
        assert time.monotonic() >= monotonic
        assert time.monotonic() < monotonic + 3500
    finally:
        clocks.jump("wall", 3600.0)


# --- what the driver sees -----------------------------------------------------------------------------------------


@pytest.mark.redis
def test_the_watch_names_the_leader_and_the_controllers_state(store_url):
    with Store(store_url, POOL) as store:
        lease = Lease(store, 60.0, f"host:{os.getpid()}:token")
        watch = Watch(FACTS, store_url.removeprefix("unix://"))
        watch.start()
        eventually(lambda: watch.seen.up)
        assert (watch.seen.leader, watch.seen.phase) == (0, "")
        term = lease.acquire()
        store.append_log(json.dumps({"state": "planning", "code": "planning"}).encode())
        seen = eventually(lambda: watch.seen if watch.seen.phase else None)
        assert (seen.leader, seen.term, seen.phase) == (os.getpid(), term, "planning")
        watch.stop()


@pytest.mark.redis
def test_the_watch_outlives_damaged_keys(store_url):
    with redis.Redis.from_url(store_url) as client:
        client.hset(desired_key(POOL), mapping={"offer": b"{", "term": b"7"})
        client.set(lease_key(POOL), b"odd")
        client.xadd(log_key(POOL), {b"r": b'{"state": "moving"}'})
    watch = Watch(FACTS, store_url.removeprefix("unix://"))
    watch.start()
    seen = eventually(lambda: watch.seen if watch.seen.up else None)
    assert (seen.leader, seen.term, seen.phase) == (0, 7, "moving")
    watch.stop()


ROWS = start_map(LAYERS, FACTS.experts, FACTS.slots)


def with_wave(client, target, shares):
    """Put a wave from the start map on offer, and the ranks' records that they serve the start map."""
    plan = make_plan(FACTS, ROWS, target, created_ms=1, shares=shares)
    offer = Offer(POOL, 5, 0, 7, plan.plan_id, 0, 1, 1, 30.0, plan.changes)
    desired = Desired(term=7, plan=plan, offer=offer, offered_ms=client.time()[0] * 1000)
    client.hset(desired_key(POOL), mapping=desired.fields())
    live = LiveMap(FACTS, ROWS, None, 0)
    record = LiveRecord(POOL, 0, 1, 5, 7, 0, 0, "staging", offer.key, live.wire_digests)
    for rank in range(FACTS.ranks):
        whole = {"map_rows": live.wire_rows, "facts": FACTS} if rank == 0 else {}
        told = replace(record, rank=rank, **whole)
        client.hset(live_key(POOL), str(rank), encode_live(told))


@pytest.mark.redis
@pytest.mark.parametrize("moved", [False, True], ids=["shares alone", "moves too"])
def test_the_watch_tells_a_wave_of_shares_alone_from_one_that_moves(store_url, moved):
    target = ROWS.copy()
    if moved:
        target[1, [0, 13]] = target[1, [13, 0]]
    shares = all_shares(target, None)
    shares[:, 5], shares[:, 5 + FACTS.experts] = 0.7, 0.3
    with redis.Redis.from_url(store_url) as client:
        with_wave(client, target, shares)
    watch = Watch(FACTS, store_url.removeprefix("unix://"))
    watch.start()
    seen = eventually(lambda: watch.seen if watch.seen.phase == "staging" else None)
    assert seen.shares_alone != moved
    watch.stop()


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_the_daemons_settings_are_valid(tmp_path, dispatch):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(daemon_config(FACTS, "unix:///s", dispatch, tmp_path)))
    config = load_config(path)
    assert config.pools[0].facts() == FACTS
    assert config.pools[0].dispatch == dispatch


def test_the_last_line_has_five_counts():
    assert COUNTS == ("tokens lost", "experts lost", "map divergences", "output mismatches", "stuck")
