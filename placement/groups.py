"""Expert groups kept whole on a node: whether that can be, and which node takes which group.

A group is a run of ``experts / expert_groups`` consecutive experts, as in routers that first choose groups. Kept whole, its
copies all live on one node, so that a token's copies of one group never cross nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.errors import InfeasibleError
from placement.norm import power, root, smooth_max
from placement.relabel import assign
from placement.replicas import replica_counts
from placement.result import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Layer, Row
    from placement.topology import Topology

HIERARCHICAL = "hierarchical"
GLOBAL = "global"

MOST_ROUNDS = 4
"""Exchanges of the descent over homes, in multiples of the number of groups."""

GAIN = 1e-9
"""Smallest fall of the smooth maximum that counts as better."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rule a solve follows: ``hierarchical`` = every group's copies on one node, ``global`` = copies on any live rank.

    ``reason``: why ``auto`` fell back to ``global``, code ``policy_global``; None where the rule was asked for or nothing
    was to be kept whole.
    """

    name: str
    reason: Reason | None = None

    @property
    def hierarchical(self) -> bool:
        """Whether groups stay whole."""
        return self.name == HIERARCHICAL


def resolve(topology: Topology, experts: int) -> Policy:
    """Turn the policy of a topology into the one that its live ranks allow.

    ``auto`` keeps groups whole where they fit into the nodes and divide evenly over equal ones, and else says why not. Without
    expert groups, or on one node, there is nothing to keep whole and nothing to say.

    Raises:
        InfeasibleError: ``hierarchical`` was asked for and cannot be; says the smallest change that fits. Or every rank is
            dead.
    """
    if topology.policy == GLOBAL:
        return Policy(GLOBAL)
    small, _ = topology.live()
    wanted = topology.policy == HIERARCHICAL
    if not wanted and (small.nodes == 1 or not small.expert_groups):
        return Policy(GLOBAL)
    obstacle = _obstacle(small, experts)
    if wanted and obstacle is not None:
        raise InfeasibleError(f"policy hierarchical: {obstacle[0]}: use {obstacle[1]} or policy global")
    if not wanted and obstacle is None:
        obstacle = _lopsided(small)
    if obstacle is None:
        return Policy(HIERARCHICAL)
    text = (
        f"policy auto places experts over all {small.ranks} ranks whatever their node, because {obstacle[0]}"
    )
    return Policy(GLOBAL, Reason("policy_global", text))


def _obstacle(small: Topology, experts: int) -> tuple[str, str] | None:
    """Why the groups cannot stay whole and the smallest change that lets them, or None."""
    groups, nodes = small.expert_groups, small.nodes
    if experts % groups:
        divisor = next(number for number in range(min(groups, experts), 0, -1) if experts % number == 0)
        return (
            f"{experts} experts do not divide into {groups} groups ({experts % groups} left over)",
            f"{divisor} groups",
        )
    if groups < nodes:
        return (
            f"{groups} groups leave {nodes - groups} of {nodes} nodes without experts",
            f"at most {groups} nodes",
        )
    room = _room(small, experts)
    if room.min() > 0 and room.sum() >= groups:
        return None
    text = f"{nodes} nodes have room for {_numbers(room)} whole groups of {experts // groups} experts, {groups} must fit"
    return f"{text} and every node needs one", _more_slots(small, experts)


def _room(small: Topology, experts: int) -> NDArray[np.int64]:
    """Whole groups that every node can hold at most, int64 [nodes]."""
    slots = np.bincount(small.node_of_rank, weights=small.slots_of_rank).astype(np.int64)
    return np.minimum(slots // (experts // small.expert_groups), small.expert_groups)


def _numbers(room: NDArray[np.int64]) -> str:
    shown = ", ".join(str(number) for number in room[:8].tolist())
    return shown + (", ..." if len(room) > 8 else "")


def _more_slots(small: Topology, experts: int) -> str:
    """The fewest slots per rank, the same number added to each, with which the groups fit."""
    ranks_of_node = np.bincount(small.node_of_rank)
    slots = np.bincount(small.node_of_rank, weights=small.slots_of_rank).astype(np.int64)
    size = experts // small.expert_groups
    added = 1
    while True:
        room = (slots + added * ranks_of_node) // size
        if room.min() > 0 and room.sum() >= small.expert_groups:
            break
        added += 1
    redundant = small.slots + added * small.ranks - experts
    if len(set(small.slots_of_rank)) == 1:
        return f"at least {small.slots_of_rank[0] + added} slots per rank ({redundant} redundant slots)"
    return f"at least {added} more slots on every rank ({redundant} redundant slots)"


def _lopsided(small: Topology) -> tuple[str, str] | None:
    """Why whole groups would load equal nodes unequally, or None."""
    kinds = _kinds(np.array(small.node_of_rank), np.array(small.slots_of_rank), small.speed_of_rank())
    if any(kind != kinds[0] for kind in kinds) or small.expert_groups % small.nodes == 0:
        return None
    return f"{small.expert_groups} groups do not divide over {small.nodes} equal nodes", ""


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
    kinds = _kinds(layer.node_of_rank, np.bincount(layer.rank_of_slot), layer.inverse_speed)
    kept = np.zeros((len(kinds), len(kinds)), dtype=np.int64)
    filled = row < layer.experts
    np.add.at(kept, (home[row[filled]], node_of_slot[filled]), 1)
    equal = np.array([[one == two for two in kinds] for one in kinds])
    return assign(np.where(equal, kept, -layer.slots))[home]


def _kinds(
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
