"""Whether expert groups can be kept whole on a node, and if not, why and what would let them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placement.errors import InfeasibleError
from placement.groups import node_kinds
from placement.result import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.topology import Topology

HIERARCHICAL = "hierarchical"
GLOBAL = "global"


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
    why = _obstacle(small, experts)
    if wanted and why is not None:
        raise InfeasibleError(f"policy hierarchical: {why}: use {_cure(topology, experts)}")
    if not wanted and why is None:
        why = _lopsided(small)
    if why is None:
        return Policy(HIERARCHICAL)
    text = f"policy auto places experts over all {small.ranks} ranks whatever their node, because {why}"
    return Policy(GLOBAL, Reason("policy_global", text))


def _obstacle(small: Topology, experts: int) -> str | None:
    """Why the groups cannot stay whole, or None."""
    groups, nodes = small.expert_groups, small.nodes
    if experts % groups:
        return f"{experts} experts do not divide into {groups} groups ({experts % groups} left over)"
    if groups < nodes:
        return f"{groups} groups leave {nodes - groups} of {nodes} nodes without experts"
    room = _room(small, experts)
    if room.min() > 0 and room.sum() >= groups:
        return None
    text = f"{nodes} nodes have room for {_numbers(room)} whole groups of {experts // groups} experts, {groups} must fit"
    return f"{text} and every node needs one"


def _room(small: Topology, experts: int, added: int = 0) -> NDArray[np.int64]:
    """Whole groups that every node can hold at most with ``added`` slots more on every rank, int64 [nodes]."""
    slots = np.bincount(small.node_of_rank, weights=np.array(small.slots_of_rank) + added).astype(np.int64)
    return np.minimum(slots // (experts // small.expert_groups), small.expert_groups)


def _numbers(room: NDArray[np.int64]) -> str:
    shown = ", ".join(str(number) for number in room[:8].tolist())
    return shown + (", ..." if len(room) > 8 else "")


def _cure(topology: Topology, experts: int) -> str:
    """The smallest changes, to be made together, that let the groups stay whole; or the way out where that is enough."""
    small, _ = topology.live()
    changes = []
    if experts % topology.expert_groups:
        topology = replace(topology, expert_groups=_divisor(experts, topology.expert_groups, small.nodes))
        changes.append(f"{topology.expert_groups} groups")
    if topology.expert_groups < small.nodes:
        topology = _on_fewer_nodes(topology, experts)
        changes.append(f"at most {topology.nodes} nodes")
    small, _ = topology.live()
    if _obstacle(small, experts) is not None:
        changes.append(_more_slots(small, experts))
    return " and ".join(changes) + (" or policy global" if small.slots >= experts else "")


def _divisor(experts: int, groups: int, nodes: int) -> int:
    """The number nearest to ``groups`` that divides the experts and gives every node a group if any does."""
    divisors = [number for number in range(1, experts + 1) if experts % number == 0]
    enough = [number for number in divisors if number >= nodes] or divisors
    return min(enough, key=lambda number: (abs(number - groups), number))


def _on_fewer_nodes(topology: Topology, experts: int) -> Topology:
    """The same ranks spread in order over the most nodes on which the groups fit, or else on which each node gets one."""
    spreads = [
        replace(
            topology, node_of_rank=tuple(rank * nodes // topology.ranks for rank in range(topology.ranks))
        )
        for nodes in range(topology.nodes - 1, 0, -1)
    ]
    enough = [spread for spread in spreads if spread.live()[0].nodes <= topology.expert_groups]
    fitting = [spread for spread in enough if _obstacle(spread.live()[0], experts) is None]
    return (fitting or enough)[0]


def _more_slots(small: Topology, experts: int) -> str:
    """The fewest slots per rank, the same number added to each, with which the groups fit."""
    added = 1
    while (room := _room(small, experts, added)).min() < 1 or room.sum() < small.expert_groups:
        added += 1
    redundant = small.slots + added * small.ranks - experts
    if len(set(small.slots_of_rank)) == 1:
        return f"at least {small.slots_of_rank[0] + added} slots per rank ({redundant} redundant slots)"
    return f"at least {added} more slots on every rank ({redundant} redundant slots)"


def _lopsided(small: Topology) -> str | None:
    """Why whole groups would load equal nodes unequally, or None."""
    kinds = node_kinds(np.array(small.node_of_rank), np.array(small.slots_of_rank), small.speed_of_rank())
    if any(kind != kinds[0] for kind in kinds) or small.expert_groups % small.nodes == 0:
        return None
    return f"{small.expert_groups} groups do not divide over {small.nodes} equal nodes"
