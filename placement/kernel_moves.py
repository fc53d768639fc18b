"""Swaps and copies, compiled: what a proposal would lead to, and how it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.kernel import FORBIDDEN, HELD, list_spare, mean_root, one_copy, raise_rank
from placement.kernel_cache import compiled

if TYPE_CHECKING:
    from placement.kernel import Index, State

# --- swaps --------------------------------------------------------------------------------------------------------


@compiled
def weigh_swap(s: State, rank: Index, other: Index, leaves: Index, comes: Index) -> float:
    """Value after ``rank`` gives expert ``leaves`` to ``other`` for ``comes``."""
    n = np.uintp(s.sizes[0])
    g, h = np.uintp(rank) * n, np.uintp(other) * n
    one, two = np.uintp(leaves) * n, np.uintp(comes) * n
    here, there = s.inverse_speed[rank], s.inverse_speed[other]
    nothing = s.total.dtype.type(0)
    for t in range(n):
        change = s.unit[two + t] - s.unit[one + t]
        x = s.cost[g + t] + change * here
        y = s.cost[h + t] - change * there
        x *= x
        x *= x
        x *= x
        x *= x
        y *= y
        y *= y
        y *= y
        y *= y
        others = s.total[t] - s.power[g + t] - s.power[h + t]
        s.trial_total[t] = max(others, nothing) + (x + y)
    return mean_root(s.trial_total, s.roots, s.weights, n)


@compiled
def take_swap(s: State, slot: Index, other_slot: Index) -> None:
    """Exchange the experts of two slots whose swap was weighed last."""
    n = np.uintp(s.sizes[0])
    experts = s.sizes[2]
    rank, other = s.rank_of_slot[slot], s.rank_of_slot[other_slot]
    leaves, comes = s.row[slot], s.row[other_slot]
    g, h = np.uintp(rank) * n, np.uintp(other) * n
    one, two = np.uintp(leaves) * n, np.uintp(comes) * n
    for t in range(n):
        s.cost[g + t] += (s.unit[two + t] - s.unit[one + t]) * s.inverse_speed[rank]
    for t in range(n):
        s.cost[h + t] -= (s.unit[two + t] - s.unit[one + t]) * s.inverse_speed[other]
    raise_rank(s, g, n)
    raise_rank(s, h, n)
    if leaves != experts:
        relocate(s, leaves, rank, other)
    if comes != experts:
        relocate(s, comes, other, rank)
    s.row[slot], s.row[other_slot] = comes, leaves
    mine, its = s.spare_at[slot], s.spare_at[other_slot]
    s.spare_at[slot], s.spare_at[other_slot] = its, mine
    if mine >= 0:
        s.spare[mine] = other_slot
    if its >= 0:
        s.spare[its] = slot


@compiled
def relocate(s: State, expert: Index, old: Index, new: Index) -> None:
    """Note that a copy of ``expert`` left rank ``old`` for ``new``."""
    base = expert * s.sizes[1]
    s.blocked[base + old] &= FORBIDDEN
    s.blocked[base + new] |= HELD
    for k in range(s.counts[expert]):
        if s.holders[base + k] == old:
            s.holders[base + k] = new
            break


# --- copies -------------------------------------------------------------------------------------------------------


@compiled
def touch(s: State, slot: Index, comes: Index) -> int:
    """List in ``touched`` the ranks whose cost changes when ``slot`` takes a new copy of ``comes``, its own rank first."""
    ranks, experts = s.sizes[1], s.sizes[2]
    rank, leaves = s.rank_of_slot[slot], s.row[slot]
    s.touched[0] = rank
    found = 1
    if leaves != experts:
        for k in range(s.counts[leaves]):
            holder = s.holders[leaves * ranks + k]
            if holder != rank:
                s.touched[found] = holder
                found += 1
    for k in range(s.counts[comes]):
        holder = s.holders[comes * ranks + k]
        if not s.blocked[leaves * ranks + holder] & HELD:
            s.touched[found] = holder
            found += 1
    s.touched[ranks] = found
    return found


@compiled
def weigh_copy(s: State, slot: Index, comes: Index) -> float:
    """Value after ``slot`` takes a new copy of ``comes``; the new costs stay in ``trial`` for the ranks in ``touched``."""
    n = np.uintp(s.sizes[0])
    ranks, experts = s.sizes[1], s.sizes[2]
    leaves = s.row[slot]
    real = s.total.dtype.type
    one, two = np.uintp(leaves) * n, np.uintp(comes) * n
    nowhere = np.uintp(0)
    one_copy(s, leaves, max(1, s.counts[leaves] - 1), s.fewer, nowhere)
    one_copy(s, comes, s.counts[comes] + 1, s.more, nowhere)
    for t in range(n):
        s.trial_total[t] = s.total[t]
    for k in range(touch(s, slot, comes)):
        holder = s.touched[k]
        speed = s.inverse_speed[holder]
        g, to = np.uintp(holder) * n, np.uintp(k) * n
        if k == 0:
            for t in range(n):
                s.trial[to + t] = s.cost[g + t] + (s.more[t] - s.unit[one + t]) * speed
        else:
            # Copies of the one expert grow and those of the other shrink; a rank may hold both.
            grow = speed if leaves != experts and s.blocked[leaves * ranks + holder] & HELD else real(0)
            shrink = speed if s.blocked[comes * ranks + holder] & HELD else real(0)
            for t in range(n):
                s.trial[to + t] = (
                    s.cost[g + t]
                    + (s.fewer[t] - s.unit[one + t]) * grow
                    + (s.more[t] - s.unit[two + t]) * shrink
                )
        for t in range(n):
            x = s.trial[to + t]
            x *= x
            x *= x
            x *= x
            x *= x
            s.trial_total[t] += x - s.power[g + t]
    for t in range(n):
        s.trial_total[t] = max(s.trial_total[t], real(0))
    return mean_root(s.trial_total, s.roots, s.weights, n)


@compiled
def take_copy(s: State, slot: Index, comes: Index) -> None:
    """Let ``slot`` take the copy that was weighed last."""
    n = np.uintp(s.sizes[0])
    ranks, experts = s.sizes[1], s.sizes[2]
    rank, leaves = s.rank_of_slot[slot], s.row[slot]
    for k in range(s.touched[ranks]):
        g, frm = np.uintp(s.touched[k]) * n, np.uintp(k) * n
        for t in range(n):
            s.cost[g + t] = s.trial[frm + t]
        raise_rank(s, g, n)
    if leaves != experts:
        base, last = leaves * ranks, s.counts[leaves] - 1
        s.blocked[base + rank] &= FORBIDDEN
        for k in range(last):
            if s.holders[base + k] == rank:
                s.holders[base + k] = s.holders[base + last]
                break
        s.counts[leaves] = last
        one_copy(s, leaves, last, s.unit, np.uintp(leaves) * n)
    s.holders[comes * ranks + s.counts[comes]] = rank
    s.blocked[comes * ranks + rank] |= HELD
    s.counts[comes] += 1
    one_copy(s, comes, s.counts[comes], s.unit, np.uintp(comes) * n)
    s.row[slot] = comes
    list_spare(s)
