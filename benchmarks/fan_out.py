"""Distinct nodes a token touches at 4 nodes: planned on even requests, scored on odd ones, beside random placement.

Rerun from the project's root, with the data of ../shared/data (or DATA=folder):

    python benchmarks/fan_out.py [effort] [traffic_weight] [every n-th layer] [ways to take a copy, with commas]

Prints, for every recorded trace, number of redundant slots and way to take a copy, the nodes touched by the search without
regard to traffic (traffic_weight 0) and with it, at the same seed, slots and limits; the planned load of the hottest node; and
what the saving costs in imbalance on the unseen requests.
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


CHOICES = (("even", ""), ("nearest", "hash"), ("nearest", "domain"), ("per_source", "domain"), ("fewest", ""))
"""Which copy a token takes, and where a request starts: unknown, by its number, or on a rank of the node of its domain."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One solve on unseen requests: nodes touched, those beside the token's own (NaN = unknown), imbalance; planned node load."""

    fan: float
    remote: float
    node_load: float
    ratio: float
    seconds: float


def halves(name: str, per_slice: int, layer_step: int, start: str) -> tuple[LoadTrace, LoadTrace]:
    """The trace of the even requests and that of the odd ones, each with its routes."""
    recorded = np.load(DATA / f"{name}.npz")
    picks, offsets = recorded["picks"][:, ::layer_step], recorded["offsets"]
    request = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    sources = None if not start else _starts(start, recorded["domain"])[request]
    parts = [request % 2 == side for side in (0, 1)]
    experts = int(picks.max()) + 1
    plan, unseen = (
        _trace(picks[part], request[part], experts, per_slice, None if sources is None else sources[part])
        for part in parts
    )
    return plan, unseen


def _starts(start: str, domain: np.ndarray) -> np.ndarray:
    """Rank on which every request starts. The recordings do not say: this is assumed.

    ``domain``: requests of a domain start on the two ranks of one node in turn, domains dealt over nodes by their requests.
    """
    number = np.arange(len(domain))
    if start == "hash":
        return number // 2 % RANKS
    names, which, count = np.unique(domain, return_inverse=True, return_counts=True)
    node, load = np.zeros(len(names), dtype=np.int64), np.zeros(NODES)
    for one in np.argsort(-count, kind="stable"):
        node[one] = load.argmin()
        load[node[one]] += count[one]
    return node[which] * (RANKS // NODES) + number // 2 % (RANKS // NODES)


def _trace(
    picks: np.ndarray, request: np.ndarray, experts: int, per_slice: int, sources: np.ndarray | None
) -> LoadTrace:
    slice_of = np.unique(request, return_inverse=True)[1] // per_slice
    tokens = np.zeros((int(slice_of.max()) + 1, picks.shape[1], experts), dtype=np.int64)
    by_rank = np.zeros((RANKS, picks.shape[1], experts), dtype=np.int64)
    for layer in range(picks.shape[1]):
        for place in range(picks.shape[2]):
            np.add.at(tokens[:, layer], (slice_of, picks[:, layer, place]), 1)
            if sources is not None:
                np.add.at(by_rank[:, layer], (sources, picks[:, layer, place]), 1)
    routes = Routes(picks.astype(np.int16), request, sources)
    return LoadTrace(tokens, routes=routes, source_tokens=None if sources is None else by_rank)


def rule_of(choice: str) -> str:
    """The dispatch rule whose copies ``choice`` counts; ``fewest`` is none, its loads are taken as even."""
    return choice if choice in ("nearest", "per_source") else "even"


def planned_node_load(placement: Placement, plan: LoadTrace, topology: Topology, choice: str) -> float:
    """Hottest node over the mean of the nodes, all planned tokens summed; the worst layer.

    Copies share as ``choice`` has it where that is a dispatch rule, else evenly.
    """
    node = np.array(topology.node_of_rank)
    load = evaluate(placement, plan, topology, dispatch=rule_of(choice)).rank_cost.sum(axis=0)
    by_node = np.stack([load[:, node == one].sum(axis=1) for one in np.unique(node)])
    return float((by_node.max(axis=0) / by_node.mean(axis=0)).max())


def solved(
    plan: LoadTrace, topology: Topology, effort: str, weight: float, choice: str
) -> tuple[Placement, float]:
    """A cold start's map and its seconds."""
    began = time.perf_counter()
    result = solve(
        plan, topology, dispatch=rule_of(choice), choice=choice, traffic_weight=weight, effort=effort, seed=0
    )
    return result.placement, time.perf_counter() - began


def outcome(
    made: tuple[Placement, float], plan: LoadTrace, unseen: LoadTrace, topology: Topology, choice: str
) -> Outcome:
    """Score a map on ``unseen``."""
    assert unseen.routes is not None
    placement, seconds = made
    fan = float(np.nanmean(fan_out(placement, unseen.routes, topology, choice=choice)))
    remote = float("nan")
    if unseen.routes.sources is not None:
        remote = float(np.nanmean(fan_out(placement, unseen.routes, topology, choice=choice, remote=True)))
    ratio = float(np.nanmean(evaluate(placement, unseen, topology, dispatch=rule_of(choice)).ratio))
    return Outcome(fan, remote, planned_node_load(placement, plan, topology, choice), ratio, seconds)


def _remote(plain: float, saved: float) -> str:
    if np.isnan(plain):
        return f"{'-':>10s} {'-':>5s} {'-':>6s}"
    return f"{plain:10.3f} {saved:5.3f} {100 * (saved / plain - 1):+5.1f}%"


def main(effort: str = "normal", weight: str = "1.0", layer_step: str = "1", choices: str = "even") -> None:
    """Print the table."""
    print(
        f"effort {effort}, traffic_weight {weight}, {NODES} nodes, {RANKS} ranks, every {layer_step} layer(s); "
        "nodes = mean distinct nodes of a token on unseen requests, remote = those beside its own"
    )
    print(
        f"{'trace':18s} slots copy taken, start   random | nodes  w=0 w={weight:4s} change (must, aim) | "
        "remote w=0     w change | node load | unseen ratio w=0  w | seconds"
    )
    for name, per_slice, widths, must, aim in ROWS:
        for choice, start in (pair for pair in CHOICES if pair[0] in choices.split(",")):
            plan, unseen = halves(name, per_slice, int(layer_step), start)
            assert unseen.routes is not None
            random = random_fan_out(plan.experts, unseen.routes.top_k, NODES)
            # Without redundant slots every copy is the only one.
            for width in widths if choice == "even" else widths[1:]:
                topology = Topology.uniform(ranks=RANKS, nodes=NODES, slots_per_rank=width)
                plain, saved = (
                    outcome(solved(plan, topology, effort, value, choice), plan, unseen, topology, choice)
                    for value in (0.0, float(weight))
                )
                print(
                    f"{name:18s} {RANKS * width:5d} {choice:10s} {start:8s} {random:8.3f} | "
                    f"{plain.fan:10.3f} {saved.fan:6.3f} {100 * (saved.fan / plain.fan - 1):+5.1f}% "
                    f"({100 * must:+.0f}%, {100 * aim:+.0f}%) | "
                    f"{_remote(plain.remote, saved.remote)} | "
                    f"{saved.node_load:9.3f} | {plain.ratio:16.3f} {saved.ratio:5.3f} | "
                    f"{plain.seconds:.1f} {saved.seconds:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
