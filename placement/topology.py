"""Where experts can live: ranks, their nodes, slots and speeds."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Self

import numpy as np

from placement.errors import InfeasibleError, TopologyError

if TYPE_CHECKING:
    from numpy.typing import NDArray


POLICIES = ("auto", "hierarchical", "global")


@dataclass(frozen=True, slots=True)
class Topology:
    """The ranks of one EP group; slots are numbered rank by rank, dead ranks included.

    ``slots_of_rank``: slots of every rank in one layer. ``node_of_rank``: node number of every rank, from 0 without gaps.
    ``speeds``: relative speed of every rank, 1.0 = normal; empty = all equal. ``dead``: ranks that serve nothing.
    ``expert_groups``: number of equal runs of consecutive experts of which each is to keep all copies on one node; 0 = none.
    ``policy``: ``hierarchical`` = groups must stay whole, ``global`` = they need not, ``auto`` = they do where they can
    (``groups.resolve`` says which it became, and so does the result of a solve).

    Raises:
        TopologyError: a length, a node number, a speed, a dead rank or the policy does not fit.
    """

    slots_of_rank: tuple[int, ...]
    node_of_rank: tuple[int, ...]
    speeds: tuple[float, ...] = ()
    dead: frozenset[int] = frozenset()
    expert_groups: int = 0
    policy: str = "auto"

    def __post_init__(self) -> None:
        ranks = len(self.slots_of_rank)
        if ranks < 1:
            raise TopologyError("a topology needs at least 1 rank")
        if len(self.node_of_rank) != ranks:
            raise TopologyError(f"node_of_rank names {len(self.node_of_rank)} ranks, slots_of_rank {ranks}")
        if min(self.slots_of_rank) < 1:
            raise TopologyError(
                f"a rank has {min(self.slots_of_rank)} slots, must be at least 1: name an unused rank dead"
            )
        if set(self.node_of_rank) != set(range(max(self.node_of_rank) + 1)):
            raise TopologyError(
                f"nodes must be numbered from 0 without gaps, got {sorted(set(self.node_of_rank))}"
            )
        if self.speeds and len(self.speeds) != ranks:
            raise TopologyError(f"speeds names {len(self.speeds)} ranks, slots_of_rank {ranks}")
        for rank, speed in enumerate(self.speeds):
            if not (isfinite(speed) and speed > 0):
                raise TopologyError(f"speed of rank {rank} is {speed}, must be finite and above 0")
        for rank in self.dead:
            if not 0 <= rank < ranks:
                raise TopologyError(f"dead rank {rank} does not exist, ranks are 0..{ranks - 1}")
        self._check_policy()

    def _check_policy(self) -> None:
        if self.policy not in POLICIES:
            raise TopologyError(f"policy {self.policy!r} is unknown: use one of {', '.join(POLICIES)}")
        if self.expert_groups < 0:
            raise TopologyError(f"expert_groups is {self.expert_groups}, must be at least 1, or 0 for none")
        if self.policy == "hierarchical" and not self.expert_groups:
            raise TopologyError(
                "policy hierarchical needs expert_groups, the number of the model's router groups"
            )

    @classmethod
    def uniform(
        cls,
        *,
        ranks: int,
        slots_per_rank: int,
        nodes: int = 1,
        speeds: tuple[float, ...] = (),
        dead: frozenset[int] = frozenset(),
        expert_groups: int = 0,
        policy: str = "auto",
    ) -> Self:
        """Equal ranks, spread over the nodes in order and as evenly as possible.

        Raises:
            TopologyError: a number is below 1, or there are more nodes than ranks.
        """
        for name, value in (("ranks", ranks), ("nodes", nodes), ("slots_per_rank", slots_per_rank)):
            if value < 1:
                raise TopologyError(f"{name} is {value}, must be at least 1")
        if nodes > ranks:
            raise TopologyError(
                f"{nodes} nodes for {ranks} ranks (EP size {ranks}): use at most {ranks} nodes"
            )
        node_of_rank = tuple(rank * nodes // ranks for rank in range(ranks))
        return cls((slots_per_rank,) * ranks, node_of_rank, speeds, frozenset(dead), expert_groups, policy)

    @property
    def ranks(self) -> int:
        """Number of ranks, dead ones included."""
        return len(self.slots_of_rank)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return max(self.node_of_rank) + 1

    @property
    def slots(self) -> int:
        """Slots of one layer, those of dead ranks included: the width of a map."""
        return sum(self.slots_of_rank)

    @property
    def live_ranks(self) -> tuple[int, ...]:
        """Ranks that serve."""
        return tuple(rank for rank in range(self.ranks) if rank not in self.dead)

    def rank_of_slot(self) -> NDArray[np.int64]:
        """Rank of every slot, int64 [slots]."""
        return np.repeat(np.arange(self.ranks), self.slots_of_rank)

    def speed_of_rank(self) -> NDArray[np.float64]:
        """Speed of every rank, float64 [ranks]; dead ranks have 0."""
        speed = np.ones(self.ranks) if not self.speeds else np.array(self.speeds, dtype=np.float64)
        speed[list(self.dead)] = 0.0
        return speed

    def live(self) -> tuple[Topology, NDArray[np.int64]]:
        """The same group without its dead ranks, and the slots that remain, int64 [live slots].

        Raises:
            InfeasibleError: every rank is dead.
        """
        keep = self.live_ranks
        if not keep:
            raise InfeasibleError(f"all {self.ranks} ranks are dead: at least 1 must live")
        nodes = {node: new for new, node in enumerate(sorted({self.node_of_rank[rank] for rank in keep}))}
        small = Topology(
            tuple(self.slots_of_rank[rank] for rank in keep),
            tuple(nodes[self.node_of_rank[rank]] for rank in keep),
            tuple(self.speeds[rank] for rank in keep) if self.speeds else (),
            expert_groups=self.expert_groups,
            policy=self.policy,
        )
        return small, np.flatnonzero(np.isin(self.rank_of_slot(), keep))

    def check_holds(self, experts: int) -> None:
        """Refuse a pool whose live slots cannot hold every expert.

        Raises:
            InfeasibleError: names the smallest number of slots per rank, of redundant slots and of ranks that fits; where
                ranks have unequal slots, the number of slots to add.
        """
        live = self.live_ranks
        usable = sum(self.slots_of_rank[rank] for rank in live)
        if live and usable >= experts:
            return
        if not live:
            raise InfeasibleError(f"all {self.ranks} ranks are dead: at least 1 must live")
        need = -(-experts // len(live))
        widest = max(self.slots_of_rank[rank] for rank in live)
        text = (
            f"{len(live)} live ranks have {usable} slots for {experts} experts, {experts - usable} too few: "
        )
        if len({self.slots_of_rank[rank] for rank in live}) > 1:
            text += f"add at least {experts - usable} slots"
        else:
            text += f"use at least {need} slots per rank ({need * len(live) - experts} redundant slots)"
        text += f", or at least {-(-experts // widest)} live ranks of {widest} slots"
        raise InfeasibleError(text)


def least_redundancy(experts: int, ranks: int, redundant: int | None = None) -> tuple[int, int]:
    """The smallest number of redundant slots that gives every rank equal slots, and the slots per rank.

    With ``redundant`` given, checks that number instead of choosing one.

    Raises:
        InfeasibleError: ``redundant`` is negative or leaves a rank with another number of slots.
    """
    if experts < 1 or ranks < 1:
        raise TopologyError(f"{experts} experts on {ranks} ranks: both must be at least 1")
    least = -experts % ranks
    if redundant is None:
        redundant = least
    if redundant < 0:
        raise InfeasibleError(f"{redundant} redundant slots: use at least {least}")
    if (experts + redundant) % ranks:
        raise InfeasibleError(
            f"{experts} experts + {redundant} redundant slots do not divide over {ranks} ranks: "
            f"use {redundant + -(experts + redundant) % ranks} redundant slots"
        )
    return redundant, (experts + redundant) // ranks
