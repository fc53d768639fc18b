"""Expert groups kept whole on a node: which node takes which group.

A group is a run of ``experts / expert_groups`` consecutive experts, as in routers that first choose groups. Kept whole, its
copies all live on one node, so that a token's copies of one group never cross nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.norm import power, root, smooth_max
from placement.relabel import assign
from placement.replicas import replica_counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row

MOST_ROUNDS = 4
"""Exchanges of the descent over homes, in multiples of the number of groups."""

GAIN = 1e-9
"""Smallest fall of the smooth maximum that counts as better."""


def main_nodes(
    row: NDArray[np.int64], node_of_slot: NDArray[np.int64], experts: int, groups: int
) -> NDArray[np.int64]:
    """The node that holds most copies of each expert's group (ties: the lowest), int64 [experts].

    ``row``: int64 [slots], any id outside 0..experts-1 is not counted. ``node_of_slot``: int64 [slots].
    """
    return np.repeat(_held(row, node_of_slot, experts, groups).argmax(axis=1), experts // groups)


def _held(
    row: NDArray[np.int64], node_of_slot: NDArray[np.int64], experts: int, groups: int
) -> NDArray[np.int64]:
    """Slots of every node that hold an expert of each group, int64 [groups, nodes]."""
    held = np.zeros((groups, int(node_of_slot.max()) + 1), dtype=np.int64)
    known = (row >= 0) & (row < experts)
    np.add.at(held, (row[known] // (experts // groups), node_of_slot[known]), 1)
    return held


@dataclass(slots=True)
class _Homes:
    """Groups on nodes while they are being assigned.

    ``node``: int64 [groups], -1 = not yet. ``room``: int64 [nodes], whole groups that still fit. ``count``: int64 [nodes].
    """

    node: NDArray[np.int64]
    room: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, layer: Layer, groups: int) -> _Homes:
        slots = np.bincount(layer.node_of_rank[layer.rank_of_slot])
        room = slots // (layer.experts // groups)
        return cls(np.full(groups, -1, dtype=np.int64), room, np.zeros_like(room))

    def open(self) -> NDArray[np.bool_]:
        """Nodes that may take one more group so that the groups left can still give every node one, bool [nodes]."""
        left = int((self.node < 0).sum())
        empty = self.count == 0
        return empty if left <= int(empty.sum()) else self.room > 0

    def put(self, group: int, node: int) -> None:
        old = int(self.node[group])
        if old >= 0:
            self.room[old] += 1
            self.count[old] -= 1
        self.node[group] = node
        self.room[node] -= 1
        self.count[node] += 1


def kept_homes(layer: Layer, row: Row, groups: int) -> NDArray[np.int64]:
    """Homes that keep most slots of a live row, int64 [experts]: those of the row itself where no group is split."""
    held = _held(row, layer.node_of_rank[layer.rank_of_slot], layer.experts, groups)
    homes = _Homes.of(layer, groups)
    for flat in np.argsort(-held, axis=None, kind="stable").tolist():
        group, node = divmod(flat, held.shape[1])
        if homes.node[group] < 0 and homes.open()[node]:
            homes.put(group, node)
    for group in np.flatnonzero(homes.node < 0).tolist():
        homes.put(group, int(homes.open().argmax()))
    return np.repeat(homes.node, layer.experts // groups)


def fresh_homes(layer: Layer, groups: int) -> NDArray[np.int64]:
    """Homes that keep the hottest node of every slice cool, int64 [experts].

    Groups go in descending mean + deviation to the node that raises the smooth maximum of the nodes least (ties: fewest
    groups, lowest node); then the best move or exchange is made until none helps.
    """
    size = layer.experts // groups
    parts = layer.loads[:, :-1].reshape(len(layer.weights), groups, size)
    loads = np.cumsum(parts, axis=2)[:, :, -1]
    speed = np.bincount(layer.node_of_rank, weights=1.0 / layer.inverse_speed).astype(np.float64)
    homes = _Homes.of(layer, groups)
    costs = np.zeros((len(layer.weights), len(speed)))
    mean = (loads * layer.weights[:, None]).sum(axis=0)
    spread = np.sqrt((np.square(loads - mean) * layer.weights[:, None]).sum(axis=0))
    for group in np.argsort(-(mean + spread), kind="stable").tolist():
        nodes = np.flatnonzero(homes.open())
        value = smooth_max(costs, nodes, costs[:, nodes] + loads[:, [group]] / speed[nodes], layer.weights)
        node = int(nodes[np.lexsort((nodes, homes.count[nodes], value))[0]])
        homes.put(group, node)
        costs[:, node] += loads[:, group] / speed[node]
    _descend(homes, costs, loads, layer.weights, speed)
    return np.repeat(homes.node, size)


def _mean_root(powers: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    values: NDArray[np.float64] = (root(powers) * weights[:, None]).sum(axis=0)
    return values


def moved_near(layer: Layer, home: NDArray[np.int64], row: Row) -> NDArray[np.int64]:
    """Exchange equal nodes in ``home`` (int64 [experts]) so that most slots of a live row stay, int64 [experts]."""
    node_of_slot = layer.node_of_rank[layer.rank_of_slot]
    kinds = node_kinds(layer.node_of_rank, np.bincount(layer.rank_of_slot), layer.inverse_speed)
    kept = np.zeros((len(kinds), len(kinds)), dtype=np.int64)
    filled = row < layer.experts
    np.add.at(kept, (home[row[filled]], node_of_slot[filled]), 1)
    equal = np.array([[one == two for two in kinds] for one in kinds])
    return assign(np.where(equal, kept, -layer.slots))[home]


def node_kinds(
    node_of_rank: NDArray[np.int64], sizes: NDArray[np.int64], speeds: NDArray[np.float64]
) -> list[list[tuple[int, float]]]:
    """What every node is made of: slots and speed of its ranks, in order of size; equal nodes have equal lists."""
    each = list(zip(node_of_rank.tolist(), sizes.tolist(), speeds.tolist(), strict=True))
    return [
        sorted((size, speed) for at, size, speed in each if at == node)
        for node in range(int(node_of_rank.max()) + 1)
    ]


def _descend(
    homes: _Homes,
    costs: NDArray[np.float64],
    loads: NDArray[np.float64],
    weights: NDArray[np.float64],
    speed: NDArray[np.float64],
) -> None:
    """Make the best move or exchange of groups again and again while the smooth maximum of the nodes falls."""
    for _ in range(MOST_ROUNDS * len(homes.node)):
        now = float(_mean_root(np.cumsum(power(costs), axis=1)[:, -1:], weights)[0])
        one, other, target = _candidates(homes)
        if not len(one):
            return
        source = homes.node[one]
        back = np.where(other >= 0, loads[:, np.maximum(other, 0)], 0.0)
        change = loads[:, one] - back
        powers = power(costs)
        rest = np.cumsum(powers, axis=1)[:, -1:] - powers[:, source] - powers[:, target]
        left = np.maximum(costs[:, source] - change / speed[source], 0.0)
        after = np.maximum(rest, 0.0) + power(left) + power(costs[:, target] + change / speed[target])
        values = _mean_root(after, weights)
        best = int(values.argmin())
        if values[best] > now - GAIN:
            return
        costs[:, source[best]] -= change[:, best] / speed[source[best]]
        costs[:, target[best]] += change[:, best] / speed[target[best]]
        homes.put(int(one[best]), int(target[best]))
        if other[best] >= 0:
            homes.put(int(other[best]), int(source[best]))


def _candidates(homes: _Homes) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Groups to send, groups that come back (-1 = none) and the nodes they go to, int64 [candidates] each."""
    node = homes.node
    one, other = np.nonzero(np.triu(node[:, None] != node))
    movable = (
        (homes.count[node] > 1)[:, None] & (homes.room > 0) & (node[:, None] != np.arange(len(homes.room)))
    )
    sent, target = np.nonzero(movable)
    return (
        np.concatenate([one, sent]),
        np.concatenate([other, np.full(len(sent), -1, dtype=np.int64)]),
        np.concatenate([node[other], target]),
    )


def copies(layer: Layer, loads: NDArray[np.float64]) -> NDArray[np.int64]:
    """Copies of every expert that minimise the largest copy within each node, or over all ranks without homes.

    ``loads``: float64 [experts]. Returns int64 [experts], see ``replicas.replica_counts``.
    """
    counts = np.ones(layer.experts, dtype=np.int64)
    capacity = layer.capacity()
    for experts, ranks in layer.blocks():
        counts[experts] = replica_counts(loads[experts], capacity[ranks])
    return counts
