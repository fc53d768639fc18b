"""The daemon's own loop over a small simulated group whose load a test writes down, step by step, on a virtual clock."""

import numpy as np

from collectors.facts import Phase, PoolFacts
from eplb.config.pools import PoolConfig
from eplb.pool import Pool
from eplb.ports import Ports
from eplb.replay.schedule import Steps
from eplb.replay.world import ORIGIN_MS, Clock, Group, InlineSolver, MemoryStore, SoleLead
from placement import Roofline

CYCLE_MS = 5_000
STEPS_A_CYCLE = 4
KERNELS = Roofline(base_us=20.0, activated_us=0.0, token_us=1.0)
FLAT = Roofline(base_us=20.0, activated_us=0.0, token_us=0.0)
"""A step that takes the same time whatever its load."""


class Loop:
    """A pool of ``ranks`` x ``slots_per_rank`` slots over one layer, served in mode auto; ``gate`` overrides its settings."""

    def __init__(
        self, rows, *, ranks, experts, kernels=KERNELS, migration=None, window_s=40.0, seed=0, **gate
    ):
        rows = np.array([np.concatenate(rows)], dtype=np.int32)
        settings = {
            "mode": "auto",
            "cooldown_s": 20.0,
            "min_interval_s": 40.0,
            "min_slices": 20,
            "min_tokens": 100,
        }
        body = {
            "name": "p",
            "topology": {"ranks": ranks, "nodes": 1, "slots_per_rank": rows.shape[1] // ranks},
            "model": {"experts": experts, "top_k": 1, "moe_layers": [3], "bytes_per_expert": 1000},
            "kind": "routed",
            "phases": ["decode"],
            "window": {"window_s": window_s, "max_slices": 256},
            "solver": {"effort": "fast", "seed": seed},
            "gate": {**settings, **gate},
            "migration": migration or {},
        }
        self.config = PoolConfig.model_validate(body)
        self.facts: PoolFacts = self.config.facts()
        self.rng = np.random.default_rng(seed)
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.group = Group(self.facts, Phase.DECODE, rows, self.store, kernels)
        self.pool = self.new_pool()
        self.decisions, self.snapshots, self.maps = [], [], [rows.copy()]
        self.step = 0

    def new_pool(self, folder=None):
        """Another daemon of the same pool."""
        return Pool(self.config, Ports(self.store, SoleLead(), InlineSolver(), self.clock.seconds), folder)

    def cycle(self, loads):
        """Serve some steps with these expected tokens by expert, then let the daemon look once."""
        self.group.take_offer()
        if not np.array_equal(self.maps[-1], self.group.live.rows):
            self.maps.append(self.group.live.rows.copy())
        counts = self.rng.poisson(loads, (STEPS_A_CYCLE, 1, self.facts.experts)).astype(np.int64)
        tokens = np.zeros((STEPS_A_CYCLE, self.facts.ranks, 1, self.facts.experts), dtype=np.int64)
        tokens[:, 0] = counts
        batch = tokens.sum(axis=(2, 3))
        self.clock.now_ms += CYCLE_MS
        ends = np.full(STEPS_A_CYCLE, self.clock.now_ms - ORIGIN_MS, dtype=np.int64)
        self.group.publish(Steps(0, self.step, tokens, batch, ends), self.clock.now_ms)
        self.step += STEPS_A_CYCLE
        snapshot = self.pool.cycle()
        self.snapshots.append(snapshot)
        self.decisions.append(snapshot.decision)
        return snapshot.decision

    def serve(self, loads, cycles):
        """Several cycles of the same traffic; their decisions."""
        return [self.cycle(loads) for _ in range(cycles)]

    def until(self, code, loads, limit=200):
        """Cycles up to the first decision with this code."""
        for _ in range(limit):
            if self.cycle(loads)["code"] == code:
                return self.decisions[-1]
        raise AssertionError([(d["code"], d["sentence"]) for d in self.decisions[-5:]])

    @property
    def codes(self):
        """All decisions so far, each run of one code once."""
        codes = [decision["code"] for decision in self.decisions]
        return [code for at, code in enumerate(codes) if at == 0 or code != codes[at - 1]]
