"""A served pool for tests: its configuration, ranks that are threads with real agents, and a loop with a limit."""

import threading
import time

import numpy as np
from agent_crew import CrewMemory, start_map
from moving_engine import MovingEngine

from collectors import Kind, Phase, Publisher, Recorder
from collectors.facts import PoolFacts
from eplb.agent import Agent, StoreLink, ThreadGroup, ThreadTransport
from eplb.config import DaemonConfig
from eplb.pool import Pool
from eplb.ports import served

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


def config(mode="auto", *, profile="staged", **gate):
    settings = {
        "mode": mode,
        # long enough for a loaded machine to serve the slices that a gain is measured on
        "cooldown_s": 4.0,
        "min_interval_s": 1.0,
        # these ranks measure no step times
        "price_us_per_token": 1.0,
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
                    "migration": {"profile": profile},
                }
            ],
        }
    )


class Ranks:
    """Four ranks on threads that route a skewed stream by the live map, count it, publish it and take part in votes.

    ``turn`` changes which experts are hot, from a step on that no rank has reached, so that a further plan is worth it.
    """

    def __init__(self, url, *, heartbeat_s=0.5, interval_s=0.1, link=StoreLink, access=None):
        self.agents = [None] * FACTS.ranks
        self.step = 0
        self.links = [None] * FACTS.ranks
        self._turns = [(0, 0)]
        self._heartbeat_s, self._interval_s, self._link = heartbeat_s, interval_s, link
        self._access = access
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

    def version(self):
        """The map_version that all ranks have reached."""
        return min(0 if agent is None else agent.map_version for agent in self.agents)

    def turn(self):
        """The load changes a moment from now."""
        self._turns.append((self.step + 50, len(self._turns) * 3))

    def _turn_at(self, step):
        return next(turn for first, turn in reversed(self._turns) if first <= step)

    def _serve(self, rank, group, transport, pace):
        rows = start_map(FACTS)
        recorder = Recorder(FACTS, rank, Kind.RECEIVED_SLOTS)
        link = self._link(
            self._url, FACTS.pool, rank, poll_s=0.05, heartbeat_s=self._heartbeat_s, access=self._access
        )
        self.links[rank] = link
        given = {"run_id": 5, "incarnation": rank, "link": link, "recorder": recorder}
        agent = self.agents[rank] = self._agent(rank, group, transport, rows, given)
        recorder.register(agent.run_id, 0, agent.layer_digests)
        publisher = Publisher(
            recorder,
            url=self._url,
            node=rank * FACTS.nodes // FACTS.ranks,
            interval_s=self._interval_s,
            access=self._access,
            term=lambda: agent.term_seen,
        )
        link.start()
        publisher.start()
        step = 0
        while pace.min(0 if self._stop.is_set() else 1):
            step += 1
            agent.before_forward(step)
            counts = received(self._routed(rank), rank, step, self._turn_at(step))
            recorder.record_step(step, Phase.DECODE, counts, TOKENS_PER_STEP // FACTS.ranks)
            self.step = step
            time.sleep(0.005)
        agent.close()
        publisher.stop()
        link.stop()

    def _agent(self, rank, group, transport, rows, given):
        return Agent(FACTS, group, transport, CrewMemory(FACTS, rank, rows), rows, **given)

    def _routed(self, rank):
        """The rows that a rank's router reads in this forward."""
        return self.agents[rank].live


class MovingRanks(Ranks):
    """The same with an engine that moves experts by itself, and that routes by its own rows."""

    def __init__(self, url):
        super().__init__(url)
        self.engines = []
        meetings = ThreadGroup.create(FACTS.ranks, 20.0)
        for rank in range(FACTS.ranks):
            self.engines.append(MovingEngine(FACTS, rank, start_map(FACTS), meetings[rank], self.engines))

    def _agent(self, rank, group, transport, rows, given):
        return Agent(FACTS, group, None, None, rows, mover=self.engines[rank], **given)

    def _routed(self, rank):
        self.engines[rank].forward()
        return self.engines[rank].rows


def received(rows, rank, step, turn=0):
    """Tokens that a rank's slots receive in a step, the same draw on all ranks: int64 [layers, slots_per_rank]."""
    counts = np.zeros((FACTS.layers, FACTS.slots), dtype=np.int64)
    for layer in range(FACTS.layers):
        rng = np.random.default_rng([step, layer])
        keys = rng.exponential(size=(TOKENS_PER_STEP, FACTS.experts)) / np.roll(SKEW, layer + turn)
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
    ports = served(settings.pools[0], settings, url, f"test-{time.monotonic_ns()}")
    return Pool(settings.pools[0], ports, tmp_path)
