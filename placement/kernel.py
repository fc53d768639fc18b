"""The compiled search's state: what is stored of a row, how it is computed afresh, and the random numbers.

The objective is the weighted mean over slices of the 16-norm over ranks of the cost (``norm``), plus a price for every
expert on a rank that it was not on at the start. Costs to the 16th and their sums are stored, so that a proposal reads
only the ranks that it changes. Loops over slices write an array and are summed in a fixed order, hence vector units do
not change the result.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placement.kernel_cache import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Real = NDArray[np.floating[Any]]
    Whole = NDArray[np.int64]
    Index = int | np.int64

REFRESH = 512
"""Accepted proposals after which costs are computed anew, before rounding adds up."""

FEW_SLICES = 8
"""Below this many slices float64 costs no time, and flat loads need its digits; from it on float32 is twice as fast."""

LEAST_GAIN = 1e-7
"""Relative fall of the objective from which a row replaces a kept one."""

# Bits in State.blocked.
HELD, FORBIDDEN = np.uint8(1), np.uint8(2)
# Places in State.clock.
ARRIVALS, SINCE_REFRESH, VERSION, SPARE, PROPOSALS = range(5)
# Places in State.now.
VALUE, TEMPERATURE, PRICE, COOLING = range(4)


class State(NamedTuple):
    """One layer under way. Flat arrays [a x b] are read at ``i * b + j``; ``n`` = slices, padded with weight 0.

    ``loads``: [experts + 1 x n], load of an expert, or where copies have prices (``sizes[3]`` = most copies listed, else 0)
    [experts + 1 x most x n], cost of one of 1, 2, ... copies. ``unit``: [experts + 1 x n], load or cost of one copy now. The
    last row is an empty slot. ``base``: [n], what every rank costs whatever it holds. ``fewer``, ``more``: [n].
    ``cost``, ``power``, ``trial``: [ranks x n]. ``total``, ``trial_total``, ``roots``, ``weights``: [n].
    ``inverse_speed``: [ranks]. ``row``, ``rank_of_slot``, ``start``, ``spare``, ``spare_at``: [slots]; ``spare`` lists slots
    that may be overwritten: empty ones and those of experts with several copies.
    ``first_slot``: [ranks + 1]. ``counts``: [experts + 1]. ``holders``: [experts x ranks], ranks of each copy.
    ``blocked``, ``home``: uint8 [experts + 1 x ranks], pairs that must not be created, pairs that cost no move.
    ``hot``, ``hot_version``: [n], costliest rank and when it was looked up. ``touched``: [ranks].
    ``kept_values``: float64 [most moves + 1]; ``kept_rows``: [most moves + 1, slots], best row of every number of moves.
    ``clock``: int64 and ``now``: float64, single numbers; ``random``: uint64 [1]; ``sizes``: slices, ranks, experts, listed copies.
    """

    loads: Real
    unit: Real
    base: Real
    fewer: Real
    more: Real
    cost: Real
    power: Real
    trial: Real
    total: Real
    trial_total: Real
    roots: Real
    weights: Real
    inverse_speed: Real
    row: Whole
    rank_of_slot: Whole
    start: Whole
    spare: Whole
    spare_at: Whole
    first_slot: Whole
    counts: Whole
    holders: Whole
    blocked: NDArray[np.uint8]
    home: NDArray[np.uint8]
    hot: Whole
    hot_version: Whole
    touched: Whole
    kept_values: NDArray[np.float64]
    kept_rows: NDArray[np.int32]
    clock: Whole
    now: NDArray[np.float64]
    random: NDArray[np.uint64]
    sizes: Whole


# --- random numbers -----------------------------------------------------------------------------------------------


@compiled
def draw(random: NDArray[np.uint64]) -> np.uint64:
    """Next 64 random bits (splitmix64)."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z: np.uint64 = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def below(bits: np.uint64, count: Index) -> np.int64:
    """A whole number below ``count`` from the upper half of ``bits``."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@compiled
def below_low(bits: np.uint64, count: Index) -> np.int64:
    """A whole number below ``count`` from the lower half of ``bits``."""
    return np.int64(((bits & np.uint64(0xFFFFFFFF)) * np.uint64(count)) >> np.uint64(32))


@compiled
def accepts(rise: float, temperature: float, bits: np.uint64) -> bool:
    """Whether a rise of the objective is taken: chance (1 - x/256)^256 for x = rise / temperature, close to exp(-x).

    Plain products round alike everywhere; the exp of a C library does not.
    """
    if rise <= 0.0:
        return True
    left = 1.0 - rise / (temperature * 256.0)
    if left <= 0.9:  # below e^-27: never
        return False
    for _ in range(8):
        left *= left
    return float(bits >> np.uint64(11)) * 1.1102230246251565e-16 < left


# --- sums over slices ---------------------------------------------------------------------------------------------


@compiled
def ordered(values: Real, n: np.uintp) -> float:
    """Sum of ``values[:n]``, in eight interleaved lanes: the order is the same whatever the vector width."""
    zero = values.dtype.type(0)
    if n < np.uintp(8):
        small = zero
        for t in range(n):
            small += values[t]
        return np.float64(small)
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    for block in range(n >> np.uintp(3)):
        at = block << np.uintp(3)
        a += values[at]
        b += values[at + np.uintp(1)]
        c += values[at + np.uintp(2)]
        d += values[at + np.uintp(3)]
        e += values[at + np.uintp(4)]
        f += values[at + np.uintp(5)]
        g += values[at + np.uintp(6)]
        h += values[at + np.uintp(7)]
    return np.float64(((a + e) + (c + g)) + ((b + f) + (d + h)))


@compiled
def mean_root(total: Real, roots: Real, weights: Real, n: np.uintp) -> float:
    """Weighted mean over slices of the 16th root of ``total``."""
    for t in range(n):
        roots[t] = sqrt(sqrt(sqrt(sqrt(total[t])))) * weights[t]
    return ordered(roots, n)


# --- a fresh state ------------------------------------------------------------------------------------------------


@compiled
def refresh(s: State) -> None:
    """Compute unit loads, costs, powers, totals and the value from ``s.row``."""
    n = np.uintp(s.sizes[0])
    ranks, experts = s.sizes[1], s.sizes[2]
    for expert in range(experts + 1):
        one_copy(s, expert, max(1, s.counts[expert]), s.unit, np.uintp(expert) * n)
    for rank in range(ranks):
        at = np.uintp(rank) * n
        for t in range(n):
            s.cost[at + t] = s.base[t]
    for slot in range(len(s.row)):
        to, at = np.uintp(s.rank_of_slot[slot]) * n, np.uintp(s.row[slot]) * n
        for t in range(n):
            s.cost[to + t] += s.unit[at + t]
    for rank in range(ranks):
        at = np.uintp(rank) * n
        speed = s.inverse_speed[rank]
        for t in range(n):
            s.cost[at + t] *= speed
        raise_rank(s, at, n)
    add_up(s)
    s.clock[SINCE_REFRESH] = 0


@compiled
def one_copy(s: State, expert: Index, copies: Index, result: Real, start: np.uintp) -> None:
    """Write the load or cost of one of ``copies`` copies of ``expert`` to ``result[start:]``, [n]."""
    n = np.uintp(s.sizes[0])
    listed = s.sizes[3]
    if listed:
        at = (np.uintp(expert) * np.uintp(listed) + np.uintp(min(copies, listed) - 1)) * n
        for t in range(n):
            result[start + t] = s.loads[at + t]
        return
    at, number = np.uintp(expert) * n, s.unit.dtype.type(copies)
    for t in range(n):
        result[start + t] = s.loads[at + t] / number


@compiled
def add_up(s: State) -> None:
    """Compute totals and the value from the powers: a difference of totals would keep the rounding of a rank once hot."""
    n = np.uintp(s.sizes[0])
    for t in range(n):
        s.total[t] = s.power[t]
    for rank in range(1, s.sizes[1]):
        at = np.uintp(rank) * n
        for t in range(n):
            s.total[t] += s.power[at + t]
    s.now[VALUE] = mean_root(s.total, s.roots, s.weights, n)


@compiled
def raise_rank(s: State, at: np.uintp, n: np.uintp) -> None:
    """Compute the 16th powers of one rank's costs."""
    for t in range(n):
        x = s.cost[at + t]
        x *= x
        x *= x
        x *= x
        x *= x
        s.power[at + t] = x


