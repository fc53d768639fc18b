"""Small traces and studies for the tests of the report."""

from __future__ import annotations

import numpy as np

from eplb.formats.facts import Layers, TraceFile
from eplb.report.study import Ask, Named, study
from placement import LoadTrace, Placement, Routes, Topology

TOPOLOGY = Topology.uniform(ranks=4, nodes=2, slots_per_rank=5)
HOSTILE = "<script>alert(1)</script>"


def trace_file(tokens, *, domain=None, phase=None, layers=None, steps=None, routes=None):
    return TraceFile(
        trace=LoadTrace(tokens, steps_per_slice=steps, routes=routes),
        layers=Layers(layers),
        slices_from="the file's own",
        format="npz",
        phase=phase,
        domain=domain,
    )


def skewed(slices=8, layers=3, experts=16, *, seed=0, spread=1.0, tokens=4000):
    """The same hot experts in every slice, and sampling noise."""
    rng = np.random.default_rng(seed)
    weight = rng.lognormal(0, spread, (layers, experts))
    part = weight / weight.sum(axis=1, keepdims=True)
    return np.stack([[rng.multinomial(tokens, row) for row in part] for _ in range(slices)])


def even(slices=12, layers=3, experts=16, tokens=4000):
    rng = np.random.default_rng(1)
    return rng.multinomial(tokens, np.full(experts, 1 / experts), (slices, layers))


def restless(slices, layers, experts=16):
    """Other hot experts in every slice."""
    rng = np.random.default_rng(2)
    hot = rng.lognormal(0, 1.5, (slices, layers, experts))
    return np.rint(4000 * hot / hot.sum(axis=2, keepdims=True)).astype(np.int64)


def routes_of(layers=3, experts=16, top_k=2, samples=60):
    rng = np.random.default_rng(5)
    picks = np.stack([[rng.permutation(experts)[:top_k] for _ in range(layers)] for _ in range(samples)])
    return Routes(picks, np.arange(samples) // 4)


def spread_map(layers=3, experts=16, slots=20):
    """Experts dealt out rank by rank."""
    row = np.arange(slots).reshape(-1, 4).T.ravel() % experts
    return Placement(np.tile(row, (layers, 1)))


def studied(
    tokens=None, topology=TOPOLOGY, *, domain=None, phase=None, layers=None, steps=None, routes=None, **ask
):
    tokens = skewed() if tokens is None else tokens
    file = trace_file(tokens, domain=domain, phase=phase, layers=layers, steps=steps, routes=routes)
    ask.setdefault("effort", "fast")
    # Traces here are short: a quarter of them would be too few slices.
    ask.setdefault("hold_out", 0.5)
    return study(file, Ask(topology, **ask))


def compared(tokens=None, **given):
    """A study that compares a given map and solves nothing."""
    tokens = skewed() if tokens is None else tokens
    given.setdefault("maps", (Named("dealt.json", spread_map(*tokens.shape[1:])),))
    return studied(tokens, plan=False, **given)
