# ruff: noqa: PLR0917 - compiled functions take arrays by place
"""The annealing over the nodes of every expert, compiled: what a proposal would lead to, and how it is taken.

Only the tokens that select a changed expert are counted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.kernel import accepts, below, below_low, draw
from placement.kernel_cache import compiled
from placement.kernel_nodes import (
    ACCEPTED,
    ALONE,
    BEST,
    BEST_OVER,
    CHOICE,
    COOLING,
    FEWEST,
    FINE,
    LEAST,
    OVER,
    PRICE,
    PROPOSALS,
    RATE,
    STAMP,
    TEMPERATURE,
    VALUE,
    count_node,
    covered,
    nodes_touched,
    overload,
    peak,
    refresh,
    serve,
    touch,
)  # fmt: skip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.kernel import Index
    from placement.kernel_nodes import NodeState

    Table = NDArray[np.float64] | NDArray[np.uint8]

COOL_EVERY = 64
"""Proposals at one temperature."""

REFRESH = 4096
"""Accepted proposals after which all is computed anew, before rounding adds up."""

# Of 256 proposals: exchanges, moves, new copies, copies taken back; the rest gives one expert's copy to another.
SWAPS, MOVES, ADDS, DROPS = 128, 160, 192, 216


@compiled
def arrivals(s: NodeState) -> int:
    """Nodes that experts came to since the live map."""
    count = 0
    for e in range(s.held.shape[0]):
        for node in range(s.held.shape[1]):
            if s.held[e, node] and not s.live[e, node]:
                count += 1
    return count


@compiled
def shift(s: NodeState, e: Index, leaves: Index, comes: Index) -> int:
    """Let ``e`` leave one node and come to another (-1 = none); returns by how many it is on more nodes that are not live."""
    moves = 0
    if leaves >= 0:
        s.held[e, leaves] = 0
        s.holders[e] -= 1
        s.size[leaves] -= 1
        moves -= 1 - int(s.live[e, leaves])
    if comes >= 0:
        s.held[e, comes] = 1
        s.holders[e] += 1
        s.size[comes] += 1
        moves += 1 - int(s.live[e, comes])
    serve(s, e)
    return moves


@compiled
def weigh_loads(s: NodeState, e: Index, place: Index) -> None:
    """Add to the trial loads and costs what ``e`` changed since ``old_part[place]``."""
    for node in range(len(s.size)):
        change = s.part[e, node] - s.old_part[place, node]
        if change == 0.0:
            continue
        for kind in range(len(s.sums)):
            s.trial_load[kind, node] += s.sums[kind, e] * change
        change *= s.inverse_speed[node]
        for t in range(len(s.weights)):
            s.trial_cost[node, t] += s.loads[e, t] * change


@compiled
def differs(s: NodeState, e: Index, place: Index, node: Index) -> bool:
    """Whether tokens come to take the copy of ``e`` on a node more or less often than in ``old_missed[place]``."""
    for start in range(s.missed.shape[0]):
        if s.old_missed[place, start, node] != s.missed[start, e, node]:
            return True
    return False


@compiled
def weigh_rows(s: NodeState, e: Index, place: Index, other: Index) -> float:
    """Rise of the nodes touched in the rows that select ``e`` and not ``other`` (-1 = none), by what ``serve`` changed."""
    rise, shared = 0.0, s.clock[STAMP]
    if other >= 0:
        for at in range(s.first[other], s.first[other + 1]):
            s.stamp[s.rows[at]] = shared
    if s.clock[CHOICE] == FEWEST:
        for at in range(s.first[e], s.first[e + 1]):
            row = s.rows[at]
            if other < 0 or s.stamp[row] != shared:
                rise += s.tokens[row] * (covered(s, row) - s.touched[row])
        return rise
    for node in range(s.missed.shape[2]):
        if differs(s, e, place, node):
            rise += weigh_node(s, e, place, node, other)
    return rise


@compiled
def weigh_node(s: NodeState, e: Index, place: Index, node: Index, other: Index) -> float:
    """The part of ``weigh_rows`` that is one node's."""
    rise, shared = 0.0, s.clock[STAMP]
    for at in range(s.first[e], s.first[e + 1]):
        row = s.rows[at]
        start = s.start[row]
        old, new = s.old_missed[place, start, node], s.missed[start, e, node]
        # Where another pick goes for sure nothing changes.
        if s.sure[row, node] != (old == 0.0) or node == s.own[row] or (other >= 0 and s.stamp[row] == shared):
            continue
        others = s.product[row, node] if old == 0.0 else s.product[row, node] / old
        rise += s.tokens[row] * others * (old - new)
    return rise


@compiled
def weigh_shared(s: NodeState, one: Index) -> float:
    """Rise of the nodes touched in the rows that select ``one`` and bear the stamp of another expert."""
    rise = 0.0
    for at in range(s.first[one], s.first[one + 1]):
        row = s.rows[at]
        if s.stamp[row] == s.clock[STAMP]:
            rise += s.tokens[row] * (nodes_touched(s, row) - s.touched[row])
    return rise


@compiled
def take_rows(s: NodeState, e: Index, place: Index) -> None:
    """Count the rows with ``e`` anew on the nodes where ``serve`` changed something since ``old_missed[place]``."""
    if s.clock[CHOICE] != FEWEST:
        for node in range(s.missed.shape[2]):
            if differs(s, e, place, node):
                for at in range(s.first[e], s.first[e + 1]):
                    count_node(s, s.rows[at], node)
    for at in range(s.first[e], s.first[e + 1]):
        touch(s, s.rows[at])