@compiled
def index(s: State) -> None:
    """Compute counts, holders, spare slots, blocked pairs and arrivals from ``s.row``; forbidden pairs stay so."""
    ranks, experts = s.sizes[1], s.sizes[2]
    s.counts[:] = 0
    for pair in range(len(s.blocked)):
        s.blocked[pair] &= FORBIDDEN
    arrivals = 0
    for slot in range(len(s.row)):
        expert, rank = s.row[slot], s.rank_of_slot[slot]
        if expert == experts:
            continue
        s.holders[expert * ranks + s.counts[expert]] = rank
        s.counts[expert] += 1
        s.blocked[expert * ranks + rank] |= HELD
        arrivals += 1 - int(s.home[expert * ranks + rank])
    s.counts[experts] = 1
    s.clock[ARRIVALS] = arrivals
    list_spare(s)


@compiled
def list_spare(s: State) -> None:
    """List the slots that may be overwritten."""
    found = 0
    for slot in range(len(s.row)):
        s.spare_at[slot] = -1
        if s.counts[s.row[slot]] > 1 or s.row[slot] == s.sizes[2]:
            s.spare[found] = slot
            s.spare_at[slot] = found
            found += 1
    s.clock[SPARE] = found


@compiled
def hard_value(s: State) -> float:
    """Weighted mean over slices of the costliest rank."""
    n = np.uintp(s.sizes[0])
    for t in range(n):
        s.roots[t] = s.cost[t]
    for rank in range(1, s.sizes[1]):
        at = np.uintp(rank) * n
        for t in range(n):
            s.roots[t] = max(s.roots[t], s.cost[at + t])
    for t in range(n):
        s.roots[t] *= s.weights[t]
    return ordered(s.roots, n)


@compiled
def keep(s: State) -> None:
    """Keep the row if it is the best with its number of moves: by its costliest ranks where slices are few and exactness
    pays, by the smooth maximum where it must serve slices not yet seen.
    """
    moves = min(s.clock[ARRIVALS], len(s.kept_values) - 1)
    value = hard_value(s) if s.sizes[0] < FEW_SLICES else s.now[VALUE]
    if value < s.kept_values[moves] * (1.0 - LEAST_GAIN):
        s.kept_values[moves] = value
        for slot in range(len(s.row)):
            s.kept_rows[moves, slot] = s.row[slot]


@compiled
def begin(s: State) -> None:
    """Compute everything from ``s.row`` and keep it."""
    index(s)
    refresh(s)
    keep(s)


@compiled
def restore(s: State) -> None:
    """Return to the row that is kept for no moves."""
    for slot in range(len(s.row)):
        s.row[slot] = s.kept_rows[0, slot]
    index(s)
    refresh(s)
