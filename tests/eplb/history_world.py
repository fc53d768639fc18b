"""A pool whose traffic is of one of several kinds, counted by real recorders' frames and read by a real window."""

import numpy as np

from collectors.facts import Kind, Phase, PoolFacts
from eplb.models import MODELS
from eplb.replay.presets import MACHINES, kernels
from eplb.replay.schedule import Steps
from eplb.replay.world import Clock, Group, MemoryStore
from eplb.start_map import start_map
from eplb.window import Window

FACTS = PoolFacts(
    "p", ranks=4, nodes=1, slots_per_rank=3, experts=8, top_k=2, model_layers=(3, 4), bytes_per_expert=10
)
SHAPE = (FACTS.layers, FACTS.experts)
TOKENS_PER_RANK = 60
WINDOW_S = 60.0


def kind_of_traffic(kind):
    """Weights of experts, float64 [layers, experts]: every kind prefers others."""
    return np.stack([np.roll(0.6 ** np.arange(FACTS.experts), 3 * kind + layer) for layer in range(2)])


def counts(rng, kind, tokens=TOKENS_PER_RANK):
    """Picks of one rank in one step, int64 [layers, experts]: two distinct experts a token."""
    out = np.zeros(SHAPE, dtype=np.int64)
    for layer, weights in enumerate(kind_of_traffic(kind)):
        keys = rng.exponential(size=(tokens, FACTS.experts)) / weights
        chosen = keys.argsort(axis=1)[:, : FACTS.top_k]
        out[layer] = np.bincount(chosen.ravel(), minlength=FACTS.experts)
    return out


class Traffic:
    """Serves steps and lets the time pass; ``view`` is what the daemon sees."""

    def __init__(self, seed=0):
        self.clock = Clock()
        # The first of three cycles a minute then falls on the minute, and no minute is of two kinds.
        self.clock.now_ms -= 20_000
        self.store = MemoryStore(self.clock)
        rows = start_map(FACTS.layers, FACTS.experts, FACTS.slots)
        self.group = Group(
            FACTS, Phase.DECODE, rows, self.store, kernels(MODELS["gpt-oss-20b"], MACHINES["H800"], "decode")
        )
        self.window = Window(FACTS, Kind.ROUTED, window_s=WINDOW_S, stale_after_s=30.0)
        self._rng, self._step = np.random.default_rng(seed), 0

    def serve(self, kind, steps=4, after_s=20.0):
        """Some steps of one kind, after a pause; the view then."""
        self.clock.now_ms += int(after_s * 1000)
        tokens = np.array(
            [[counts(self._rng, kind) for _ in range(FACTS.ranks)] for _ in range(steps)], dtype=np.int64
        )
        batch = np.full((steps, FACTS.ranks), TOKENS_PER_RANK, dtype=np.int64)
        ends = np.full(steps, self.clock.now_ms)
        self.group.publish(Steps(0, self._step, tokens, batch, ends), self.clock.now_ms)
        self._step += steps
        return self.view()

    def view(self):
        for time_ms, node, frame in self.store.tail_load([0]):
            assert self.window.ingest(time_ms, node, frame), self.window.last_refusal
        return self.window.view(self.clock.now_ms)
