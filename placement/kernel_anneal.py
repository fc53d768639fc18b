"""The annealing loop over the proposals of ``kernel_moves``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.kernel import (
    ARRIVALS,
    COOLING,
    LEAST_GAIN,
    PRICE,
    PROPOSALS,
    REFRESH,
    SINCE_REFRESH,
    SPARE,
    TEMPERATURE,
    VALUE,
    VERSION,
    accepts,
    add_up,
    below,
    below_low,
    draw,
    keep,
    refresh,
)  # fmt: skip
from placement.kernel_cache import compiled
from placement.kernel_moves import take_copy, take_swap, weigh_copy, weigh_swap

if TYPE_CHECKING:
    from placement.kernel import Index, State

COOL_EVERY = 64
"""Proposals at one temperature."""


@compiled
def hot_rank(s: State, t: Index) -> np.int64:
    """Costliest rank of slice ``t``, looked up once between two accepted proposals."""
    if s.hot_version[t] != s.clock[VERSION]:
        n = s.sizes[0]
        best, most = 0, s.cost[t]
        for rank in range(1, s.sizes[1]):
            if s.cost[rank * n + t] > most:
                best, most = rank, s.cost[rank * n + t]
        s.hot[t] = best
        s.hot_version[t] = s.clock[VERSION]
    found: np.int64 = s.hot[t]
    return found


@compiled
def after(s: State) -> None:
    """Count an accepted proposal and keep the row if it is good."""
    s.clock[VERSION] += 1
    s.clock[SINCE_REFRESH] += 1
    if s.clock[SINCE_REFRESH] >= REFRESH:
        refresh(s)
    else:
        add_up(s)
    keep(s)


@compiled
def try_swap(s: State, slot: Index, other_slot: Index, bits: np.uint64) -> None:
    """Weigh the exchange of two slots and take it if it is legal and accepted."""
    ranks = s.sizes[1]
    rank, other = s.rank_of_slot[slot], s.rank_of_slot[other_slot]
    leaves, comes = s.row[slot], s.row[other_slot]
    if rank == other or leaves == comes:
        return
    if s.blocked[leaves * ranks + other] or s.blocked[comes * ranks + rank]:
        return
    moves = (
        np.int64(s.home[leaves * ranks + rank]) - np.int64(s.home[leaves * ranks + other])
        + np.int64(s.home[comes * ranks + other]) - np.int64(s.home[comes * ranks + rank])
    )  # fmt: skip
    value = weigh_swap(s, rank, other, leaves, comes)
    if accepts(value - s.now[VALUE] + s.now[PRICE] * moves, s.now[TEMPERATURE], bits):
        take_swap(s, slot, other_slot)
        s.clock[ARRIVALS] += moves
        after(s)


@compiled
def try_copy(s: State, slot: Index, comes: Index, bits: np.uint64) -> None:
    """Weigh a new copy of ``comes`` in a spare slot and take it if it is legal and accepted."""
    ranks, experts = s.sizes[1], s.sizes[2]
    rank, leaves = s.rank_of_slot[slot], s.row[slot]
    if comes in (experts, leaves) or s.blocked[comes * ranks + rank] or s.counts[comes] >= ranks:
        return
    left = 0 if leaves == experts else 1 - np.int64(s.home[leaves * ranks + rank])
    moves = 1 - np.int64(s.home[comes * ranks + rank]) - left
    value = weigh_copy(s, slot, comes)
    if accepts(value - s.now[VALUE] + s.now[PRICE] * moves, s.now[TEMPERATURE], bits):
        take_copy(s, slot, comes)
        s.clock[ARRIVALS] += moves
        after(s)


@compiled
def go_home(s: State, slot: Index, bits: np.uint64) -> None:
    """Propose that ``slot`` takes back the expert that it held at the start."""
    ranks, experts = s.sizes[1], s.sizes[2]
    wanted, rank = s.start[slot], s.rank_of_slot[slot]
    if wanted == experts or s.blocked[wanted * ranks + rank]:
        return
    if s.spare_at[slot] >= 0 and below(bits, 2):
        try_copy(s, slot, wanted, draw(s.random))
        return
    other = s.holders[wanted * ranks + below_low(bits, s.counts[wanted])]
    for other_slot in range(s.first_slot[other], s.first_slot[other + 1]):
        if s.row[other_slot] == wanted:
            try_swap(s, slot, other_slot, draw(s.random))
            return


@compiled
def anneal(s: State, proposals: int, slices: int, copy_share: int, home_share: int) -> None:
    """Make ``proposals``, cooling by ``now[COOLING]`` every ``COOL_EVERY``.

    ``slices``: those that are not padding. ``copy_share``, ``home_share``: of 256 proposals, how many are copies and how
    many lead back to the start.
    """
    ranks, slots = s.sizes[1], len(s.row)
    if ranks < 2:
        return
    for _ in range(proposals):
        if s.clock[PROPOSALS] % COOL_EVERY == 0:
            s.now[TEMPERATURE] *= s.now[COOLING]
        s.clock[PROPOSALS] += 1
        bits, more = draw(s.random), draw(s.random)
        kind = np.int64(bits & np.uint64(255))
        if kind < home_share:
            go_home(s, below(more, slots), bits)
            continue
        rank = hot_rank(s, below(bits, slices)) if bits & np.uint64(256) else below(bits, ranks)
        first = s.first_slot[rank]
        slot = first + below_low(more, s.first_slot[rank + 1] - first)
        if kind < home_share + copy_share and s.clock[SPARE] > 0:
            try_copy(s, s.spare[below(more, s.clock[SPARE])], s.row[slot], draw(s.random))
        else:
            try_swap(s, slot, below(more, slots), draw(s.random))


@compiled
def level(s: State, most: int) -> int:
    """With one slice: make the best swap of the costliest rank until none cools it, at most ``most`` swaps.

    The best swap leaves the lower maximum on the two ranks; as both fall below the old maximum, ties between hottest ranks
    do not stall it. Returns the swaps made.
    """
    ranks = s.sizes[1]
    for done in range(most):
        rank = 0
        for other in range(1, ranks):
            if s.cost[other] > s.cost[rank]:
                rank = other
        best, lowest, partner = -1, s.cost[rank] * (1.0 - LEAST_GAIN), -1
        for slot in range(s.first_slot[rank], s.first_slot[rank + 1]):
            leaves = s.row[slot]
            for other_slot in range(len(s.row)):
                other, comes = s.rank_of_slot[other_slot], s.row[other_slot]
                change = s.unit[leaves] - s.unit[comes]
                if change <= 0.0 or other == rank:
                    continue
                here = s.cost[rank] - change * s.inverse_speed[rank]
                there = s.cost[other] + change * s.inverse_speed[other]
                value = max(here, there)
                if value < lowest and not (
                    s.blocked[leaves * ranks + other] or s.blocked[comes * ranks + rank]
                ):
                    best, lowest, partner = slot, value, other_slot
        if best < 0:
            return done
        take_swap(s, best, partner)
        after(s)
    return most
