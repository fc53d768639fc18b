"""Snapshots for the tests of metrics, API and alert, made from rank loads by the definitions of the vocabulary."""

from __future__ import annotations

import warnings

import numpy as np

from eplb.snapshot import PhaseReading, PoolSnapshot


def reading(rank_load, *, phase="decode", nodes=2, noise=0.01, balanced=0.0, **changes):
    """A reading of rank loads [layers, ranks] in tokens; ratio = max / mean over ranks, NaN without load."""
    load = np.asarray(rank_load, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        relative = load / load.mean(axis=1, keepdims=True)
        ratio = relative.max(axis=1)
        excess = float(np.nanmean(ratio - 1)) if np.isfinite(ratio).any() else float("nan")
        waste = float(np.nanmean(1 - 1 / ratio)) if np.isfinite(ratio).any() else float("nan")
        total = load.sum(axis=0)
        share = total / total.mean()
    by_node = total.reshape(nodes, -1)
    top = tuple((int(rank), float(share[rank])) for rank in np.argsort(-total, kind="stable")[:8])
    values = {
        "phase": phase,
        "quality": "exact",
        "slices": 10,
        "steps": 10,
        "tokens": int(total.sum()),
        "ratio_by_layer": ratio,
        "excess": excess,
        "noise_floor": noise,
        "recoverable_excess": excess - balanced,
        "waste_share": waste,
        "node_max_tokens": by_node.max(axis=1),
        "node_mean_tokens": by_node.mean(axis=1),
        "top_ranks": top,
        "layer_rank_load": relative,
    }
    return PhaseReading(**{**values, **changes})


def snapshot(*readings, pool="a", **changes):
    """A healthy leader's snapshot with these readings."""
    values = {
        "pool": pool,
        "time_ms": 1_000,
        "mode": "auto",
        "leader": True,
        "term": 3,
        "paused": False,
        "map_version": 7,
        "migration_state": "idle",
        "ranks_expected": 4,
        "ranks_seen": 4,
        "coverage": 1.0,
        "stale_ranks": (),
        "newest_age_s": 0.5,
        "readings": readings,
        "counters": {
            "frames": 12,
            "bytes": 3_400,
            "lost": 1,
            "refused": 2,
            "misaligned": 3,
            "unknown_map": 4,
        },
        "decision": None,
    }
    return PoolSnapshot(**{**values, **changes})
