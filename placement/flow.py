"""Exact min-max shares of many layers or slices at once, by maximum flow on whole numbers.

On a fixed map the tokens of an expert may go to any rank that holds it. The least possible load of the costliest rank is
``T* = max over sets X of experts of w(X) / s(N(X))`` (Hall's condition, bound 4 of the field notes): w = tokens, N(X) = the
ranks that hold any of X, s = their speed. From any T = w(X) / s(N(X)) a maximum flow with rank capacities T x speed either
carries every token, and T is T*, or its minimum cut names a set X of larger w(X) / s(N(X)). A few rounds end it.
T is a fraction of whole numbers and every capacity is multiplied by its denominator, so nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_UNITS = 2**50
"""Largest tokens x speed of one instance: 1024 of them still fit the flow's int64."""
MOST_INSTANCES = 512
"""Instances that share one flow network: larger networks are slower for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Hosting:
    """Which rank holds which expert in every instance, one entry for each pair of them (twins are one pair).

    ``instance``, ``expert``, ``rank``: int64 [pairs], ordered by instance, expert, rank. ``pair_of_slot``: int64
    [instances, slots], -1 = the slot serves nothing. ``slots_of_pair``: int64 [pairs], more than 1 for twins.
    """

    instance: NDArray[np.int64]
    expert: NDArray[np.int64]
    rank: NDArray[np.int64]
    pair_of_slot: NDArray[np.int64]
    slots_of_pair: NDArray[np.int64]

    def of_slots(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        """Part of every slot from the parts of pairs, float64 [instances, slots]: twins halve theirs, idle slots get 0."""
        each = np.append(part / self.slots_of_pair, 0.0)
        slots: NDArray[np.float64] = each[self.pair_of_slot]
        return slots


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The least costliest rank of every instance and how to reach it.

    ``part``: float64 [pairs], part of its expert's tokens that a pair takes; even for an expert without tokens.
    ``bottleneck_experts``: bool [instances, experts], the set X that proves it; ``bottleneck_ranks``: bool
    [instances, ranks], the only ranks that hold any of X.
    """

    part: NDArray[np.float64]
    bottleneck_experts: NDArray[np.bool_]
    bottleneck_ranks: NDArray[np.bool_]


def hosting(rows: NDArray[np.int64], rank_of_slot: NDArray[np.int64], experts: int, ranks: int) -> Hosting:
    """Pairs of a map, int64 [instances, slots], in which -1 marks a slot that serves nothing."""
    used = rows >= 0
    each = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)
    key = (each * experts + rows) * ranks + rank_of_slot
    pairs, pair, count = np.unique(key[used], return_inverse=True, return_counts=True)
    pair_of_slot = np.full(rows.shape, -1, dtype=np.int64)
    pair_of_slot[used] = pair
    owner, rank = np.divmod(pairs, ranks)
    instance, expert = np.divmod(owner, experts)
    return Hosting(instance, expert, rank, pair_of_slot, count)


def whole_speeds(speed: NDArray[np.float64]) -> NDArray[np.int64]:
    """Speeds as whole numbers, int64 [ranks] >= 1, 0 for a dead rank; exact unless they need more than 16 binary digits."""
    _, exponent = np.frexp(speed.max())
    whole = np.rint(np.ldexp(speed, 16 - int(exponent))).astype(np.int64)
    whole[speed > 0] = np.maximum(whole[speed > 0], 1)
    reduced: NDArray[np.int64] = whole // np.gcd.reduce(whole)
    return reduced


def least_worst(held: Hosting, loads: NDArray[np.int64], speed: NDArray[np.int64]) -> Flow:
    """Shares with the least costliest rank in every instance.

    ``loads``: int64 [instances, experts] >= 0, tokens; every expert with tokens needs a pair. ``speed``: int64 [ranks].
    Tokens are exact while their total x the total speed stays below ``MOST_UNITS``; larger totals lose their last digits.
    """
    loads = _fitting(loads, int(speed.sum()))
    part = np.empty(len(held.rank))
    experts = np.zeros(loads.shape, dtype=bool)
    ranks = np.zeros((len(loads), len(speed)), dtype=bool)
    for start in range(0, len(loads), MOST_INSTANCES):
        stop = min(start + MOST_INSTANCES, len(loads))
        low, high = np.searchsorted(held.instance, [start, stop])
        network = _Network(
            held.instance[low:high] - start,
            held.expert[low:high],
            held.rank[low:high],
            loads[start:stop],
            speed,
        )
        part[low:high] = network.solve()
        experts[start:stop], ranks[start:stop] = network.tight_experts, network.tight_ranks
    return Flow(part, experts, ranks)


