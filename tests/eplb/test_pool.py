"""Rules of one served pool: a real store, the real planner process, and ranks that are threads with real agents."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from agent_crew import CrewMemory, start_map

from collectors import Kind, Phase, Publisher, Recorder
from collectors.facts import PoolFacts
from eplb.agent import Agent, StoreLink, ThreadGroup, ThreadTransport
from eplb.config import DaemonConfig
from eplb.controller import Name
from eplb.pool import Pool
from eplb.store.client import Store
from eplb.store.control import set_paused

FACTS = PoolFacts(
    "main",
    ranks=4,
    nodes=2,
    slots_per_rank=3,
    experts=8,
    top_k=2,
    model_layers=(3, 4, 7),
    bytes_per_expert=140,
)
SKEW = np.array([12, 9, 8, 1, 1, 1, 1, 1], dtype=float)
TOKENS_PER_STEP = 64
LIMIT_S = 60.0


def config(mode="auto", **gate):
    settings = {
        "mode": mode,
        "cooldown_s": 1.0,
        "min_slices": 20,
        "min_tokens": 1000,
        "min_gain": 0.02,
        **gate,
    }
    return DaemonConfig.model_validate(
        {
            "store": {"url": "unix:///unused"},
            "cycle_s": 0.2,
            "pools": [
                {
                    "name": FACTS.pool,
                    "topology": {"ranks": 4, "nodes": 2, "slots_per_rank": 3},
                    "model": {"experts": 8, "top_k": 2, "moe_layers": [3, 4, 7], "bytes_per_expert": 140},
                    "kind": "received_slots",
                    "phases": ["decode"],
                    "window": {"window_s": 30, "max_slices": 100},
                    "gate": settings,
                }
            ],
        }
    )


class Ranks:
    """Four ranks on threads that route a skewed stream by the live map, count it, publish it and take part in votes."""

    def __init__(self, url):
        self.agents = [None] * FACTS.ranks
        self.step = 0
        self._url, self._stop = url, threading.Event()
        groups, routes = ThreadGroup.create(FACTS.ranks, 20.0), ThreadTransport.create(FACTS.ranks, 20.0)
        pace = ThreadGroup.create(FACTS.ranks, 20.0)
        self._threads = [
            threading.Thread(target=self._serve, args=(rank, groups[rank], routes[rank], pace[rank]))
            for rank in range(FACTS.ranks)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _serve(self, rank, group, transport, pace):
        rows = start_map(FACTS)
        recorder = Recorder(FACTS, rank, Kind.RECEIVED_SLOTS)
        link = StoreLink(self._url, FACTS.pool, rank, poll_s=0.05, heartbeat_s=0.5)
        memory = CrewMemory(FACTS, rank, rows)
        agent = Agent(
            FACTS, group, transport, memory, rows, run_id=5, incarnation=rank, link=link, recorder=recorder
        )
        self.agents[rank] = agent
        recorder.register(agent.run_id, 0, agent.layer_digests)
        publisher = Publisher(
            recorder,
            url=self._url,
            node=rank * FACTS.nodes // FACTS.ranks,
            interval_s=0.1,
            term=lambda: agent.term_seen,
        )
        link.start()
        publisher.start()
        step = 0
        while pace.min(0 if self._stop.is_set() else 1):
            step += 1
            agent.before_forward(step)
            recorder.record_step(
                step, Phase.DECODE, received(agent.live, rank, step), TOKENS_PER_STEP // FACTS.ranks
            )
            self.step = step
            time.sleep(0.005)
        agent.close()
        publisher.stop()
        link.stop()


def received(rows, rank, step):
    """Tokens that a rank's slots receive in a step, the same draw on all ranks: int64 [layers, slots_per_rank]."""
    counts = np.zeros((FACTS.layers, FACTS.slots), dtype=np.int64)
    for layer in range(FACTS.layers):
        rng = np.random.default_rng([step, layer])
        keys = rng.exponential(size=(TOKENS_PER_STEP, FACTS.experts)) / np.roll(SKEW, layer)
        for expert in keys.argsort(axis=1)[:, : FACTS.top_k].ravel():
            slots = np.flatnonzero(rows[layer] == expert)
            counts[layer, slots[rng.integers(len(slots))]] += 1
    return counts[:, rank * FACTS.slots_per_rank : (rank + 1) * FACTS.slots_per_rank]


def serve(pool, until):
    """Cycle until the snapshot satisfies ``until``; all snapshots."""
    snapshots, limit = [], time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        snapshots.append(pool.cycle())
        if until(snapshots[-1]):
            return snapshots
        time.sleep(0.1)
    raise AssertionError(
        [s.decision and (s.decision["code"], s.decision["sentence"]) for s in snapshots[-3:]]
    )


