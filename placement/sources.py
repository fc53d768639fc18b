"""Where tokens start: give the experts of a node to the equal node where most of their tokens come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Row
    from placement.topology import Topology


def node_tokens(rank_tokens: NDArray[np.int64], topology: Topology) -> NDArray[np.int64]:
    """Tokens of one layer by the node they started on, int64 [nodes, experts], from int64 [ranks, experts]."""
    tokens = np.zeros((topology.nodes, rank_tokens.shape[1]), dtype=np.int64)
    np.add.at(tokens, np.array(topology.node_of_rank), rank_tokens)
    return tokens


def near_sources(home: NDArray[np.int64], tokens: NDArray[np.int64], topology: Topology) -> NDArray[np.int64]:
    """Homes, int64 [experts], with the experts of equal nodes exchanged as a whole until no exchange starts more tokens at home.

    ``tokens``: int64 [nodes, experts], see ``node_tokens``. Nodes are equal when their ranks have the same slots and speeds, so
    that neither balance nor fan-out changes.
    """
    kinds = _kinds(topology)
    local = np.stack([tokens[:, home == part].sum(axis=1) for part in range(topology.nodes)])
    target = np.arange(topology.nodes)
    while True:
        here = local[np.arange(len(target)), target]
        there = local[:, target]
        gain = there + there.T - here[:, None] - here
        gain[kinds[:, None] != kinds] = 0
        one, two = divmod(int(gain.argmax()), len(target))
        if gain[one, two] <= 0:
            return target[home]
        target[[one, two]] = target[[two, one]]


def _kinds(topology: Topology) -> NDArray[np.int64]:
    """A number for each node, the same for equal nodes, int64 [nodes]."""
    speeds = topology.speed_of_rank()
    ranks: list[list[tuple[int, float]]] = [[] for _ in range(topology.nodes)]
    for rank, node in enumerate(topology.node_of_rank):
        ranks[node].append((topology.slots_of_rank[rank], float(speeds[rank])))
    seen: dict[tuple[tuple[int, float], ...], int] = {}
    return np.array([seen.setdefault(tuple(sorted(each)), len(seen)) for each in ranks], dtype=np.int64)


def local_share(row: Row, tokens: NDArray[np.int64], topology: Topology) -> float:
    """Part of the picks whose copy is on the node where their token started, copies taken with equal chance; 0 without tokens.

    ``row``: int64 [slots], the number of experts = empty. ``tokens``: int64 [nodes, experts].
    """
    experts = tokens.shape[1]
    node = np.array(topology.node_of_rank)[topology.rank_of_slot()]
    held = row < experts
    copies = np.bincount(row[held], minlength=experts)
    near = np.cumsum(tokens[node[held], row[held]] / copies[row[held]])
    total = int(tokens.sum())
    return float(near[-1]) / total if total and len(near) else 0.0