def level(held: Hosting, loads: NDArray[np.int64], speed: NDArray[np.int64]) -> Flow:
    """Like ``least_worst``, and below the costliest rank the next one is as cool as it can be, and so on.

    The tight set leaves with its ranks, which it fills alone, and the rest is solved again: the rank loads that result are
    the least in sorted order. Shares that are to serve for a while should not leave all slack on one rank.
    """
    first = least_worst(held, loads, speed)
    part, found = first.part, first
    instances = np.arange(len(loads))
    kept = np.arange(len(held.rank))
    while True:
        loads = np.where(found.bottleneck_experts, 0, loads)
        own, expert, rank = held.instance[kept], held.expert[kept], held.rank[kept]
        at = np.searchsorted(instances, own)
        rest = loads[at, expert] > 0
        outside = ~found.bottleneck_ranks[at, rank]
        part[kept[rest & ~outside]] = 0.0
        kept = kept[rest & outside]
        if not len(kept):
            return Flow(part, first.bottleneck_experts, first.bottleneck_ranks)
        still, at = np.unique(held.instance[kept], return_inverse=True)
        loads, instances = loads[np.isin(instances, still)], still
        open_ = Hosting(
            at, held.expert[kept], held.rank[kept], held.pair_of_slot[:0], held.slots_of_pair[kept]
        )
        found = least_worst(open_, loads, speed)
        part[kept] = found.part


def _fitting(loads: NDArray[np.int64], speed: int) -> NDArray[np.int64]:
    total = loads.sum(axis=1, dtype=np.float64) * speed
    spare = np.maximum(0, np.ceil(np.log2(np.maximum(total, 1.0) / MOST_UNITS))).astype(np.int64)
    return np.where(loads > 0, np.maximum(loads >> spare[:, None], 1), 0)


