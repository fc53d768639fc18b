"""Where tokens start: which part of an expert's tokens each place sends, and experts given to the nodes they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.routes import Routes
    from placement.topology import Topology


def bin_tokens(rank_tokens: NDArray[np.int64], of_rank: NDArray[np.int64], bins: int) -> NDArray[np.int64]:
    """Tokens of one layer by the bin they started on, int64 [bins, experts], from int64 [ranks, experts]."""
    tokens = np.zeros((bins, rank_tokens.shape[1]), dtype=np.int64)
    np.add.at(tokens, of_rank, rank_tokens)
    return tokens


def routed_from(routes: Routes, at: int, ranks: int, experts: int) -> NDArray[np.int64]:
    """Sampled picks of layer ``at`` by the rank where their token started, int64 [ranks, experts]; zeros without sources."""
    tokens = np.zeros((ranks, experts + 1), dtype=np.int64)
    if routes.sources is not None:
        np.add.at(tokens, (routes.sources[:, None], routes.experts[:, at].astype(np.int64)), 1)
    return tokens[:, :-1]


def start_parts(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Part of every expert's tokens by where they start, float64 [starts, experts], from int64 [starts, experts].

    An expert without tokens is taken like all tokens; without any tokens every start sends alike.
    """
    of_start, of_expert = tokens.sum(axis=1), tokens.sum(axis=0)
    usual = of_start / of_start.sum() if of_start.any() else np.full(len(tokens), 1.0 / len(tokens))
    parts = np.broadcast_to(usual[:, None], tokens.shape).copy()
    np.divide(tokens, of_expert, out=parts, where=of_expert > 0)
    return parts


def near_sources(held: NDArray[np.bool_], tokens: NDArray[np.int64], topology: Topology) -> NDArray[np.bool_]:
    """``held``, bool [experts, nodes], with equal nodes exchanged as a whole until no exchange starts more tokens at home.

    ``tokens``: int64 [nodes, experts], see ``bin_tokens``. Nodes are equal when their ranks have the same slots and speeds, so
    that neither balance nor fan-out changes.
    """
    kinds = _kinds(topology)
    local = np.stack([tokens[:, held[:, part]].sum(axis=1) for part in range(topology.nodes)])
    target = np.arange(topology.nodes)
    while True:
        here = local[np.arange(len(target)), target]
        there = local[:, target]
        gain = there + there.T - here[:, None] - here
        gain[kinds[:, None] != kinds] = 0
        one, two = divmod(int(gain.argmax()), len(target))
        if gain[one, two] <= 0:
            break
        target[[one, two]] = target[[two, one]]
    near = np.zeros_like(held)
    near[:, target] = held
    return near


def _kinds(topology: Topology) -> NDArray[np.int64]:
    """A number for each node, the same for equal nodes, int64 [nodes]."""
    speeds = topology.speed_of_rank()
    ranks: list[list[tuple[int, float]]] = [[] for _ in range(topology.nodes)]
    for rank, node in enumerate(topology.node_of_rank):
        ranks[node].append((topology.slots_of_rank[rank], float(speeds[rank])))
    seen: dict[tuple[tuple[int, float], ...], int] = {}
    return np.array([seen.setdefault(tuple(sorted(each)), len(seen)) for each in ranks], dtype=np.int64)


def local_share(table: NDArray[np.float64], tokens: NDArray[np.int64], own: NDArray[np.int64]) -> float:
    """Part of the picks whose copy is on the node where their token started; 0 without tokens.

    ``table``: float64 [starts or 1, experts + 1, nodes], see ``copy_table``. ``tokens``: int64 [starts, experts]; ``own``: int64
    [starts], the node of each start.
    """
    starts = np.arange(len(tokens)) if len(table) > 1 else np.zeros(len(tokens), dtype=np.int64)
    near = np.cumsum((tokens * table[starts, :-1, own]).ravel())
    total = int(tokens.sum())
    return float(near[-1]) / total if total else 0.0
