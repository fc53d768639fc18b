"""The search for engines that split every batch by load, compiled: rows are weighed with shares that even out each slice.

Beside the row stands, for every slice, how much of its load each copy takes. After an exchange one round of levelling moves
load from the hotter to the cooler of every two copies of an expert; from the levelled shares of the row before, that is
close to the best shares (``flow``), and never below them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placement.kernel import (
    ARRIVALS,
    COOLING,
    HELD,
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
    list_spare,
    raise_rank,
)  # fmt: skip
from placement.kernel_anneal import COOL_EVERY, hot_rank
from placement.kernel_cache import compiled
from placement.kernel_moves import relocate

if TYPE_CHECKING:
    from placement.kernel import Index, Real, State, Whole

ROUNDS = 24
"""Rounds of levelling from even shares."""

COPY_SHARE = 128
"""Of 256 proposals, those that move a copy: with levelled shares it matters more where copies are than which experts meet."""


class Split(NamedTuple):
    """How copies share, beside a ``State``. ``n`` = slices as there.

    ``part``: [experts x ranks x n], load that a rank takes of an expert it holds. ``several``: [experts + 1], the experts with
    several copies, their number last. ``old_cost``: [ranks x n] and ``old_part``: [pairs x n], what a refused exchange
    restores; ``old_pair``: [pairs + 1], place of each in ``part`` / n, their number last.
    """

    part: Real
    several: Whole
    old_cost: Real
    old_part: Real
    old_pair: Whole


@compiled
def begin_split(s: State, p: Split) -> None:
    """Level the shares of ``s.row`` from even ones and keep the row."""
    list_several(s, p)
    share_evenly(s, p)
    for _ in range(ROUNDS):
        level_all(s, p)
    rate(s)
    s.kept_values[:] = np.inf
    keep(s)


@compiled
def list_several(s: State, p: Split) -> None:
    """List the experts with several copies."""
    experts, found = s.sizes[2], 0
    for expert in range(experts):
        if s.counts[expert] > 1:
            p.several[found] = expert
            found += 1
    p.several[experts] = found


@compiled
def share_evenly(s: State, p: Split) -> None:
    """Let all copies share evenly."""
    n, ranks = np.uintp(s.sizes[0]), s.sizes[1]
    s.cost[:] = 0
    for expert in range(s.sizes[2]):
        load = np.uintp(expert) * n
        for k in range(s.counts[expert]):
            rank = s.holders[expert * ranks + k]
            at, to = np.uintp(expert * ranks + rank) * n, np.uintp(rank) * n
            count, speed = s.cost.dtype.type(s.counts[expert]), s.inverse_speed[rank]
            for t in range(n):
                p.part[at + t] = s.loads[load + t] / count
                s.cost[to + t] += p.part[at + t] * speed


@compiled
def level_all(s: State, p: Split) -> None:
    """One round of levelling over all experts with several copies."""
    for place in range(p.several[s.sizes[2]]):
        level_expert(s, p, p.several[place])


@compiled
def level_expert(s: State, p: Split, expert: Index) -> None:
    """Move load of ``expert`` between every two of its copies until their ranks cost the same or one takes nothing."""
    n, ranks = np.uintp(s.sizes[0]), s.sizes[1]
    zero = s.cost.dtype.type(0)
    for j in range(1, s.counts[expert]):
        for k in range(j):
            one, two = s.holders[expert * ranks + j], s.holders[expert * ranks + k]
            a, b = np.uintp(one) * n, np.uintp(two) * n
            x, y = np.uintp(expert * ranks + one) * n, np.uintp(expert * ranks + two) * n
            here, there = s.inverse_speed[one], s.inverse_speed[two]
            scale = s.cost.dtype.type(1) / (here + there)
            for t in range(n):
                shift = (s.cost[a + t] - s.cost[b + t]) * scale
                shift = max(min(shift, p.part[x + t]), zero - p.part[y + t])
                p.part[x + t] -= shift
                p.part[y + t] += shift
                s.cost[a + t] -= shift * here
                s.cost[b + t] += shift * there


@compiled
def rate(s: State) -> None:
    """Compute powers, totals and the value from the costs."""
    n = np.uintp(s.sizes[0])
    for rank in range(s.sizes[1]):
        raise_rank(s, np.uintp(rank) * n, n)
    add_up(s)


@compiled
def recount(s: State, p: Split) -> None:
    """Scale the parts of every expert to its load and add up the costs anew, before rounding adds up."""
    n, ranks = np.uintp(s.sizes[0]), s.sizes[1]
    s.cost[:] = 0
    for expert in range(s.sizes[2]):
        load = np.uintp(expert) * n
        for t in range(n):
            s.fewer[t] = 0
        for k in range(s.counts[expert]):
            at = np.uintp(expert * ranks + s.holders[expert * ranks + k]) * n
            for t in range(n):
                s.fewer[t] += p.part[at + t]
        for t in range(n):
            s.fewer[t] = s.loads[load + t] / s.fewer[t] if s.fewer[t] > 0 else s.fewer[t]
        for k in range(s.counts[expert]):
            rank = s.holders[expert * ranks + k]
            at, to, speed = np.uintp(expert * ranks + rank) * n, np.uintp(rank) * n, s.inverse_speed[rank]
            for t in range(n):
                p.part[at + t] *= s.fewer[t]
                s.cost[to + t] += p.part[at + t] * speed
    s.clock[SINCE_REFRESH] = 0


@compiled
def save(s: State, p: Split, one: Index, two: Index) -> None:
    """Note the costs, and the parts of all experts with several copies and of two more."""
    experts = s.sizes[2]
    for at in range(len(s.cost)):
        p.old_cost[at] = s.cost[at]
    found = 0
    for place in range(p.several[experts]):
        found = save_expert(s, p, p.several[place], found)
    for expert in (one, two):
        if expert != experts and s.counts[expert] == 1:
            found = save_expert(s, p, expert, found)
    p.old_pair[len(p.old_pair) - 1] = found


@compiled
def save_expert(s: State, p: Split, expert: Index, found: int) -> int:
    """Note the parts of one expert behind ``found`` others and return how many there are."""
    n, ranks = np.uintp(s.sizes[0]), s.sizes[1]
    for k in range(s.counts[expert]):
        pair = expert * ranks + s.holders[expert * ranks + k]
        frm, to = np.uintp(pair) * n, np.uintp(found) * n
        for t in range(n):
            p.old_part[to + t] = p.part[frm + t]
        p.old_pair[found] = pair
        found += 1
    return found


@compiled
def restore(s: State, p: Split) -> None:
    """Take back what was saved."""
    n = np.uintp(s.sizes[0])
    for at in range(len(s.cost)):
        s.cost[at] = p.old_cost[at]
    for place in range(p.old_pair[len(p.old_pair) - 1]):
        to, frm = np.uintp(p.old_pair[place]) * n, np.uintp(place) * n
        for t in range(n):
            p.part[to + t] = p.old_part[frm + t]


@compiled
def hand_over(s: State, p: Split, expert: Index, old: Index, new: Index) -> None:
    """Let rank ``new`` take what rank ``old`` takes of ``expert``; a second share of one expert is added."""
    n, ranks = np.uintp(s.sizes[0]), s.sizes[1]
    frm, to = np.uintp(expert * ranks + old) * n, np.uintp(expert * ranks + new) * n
    g, h = np.uintp(old) * n, np.uintp(new) * n
    here, there = s.inverse_speed[old], s.inverse_speed[new]
    for t in range(n):
        load = p.part[frm + t]
        p.part[frm + t] -= load
        p.part[to + t] += load
        s.cost[g + t] -= load * here
        s.cost[h + t] += load * there


@compiled
def exchange(s: State, slot: Index, other_slot: Index) -> None:
    """Exchange the experts of two slots, their costs aside."""
    experts = s.sizes[2]
    rank, other = s.rank_of_slot[slot], s.rank_of_slot[other_slot]
    leaves, comes = s.row[slot], s.row[other_slot]
    if leaves != experts:
        relocate(s, leaves, rank, other)
    if comes != experts:
        relocate(s, comes, other, rank)
    s.row[slot], s.row[other_slot] = comes, leaves


@compiled
def overwrite(s: State, slot: Index, comes: Index) -> None:
    """Let ``slot`` hold another expert, costs aside."""
    ranks, experts = s.sizes[1], s.sizes[2]
    rank, leaves = s.rank_of_slot[slot], s.row[slot]
    if leaves != experts:
        base, last = leaves * ranks, s.counts[leaves] - 1
        s.blocked[base + rank] &= ~HELD
        for k in range(last):
            if s.holders[base + k] == rank:
                s.holders[base + k] = s.holders[base + last]
                break
        s.counts[leaves] = last
    if comes != experts:
        s.holders[comes * ranks + s.counts[comes]] = rank
        s.blocked[comes * ranks + rank] |= HELD
        s.counts[comes] += 1
    s.row[slot] = comes


@compiled
def settle(s: State, p: Split, moves: Index, bits: np.uint64) -> bool:
    """Level once and say whether the row is taken; a row that is taken is levelled once more."""
    before = s.now[VALUE]
    for again in range(2):
        if again:
            s.clock[SINCE_REFRESH] += 1
            if s.clock[SINCE_REFRESH] >= REFRESH:
                recount(s, p)
        level_all(s, p)
        rate(s)
        rise = s.now[VALUE] - before + s.now[PRICE] * moves
        if not again and not accepts(rise, s.now[TEMPERATURE], bits):
            s.now[VALUE] = before
            return False
    s.clock[ARRIVALS] += moves
    s.clock[VERSION] += 1
    list_spare(s)
    keep(s)
    return True


@compiled
def split_swap(s: State, p: Split, slot: Index, other_slot: Index, bits: np.uint64) -> None:
    """Exchange two slots if that is legal and accepted."""
    ranks, experts = s.sizes[1], s.sizes[2]
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
    save(s, p, leaves, comes)
    if leaves != experts:
        empty(s, p, leaves, other)
        hand_over(s, p, leaves, rank, other)
    if comes != experts:
        empty(s, p, comes, rank)
        hand_over(s, p, comes, other, rank)
    exchange(s, slot, other_slot)
    if not settle(s, p, moves, bits):
        exchange(s, slot, other_slot)
        restore(s, p)


@compiled
def empty(s: State, p: Split, expert: Index, rank: Index) -> None:
    """Let ``rank``, which is about to hold ``expert``, take nothing of it yet."""
    n = np.uintp(s.sizes[0])
    at = np.uintp(expert * s.sizes[1] + rank) * n
    for t in range(n):
        p.part[at + t] = 0


@compiled
def split_copy(s: State, p: Split, slot: Index, comes: Index, bits: np.uint64) -> None:
    """Let a spare slot take a new copy of ``comes`` if that is legal and accepted."""
    ranks, experts = s.sizes[1], s.sizes[2]
    rank, leaves = s.rank_of_slot[slot], s.row[slot]
    if comes in (experts, leaves) or s.blocked[comes * ranks + rank] or s.counts[comes] >= ranks:
        return
    left = 0 if leaves == experts else 1 - np.int64(s.home[leaves * ranks + rank])
    moves = 1 - np.int64(s.home[comes * ranks + rank]) - left
    save(s, p, leaves, comes)
    empty(s, p, comes, rank)
    overwrite(s, slot, comes)
    if leaves != experts:
        hand_over(s, p, leaves, rank, s.holders[leaves * ranks])
    list_several(s, p)
    if leaves != experts:
        level_expert(s, p, leaves)
    level_expert(s, p, comes)
    if not settle(s, p, moves, bits):
        overwrite(s, slot, leaves)
        list_several(s, p)
        restore(s, p)


@compiled
def way_home(s: State, slot: Index, bits: np.uint64) -> np.int64:
    """Slot whose expert ``slot`` should take in exchange to hold again what it held at the start; -1 = none.

    ``slot`` itself stands for a copy.
    """
    ranks, experts = s.sizes[1], s.sizes[2]
    wanted, rank = s.start[slot], s.rank_of_slot[slot]
    if wanted == experts or s.blocked[wanted * ranks + rank]:
        return np.int64(-1)
    if s.spare_at[slot] >= 0 and below(bits, 2):
        return np.int64(slot)
    other = s.holders[wanted * ranks + below_low(bits, s.counts[wanted])]
    for other_slot in range(s.first_slot[other], s.first_slot[other + 1]):
        if s.row[other_slot] == wanted:
            return np.int64(other_slot)
    return np.int64(-1)


@compiled
def split_anneal(s: State, p: Split, proposals: int, slices: int, home_share: int) -> None:
    """Make ``proposals``, cooling by ``now[COOLING]`` every ``COOL_EVERY``; the arguments are those of ``anneal``."""
    ranks, slots = s.sizes[1], len(s.row)
    if ranks < 2:
        return
    for _ in range(proposals):
        if s.clock[PROPOSALS] % COOL_EVERY == 0:
            s.now[TEMPERATURE] *= s.now[COOLING]
        s.clock[PROPOSALS] += 1
        bits, more = draw(s.random), draw(s.random)
        kind = np.int64(bits & np.uint64(255))
        rank = hot_rank(s, below(bits, slices)) if bits & np.uint64(256) else below(bits, ranks)
        first = s.first_slot[rank]
        slot = first + below_low(more, s.first_slot[rank + 1] - first)
        other, comes, copy = below(more, slots), s.row[slot], False
        if kind < home_share:
            slot = other
            other, comes = way_home(s, slot, bits), s.start[slot]
            copy = other == slot
        elif kind < home_share + COPY_SHARE and s.clock[SPARE] > 0:
            slot, copy = s.spare[below(more, s.clock[SPARE])], True
        if copy:
            split_copy(s, p, slot, comes, draw(s.random))
        elif other >= 0:
            split_swap(s, p, slot, other, draw(s.random))