def make_pool(url, tmp_path, settings=None):
    settings = settings or config()
    return Pool(settings.pools[0], settings, url, f"test-{time.monotonic_ns()}", tmp_path)


@pytest.mark.slow
@pytest.mark.redis
def test_skewed_load_is_measured_planned_moved_and_settled(store_url, tmp_path):
    """The whole loop: exact ratios, a plan judged on unseen slices, a verified switch on all ranks, the gain measured."""
    with Ranks(store_url) as ranks:
        pool = make_pool(store_url, tmp_path)
        try:
            snapshots = serve(pool, lambda s: s.decision and s.decision["code"] == "settled")
        finally:
            pool.close()
        maps = {agent.live.tobytes() for agent in ranks.agents}
        states = {agent.state for agent in ranks.agents}
    assert len(maps) == 1
    assert maps != {start_map(FACTS).tobytes()}
    assert states == {"switched"}
    last = snapshots[-1]
    assert (last.map_version, last.leader, last.coverage) == (1, True, 1.0)
    assert last.readings[0].quality == "exact"
    assert last.counters["misaligned"] == 0
    assert last.decision["realised_gain"] > 0.1
    seen = [s.decision["code"] for s in snapshots if s.decision]
    wanted = ["elected", "planning", "offered", "applied", "settled"]
    assert [code for code in dict.fromkeys(seen) if code in wanted] == wanted


@pytest.mark.slow
def test_a_new_daemon_goes_on_where_the_old_one_was_stopped(embedded_store_url, tmp_path):
    """PLN-12: the leader vanishes after its offer; the next one adopts the move from desired and live alone."""
    url = embedded_store_url
    with Store(url, FACTS.pool) as store:
        store.redis.flushall()
    with Ranks(url) as ranks:
        first = make_pool(url, tmp_path)
        serve(first, lambda s: s.decision and s.decision["code"] == "offered")
        first.close()
        second = make_pool(url, tmp_path)
        try:
            snapshots = serve(
                second, lambda s: s.leader and s.map_version == 1 and s.migration_state == "idle"
            )
        finally:
            second.close()
        assert len({agent.live.tobytes() for agent in ranks.agents}) == 1
    assert snapshots[-1].term == 2
    assert "adopted" in {s.decision["code"] for s in snapshots if s.decision}


@pytest.mark.slow
def test_pause_observe_and_advise_move_nothing(embedded_store_url, tmp_path):
    """Paused and observing pools keep measuring; advise writes a map file that `eplb eval` can read."""
    url = embedded_store_url
    with Store(url, FACTS.pool) as store:
        store.redis.flushall()
        set_paused(store, paused=True)
    with Ranks(url) as ranks:
        for mode, code in (("auto", "paused"), ("observe", "observe_only"), ("advise", "advised")):
            pool = make_pool(url, tmp_path, config(mode))
            try:
                snapshot = serve(pool, lambda s, code=code: s.decision and s.decision["code"] == code)[-1]
            finally:
                pool.close()
            assert snapshot.readings[0].excess > 0.2
            with Store(url, FACTS.pool) as store:
                set_paused(store, paused=False)
        assert {agent.live.tobytes() for agent in ranks.agents} == {start_map(FACTS).tobytes()}
    plans = list(Path(tmp_path).glob("*.json"))
    assert plans
    assert json.loads(plans[0].read_text())["physical_to_logical"]


def test_store_away_keeps_the_last_snapshot_and_leads_nothing(tmp_path):
    """A store that does not answer is said, and nothing is claimed."""
    pool = make_pool("redis://127.0.0.1:1/0", tmp_path)
    try:
        snapshot = pool.cycle()
    finally:
        pool.close()
    assert (snapshot.store_up, snapshot.leader, snapshot.coverage) == (False, False, 0.0)


@pytest.mark.redis
def test_without_ranks_the_reason_is_missing_data(store_url, tmp_path):
    """An empty store gives `not_enough_data`, in the log too."""
    pool = make_pool(store_url, tmp_path)
    try:
        snapshot = serve(pool, lambda s: s.leader and s.decision["code"] == "not_enough_data")[-1]
        log = [json.loads(raw) for raw in pool.store.read_log(10)]
    finally:
        pool.close()
    assert snapshot.ranks_seen == 0
    assert log[-1]["code"] == "not_enough_data"


def test_controller_states_have_words_for_people():
    """State names are what snapshots and logs show."""
    assert [str(name) for name in Name] == ["standby", "observing", "planning", "moving", "settling"]
