"""Routes with a known structure, and plain recounts of what they touch."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from placement import LoadTrace, Routes


def block_picks(samples, blocks, size, top_k, seed=0):
    """Sets of ``top_k`` experts, all from one of equally loaded blocks of ``size`` consecutive experts: int16 [samples, 1, top_k]."""
    rng = np.random.default_rng(seed)
    first = rng.permutation(np.arange(samples) % blocks) * size
    return np.stack([at + rng.permutation(size)[:top_k] for at in first]).astype(np.int16)[:, None]


def trace_of(picks, requests, experts, per_slice=4):
    """A trace whose slices are runs of ``per_slice`` requests, with the routes themselves."""
    layers, slices = picks.shape[1], int(requests.max()) // per_slice + 1
    tokens = np.zeros((slices, layers, experts), dtype=np.int64)
    for at in range(layers):
        for place in range(picks.shape[2]):
            np.add.at(tokens[:, at], (requests // per_slice, picks[:, at, place]), 1)
    return LoadTrace(tokens, routes=Routes(picks, requests))


def nodes_touched(sets, home):
    """Nodes of every set when each expert has one home, by listing them."""
    return [len({int(home[expert]) for expert in one if expert < len(home)}) for one in sets.tolist()]


@st.composite
def route_sets(draw, most_experts=10):
    """Sets of one layer with drops at times, int16 [samples, top_k], and the number of experts."""
    experts = draw(st.integers(2, most_experts))
    top_k = draw(st.integers(1, min(4, experts)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    samples = draw(st.integers(1, 30))
    sets = np.stack([rng.permutation(experts)[:top_k] for _ in range(samples)]).astype(np.int16)
    if draw(st.booleans()):
        sets[rng.random(sets.shape) < 0.3] = -1
    return sets, experts
