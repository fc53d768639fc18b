"""Distinct nodes a token touches at 4 nodes: planned on even requests, scored on odd ones, beside random placement.

Rerun from the project's root, with the data of ../shared/data (or DATA=folder):

    python benchmarks/fan_out.py [effort] [traffic_weight] [every n-th layer]

Prints, for every recorded trace and number of redundant slots, the fan-out of the search without regard to traffic
(traffic_weight 0) and with it, at the same seed, slots and limits; the planned load of the hottest node; and what the saving
costs in imbalance on the unseen requests.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placement import LoadTrace, Placement, Routes, Topology, evaluate, fan_out, random_fan_out, solve

DATA = Path(os.environ.get("DATA", Path(__file__).parents[2] / "shared" / "data"))
NODES, RANKS = 4, 8
# Trace, requests in one slice, slots per rank, bar on the change of the fan-out, aim.
ROWS = (
    ("dsv2lite_prefill", 2, (8, 9, 10), -0.21, -0.28),
    ("gptoss20b_decode", 4, (4, 5, 6), -0.20, -0.28),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One solve: fan-out on unseen requests under both choices, planned node load, imbalance ratio on unseen slices."""

    even: float
    fewest: float
    node_load: float
    ratio: float
    seconds: float


def halves(name: str, per_slice: int, layer_step: int) -> tuple[LoadTrace, LoadTrace]:
    """The trace of the even requests and that of the odd ones, each with its routes."""
    recorded = np.load(DATA / f"{name}.npz")
    picks, offsets = recorded["picks"][:, ::layer_step], recorded["offsets"]
    request = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    parts = [request % 2 == side for side in (0, 1)]
    experts = int(picks.max()) + 1
    return (
        _trace(picks[parts[0]], request[parts[0]], experts, per_slice),
        _trace(picks[parts[1]], request[parts[1]], experts, per_slice),
    )


def _trace(picks: np.ndarray, request: np.ndarray, experts: int, per_slice: int) -> LoadTrace:
    slice_of = np.unique(request, return_inverse=True)[1] // per_slice
    tokens = np.zeros((int(slice_of.max()) + 1, picks.shape[1], experts), dtype=np.int64)
    for layer in range(picks.shape[1]):
        for place in range(picks.shape[2]):
            np.add.at(tokens[:, layer], (slice_of, picks[:, layer, place]), 1)
    return LoadTrace(tokens, routes=Routes(picks.astype(np.int16), request))


def planned_node_load(placement: Placement, plan: LoadTrace, topology: Topology) -> float:
    """Hottest node over the mean of the nodes, all planned tokens summed, copies sharing evenly; the worst layer."""
    node = np.array(topology.node_of_rank)[topology.rank_of_slot()]
    worst = 0.0
    for row, tokens in zip(placement.physical_to_logical, plan.tokens.sum(axis=0), strict=True):
        held = row >= 0
        load = tokens[row[held]] / np.bincount(row[held], minlength=plan.experts)[row[held]]
        by_node = np.bincount(node[held], load)
        worst = max(worst, float(by_node.max() / by_node.mean()))
    return worst


def outcome(plan: LoadTrace, unseen: LoadTrace, topology: Topology, effort: str, weight: float) -> Outcome:
    """Solve on ``plan`` and score on ``unseen``."""
    began = time.perf_counter()
    placement = solve(plan, topology, traffic_weight=weight, effort=effort, seed=0).placement
    seconds = time.perf_counter() - began
    assert unseen.routes is not None
    even, fewest = (
        float(np.nanmean(fan_out(placement, unseen.routes, topology, choice=choice)))
        for choice in ("even", "fewest")
    )
    ratio = float(np.nanmean(evaluate(placement, unseen, topology).ratio))
    return Outcome(even, fewest, planned_node_load(placement, plan, topology), ratio, seconds)


def main(effort: str = "normal", weight: str = "1.0", layer_step: str = "1") -> None:
    """Print the table."""
    print(
        f"effort {effort}, traffic_weight {weight}, {NODES} nodes, {RANKS} ranks, every {layer_step} layer(s); "
        "fan-out = mean distinct nodes of a token on unseen requests"
    )
    print(
        f"{'trace':18s} slots random    w=0 w={weight:4s} change  must   aim | fewest w=0 w={weight:4s} | "
        "node load | unseen ratio w=0  w | seconds"
    )
    for name, per_slice, widths, must, aim in ROWS:
        plan, unseen = halves(name, per_slice, int(layer_step))
        assert unseen.routes is not None
        random = random_fan_out(plan.experts, unseen.routes.top_k, NODES)
        for width in widths:
            topology = Topology.uniform(ranks=RANKS, nodes=NODES, slots_per_rank=width)
            plain = outcome(plan, unseen, topology, effort, 0.0)
            saved = outcome(plan, unseen, topology, effort, float(weight))
            print(
                f"{name:18s} {RANKS * width:5d} {random:6.3f} {plain.even:6.3f} {saved.even:6.3f} "
                f"{100 * (saved.even / plain.even - 1):+5.1f}% {100 * must:+.0f}% {100 * aim:+.0f}% | "
                f"{plain.fewest:10.3f} {saved.fewest:6.3f} | {saved.node_load:9.3f} | "
                f"{plain.ratio:16.3f} {saved.ratio:5.3f} | {plain.seconds:.1f} {saved.seconds:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