class _Network:
    """One flow network over several instances: source, experts with a choice of ranks, ranks, sink.

    Experts that live on one rank have no choice: their tokens are a base load of that rank.
    ``tight_experts``, ``tight_ranks``: the set that proves each instance's level so far.
    """

    def __init__(
        self,
        instance: NDArray[np.int64],
        expert: NDArray[np.int64],
        rank: NDArray[np.int64],
        loads: NDArray[np.int64],
        speed: NDArray[np.int64],
    ) -> None:
        count, experts = loads.shape
        ranks = len(speed)
        self._shape = (count, experts, ranks)
        self._speed = speed
        self._loads = loads
        self._owner = instance * experts + expert
        self._place = instance * ranks + rank
        degree = np.bincount(self._owner, minlength=count * experts)
        self._degree = degree
        tokens = loads.ravel()[self._owner]
        fixed = degree[self._owner] == 1
        self._base = np.zeros(count * ranks, dtype=np.int64)
        np.add.at(self._base, self._place[fixed], tokens[fixed])
        self._free = np.flatnonzero(~fixed & (tokens > 0))
        self.tight_experts = np.zeros((count, experts), dtype=bool)
        self.tight_ranks = np.zeros((count, ranks), dtype=bool)
        self._top, self._bottom = self._first_level()

    def _first_level(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The larger of two bounds: all tokens over all holding ranks, and the tokens without a choice of one rank."""
        count, _, ranks = self._shape
        loaded = self._loads.ravel()[self._owner] > 0
        holds = np.zeros(count * ranks, dtype=bool)
        holds[self._place[loaded]] = True
        self.tight_ranks[:] = holds.reshape(count, ranks)
        self.tight_experts[:] = self._loads > 0
        top = self._loads.sum(axis=1)
        bottom = np.maximum((self.tight_ranks * self._speed).sum(axis=1), 1)
        base = self._base.reshape(count, ranks)
        speed = np.maximum(self._speed, 1)  # a dead rank holds nothing
        hottest = (base / speed).argmax(axis=1)
        own = base[np.arange(count), hottest]
        alone = own / speed[hottest] > top / bottom
        top, bottom = np.where(alone, own, top), np.where(alone, speed[hottest], bottom)
        self.tight_ranks[alone] = np.arange(ranks) == hottest[alone, None]
        self.tight_experts[alone] = self._fixed_on(self.tight_ranks)[alone]
        return top, bottom

    def _fixed_on(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Experts with tokens that live on one of the chosen ranks alone, bool [instances, experts]."""
        count, experts, _ = self._shape
        fixed = (self._degree[self._owner] == 1) & chosen.ravel()[self._place]
        found = np.zeros(count * experts, dtype=bool)
        found[self._owner[fixed]] = True
        return found.reshape(count, experts) & (self._loads > 0)

    def solve(self) -> NDArray[np.float64]:
        """Part of every pair, float64 [pairs]."""
        part: NDArray[np.float64] = 1.0 / self._degree[self._owner]
        open_ = np.flatnonzero(np.isin(np.arange(self._shape[0]), self._owner[self._free] // self._shape[1]))
        while len(open_):
            open_ = self._round(open_, part)
        return part

    def _round(self, open_: NDArray[np.int64], part: NDArray[np.float64]) -> NDArray[np.int64]:
        """Try the level of every open instance: write the parts of those that fit, raise the level of the others."""
        from ortools.graph.python import max_flow

        count, experts, ranks = self._shape
        active = np.zeros(count, dtype=bool)
        active[open_] = True
        free = self._free[active[self._owner[self._free] // experts]]
        owners, expert_node = np.unique(self._owner[free], return_inverse=True)
        places, rank_node = np.unique(self._place[free], return_inverse=True)
        bottom = self._bottom[owners // experts]
        supply = self._loads.ravel()[owners] * bottom
        at = places // ranks
        room = self._top[at] * self._speed[places % ranks] - self._base[places] * self._bottom[at]
        first_rank = 2 + len(owners)
        nodes = np.arange(len(owners) + len(places)) + 2
        net = max_flow.SimpleMaxFlow()
        into = net.add_arcs_with_capacity(np.zeros(len(owners), dtype=np.int64), nodes[: len(owners)], supply)
        across = net.add_arcs_with_capacity(expert_node + 2, rank_node + first_rank, supply[expert_node])
        net.add_arcs_with_capacity(
            nodes[len(owners) :], np.ones(len(places), dtype=np.int64), np.maximum(room, 0)
        )
        if net.solve(0, 1) != net.OPTIMAL:
            raise AssertionError("the flow network overflows int64 though its tokens were scaled to fit")
        short = np.zeros(count, dtype=bool)
        short[owners[net.flows(into) < supply] // experts] = True
        done = ~short[self._owner[free] // experts]
        sent = net.flows(across)
        part[free[done]] = sent[done] / supply[expert_node[done]]
        if short.any():
            cut = np.array(net.get_source_side_min_cut(), dtype=np.int64)
            cut = cut[(cut >= 2) & (cut < first_rank)] - 2
            self._raise(short, owners, cut, free, expert_node)
        return np.flatnonzero(short)

    def _raise(
        self,
        short: NDArray[np.bool_],
        owners: NDArray[np.int64],
        cut: NDArray[np.int64],
        free: NDArray[np.int64],
        expert_node: NDArray[np.int64],
    ) -> None:
        """Take the cut's experts, the ranks that hold them and what else lives on these alone as the new proof."""
        count, experts, ranks = self._shape
        in_cut = np.zeros(len(owners), dtype=bool)
        in_cut[cut] = True
        chosen = np.zeros(count * experts, dtype=bool)
        chosen[owners[in_cut]] = True
        near = np.zeros(count * ranks, dtype=bool)
        near[self._place[free[in_cut[expert_node]]]] = True
        near_ranks = near.reshape(count, ranks)
        found = chosen.reshape(count, experts) | self._fixed_on(near_ranks)
        self.tight_experts[short], self.tight_ranks[short] = found[short], near_ranks[short]
        self._top[short] = (self._loads * found).sum(axis=1)[short]
        self._bottom[short] = (near_ranks * self._speed).sum(axis=1)[short]