@compiled
def copy(table: Table, to: Table) -> None:
    """Copy a table, number by number: a copy of whole arrays would count references."""
    for one in range(table.shape[0]):
        for two in range(table.shape[1]):
            to[one, two] = table[one, two]


@compiled
def remember(s: NodeState, e: Index, place: Index) -> None:
    """Keep what ``serve`` computed of ``e`` in ``old_part[place]`` and ``old_missed[place]``."""
    for node in range(len(s.size)):
        s.old_part[place, node] = s.part[e, node]
        for start in range(s.missed.shape[0]):
            s.old_missed[place, start, node] = s.missed[start, e, node]


@compiled
def propose(
    s: NodeState,
    one: Index,
    leaves: Index,
    comes: Index,
    two: Index,
    gone: Index,
    new: Index,
    bits: np.uint64,
) -> None:
    """Weigh that expert ``one`` goes from a node to another and ``two`` (-1 = none) likewise; take it if it is accepted."""
    remember(s, one, 0)
    moves = shift(s, one, leaves, comes)
    copy(s.load, s.trial_load)
    copy(s.cost, s.trial_cost)
    weigh_loads(s, one, 0)
    if two >= 0:
        remember(s, two, 1)
        moves += shift(s, two, gone, new)
        weigh_loads(s, two, 1)
    over = overload(s.trial_load, s.limit)
    s.clock[STAMP] += 1
    rise = weigh_rows(s, one, 0, two)
    if two >= 0:
        rise += weigh_shared(s, one)
        s.clock[STAMP] += 1
        rise += weigh_rows(s, two, 1, one)
    value = s.now[VALUE] + peak(s.trial_cost, s.weights) - peak(s.cost, s.weights) + s.now[RATE] * rise
    # An overload is fined, not forbidden: the way to a better choice often leads through one.
    change = value - s.now[VALUE] + s.now[FINE] * (over - s.now[OVER]) + s.now[PRICE] * moves
    taken = accepts(change, s.now[TEMPERATURE], bits)
    if not taken:
        shift(s, one, comes, leaves)
        if two >= 0:
            shift(s, two, new, gone)
        return
    take_rows(s, one, 0)
    if two >= 0:
        take_rows(s, two, 1)
    copy(s.trial_load, s.load)
    copy(s.trial_cost, s.cost)
    s.now[OVER], s.now[VALUE] = over, value
    s.clock[ACCEPTED] += 1
    if s.clock[ACCEPTED] % REFRESH == 0:
        refresh(s)
    keep(s)


@compiled
def keep(s: NodeState) -> None:
    """Keep the nodes of every expert if none were better."""
    value = s.now[VALUE] + s.now[PRICE] * arrivals(s) if s.now[PRICE] else s.now[VALUE]
    if s.now[OVER] < s.now[BEST_OVER] or (s.now[OVER] == s.now[BEST_OVER] and value < s.now[BEST] - LEAST):
        s.now[BEST], s.now[BEST_OVER] = value, s.now[OVER]
        copy(s.held, s.best)


@compiled
def begin(s: NodeState) -> None:
    """Compute everything from ``held`` and keep it."""
    refresh(s)
    s.now[BEST_OVER] = np.inf
    keep(s)


@compiled
def holder(s: NodeState, e: Index, bits: np.uint64) -> np.int64:
    """A node that holds ``e``, drawn."""
    left = below(bits, s.holders[e])
    for node in range(len(s.size)):
        left -= s.held[e, node]
        if left < 0:
            return np.int64(node)
    return np.int64(-1)


@compiled
def anneal_nodes(s: NodeState, proposals: int) -> None:
    """Make ``proposals``, cooling by ``now[COOLING]`` every ``COOL_EVERY``."""
    experts, nodes = s.held.shape
    for _ in range(proposals):
        if s.clock[PROPOSALS] % COOL_EVERY == 0:
            s.now[TEMPERATURE] *= s.now[COOLING]
        s.clock[PROPOSALS] += 1
        bits, more, last = draw(s.random), draw(s.random), draw(s.random)
        kind = np.int64(bits & np.uint64(255))
        one, two = below(bits, experts), below(more, experts)
        leaves = holder(s, one, last)
        if kind < SWAPS or (s.clock[ALONE] and kind >= MOVES):
            gone = holder(s, two, draw(s.random))
            if leaves != gone and not s.held[one, gone] and not s.held[two, leaves]:
                propose(s, one, leaves, gone, two, gone, leaves, draw(s.random))
        elif kind < ADDS:
            to = below_low(more, nodes)
            gone = leaves if kind < MOVES else np.int64(-1)
            roomy = not s.held[one, to] and s.size[to] < s.most[to]
            if roomy and (gone < 0 or s.size[gone] > s.fewest[gone]):
                propose(s, one, gone, to, -1, -1, -1, draw(s.random))
        elif s.holders[one] > 1:
            give_up(s, one, leaves, two if kind >= DROPS else np.int64(-1))


@compiled
def give_up(s: NodeState, one: Index, leaves: Index, two: Index) -> None:
    """Propose that a node no longer holds ``one``, and holds ``two`` (-1 = none) instead."""
    if two < 0:
        if s.size[leaves] > s.fewest[leaves]:
            propose(s, one, leaves, -1, -1, -1, -1, draw(s.random))
    elif not s.held[two, leaves]:
        propose(s, one, leaves, -1, two, -1, leaves, draw(s.random))
