"""Where experts can live: ranks, their nodes, slots and speeds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import numpy as np

from placement.checks import LARGEST, SMALLEST, real_tuple, whole, whole_tuple
from placement.errors import InfeasibleError, TopologyError

if TYPE_CHECKING:
    from numpy.typing import NDArray


POLICIES = ("auto", "hierarchical", "global")

MOST_SLOTS = 2**20
"""Slots of one layer, far above any pool: a slip of the pen is refused before memory is asked for."""

MOST_SPEEDUP = 1000.0
"""Speed of the fastest rank over that of the slowest; beyond it a rank is as good as dead."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The ranks of one EP group; slots are numbered rank by rank, dead ranks included.

    ``slots_of_rank``: slots of every rank in one layer. ``node_of_rank``: node number of every rank, from 0 without gaps.
    ``speeds``: relative speed of every rank, in any unit; empty = all equal. ``dead``: ranks that serve nothing.
    ``expert_groups``: number of equal runs of consecutive experts of which each is to keep all copies on one node; 0 = none.
    ``policy``: ``hierarchical`` = groups must stay whole, ``global`` = they need not, ``auto`` = they do where they can
    (``policy.resolve`` says which it became, and so does the result of a solve).

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
        self._take()
        ranks = len(self.slots_of_rank)
        if ranks < 1:
            raise TopologyError("a topology needs at least 1 rank")
        if min(self.slots_of_rank) < 1:
            raise TopologyError(
                f"a rank has {min(self.slots_of_rank)} slots, must be at least 1: name an unused rank dead"
            )
        _check_size(self.slots)
        if len(self.node_of_rank) != ranks:
            raise TopologyError(f"node_of_rank names {len(self.node_of_rank)} ranks, slots_of_rank {ranks}")
        nodes = sorted(set(self.node_of_rank))
        if nodes != list(range(len(nodes))):
            raise TopologyError(f"nodes must be numbered from 0 without gaps, got {nodes}")
        if self.speeds and len(self.speeds) != ranks:
            raise TopologyError(f"speeds names {len(self.speeds)} ranks, slots_of_rank {ranks}")
        self._check_speeds()
        for rank in sorted(self.dead):
            if not 0 <= rank < ranks:
                raise TopologyError(f"dead rank {rank} does not exist, ranks are 0..{ranks - 1}")
        self._check_policy()

    def _take(self) -> None:
        """Accept lists and numpy's numbers."""
        dead = tuple(self.dead) if isinstance(self.dead, (set, frozenset)) else self.dead
        taken = {
            "slots_of_rank": whole_tuple("slots_of_rank", self.slots_of_rank, error=TopologyError),
            "node_of_rank": whole_tuple("node_of_rank", self.node_of_rank, 0, TopologyError),
            "speeds": real_tuple("speed", self.speeds, TopologyError),
            "dead": frozenset(whole_tuple("dead", dead, 0, TopologyError)),
            "expert_groups": whole("expert_groups", self.expert_groups, 0, TopologyError),
        }
        for name, value in taken.items():
            object.__setattr__(self, name, value)

    def _check_speeds(self) -> None:
        for rank, speed in enumerate(self.speeds):
            if not SMALLEST <= speed <= LARGEST:
                raise TopologyError(
                    f"speed of rank {rank} is {speed}, must be above 0, from {SMALLEST} to {LARGEST}"
                )
        if self.speeds and max(self.speeds) > MOST_SPEEDUP * min(self.speeds):
            raise TopologyError(
                f"speeds go from {min(self.speeds)} to {max(self.speeds)}: the fastest rank may be {MOST_SPEEDUP:g} times as "
                "fast as the slowest at most; name a slower one dead"
            )

    def _check_policy(self) -> None:
        if not (isinstance(self.policy, str) and self.policy in POLICIES):
            raise TopologyError(f"policy {self.policy!r} is unknown: use one of {', '.join(POLICIES)}")
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
        ranks, nodes = whole("ranks", ranks, 1, TopologyError), whole("nodes", nodes, 1, TopologyError)
        slots_per_rank = whole("slots_per_rank", slots_per_rank, 1, TopologyError)
        _check_size(ranks * slots_per_rank)
        if nodes > ranks:
            raise TopologyError(
                f"{nodes} nodes for {ranks} ranks (EP size {ranks}): use at most {ranks} nodes"
            )
        node_of_rank = tuple(rank * nodes // ranks for rank in range(ranks))
        return cls((slots_per_rank,) * ranks, node_of_rank, speeds, dead, expert_groups, policy)

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

    def check_alive(self, experts: int) -> None:
        """Refuse a pool without a live rank.

        Raises:
            InfeasibleError: names the fewest ranks whose slots hold every expert, or that not even all of them do.
        """
        if self.live_ranks:
            return
        held = list(accumulate(sorted(self.slots_of_rank, reverse=True)))
        fewest = bisect_left(held, experts) + 1
        text = f"all {self.ranks} ranks are dead: "
        if fewest > self.ranks:
            raise InfeasibleError(
                f"{text}all of them alive would have {held[-1]} slots for {experts} experts: "
                f"add at least {experts - held[-1]} slots"
            )
        raise InfeasibleError(f"{text}at least {fewest} must live")

    def check_holds(self, experts: int) -> None:
        """Refuse a pool whose live slots cannot hold every expert.

        Raises:
            InfeasibleError: names the smallest number of slots per rank, of redundant slots and of ranks that fits; where
                ranks have unequal slots, the number of slots to add. Or every rank is dead.
        """
        self.check_alive(experts)
        live = self.live_ranks
        usable = sum(self.slots_of_rank[rank] for rank in live)
        if usable >= experts:
            return
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


def _check_size(slots: int) -> None:
    if slots > MOST_SLOTS:
        raise TopologyError(f"{slots} slots a layer are above the limit of {MOST_SLOTS}")


def least_redundancy(experts: int, ranks: int, redundant: int | None = None) -> tuple[int, int]:
    """The smallest number of redundant slots that gives every rank equal slots, and the slots per rank.

    With ``redundant`` given, checks that number instead of choosing one.

    Raises:
        InfeasibleError: ``redundant`` is no whole number, negative, or leaves a rank with another number of slots.
        TopologyError: ``experts`` or ``ranks`` is no whole number or below 1.
    """
    experts, ranks = whole("experts", experts, 1, TopologyError), whole("ranks", ranks, 1, TopologyError)
    least = -experts % ranks
    redundant = least if redundant is None else whole("redundant", redundant, error=InfeasibleError)
    if redundant < 0:
        raise InfeasibleError(f"{redundant} redundant slots: use at least {least}")
    if (experts + redundant) % ranks:
        raise InfeasibleError(
            f"{experts} experts + {redundant} redundant slots do not divide over {ranks} ranks: "
            f"use {redundant + -(experts + redundant) % ranks} redundant slots"
        )
    return redundant, (experts + redundant) // ranks
