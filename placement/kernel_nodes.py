# ruff: noqa: PLR0917 - compiled functions take arrays by place
"""The search for the nodes of every expert, compiled: what a proposal would lead to, and the annealing over proposals.

The figure is the mean over slices of the hottest node + rate x (nodes that a token's copies touch), plus a price for every node
that an expert newly comes to and a fine for the load above the limit of the worst node. Only the tokens that select a changed expert are counted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placement.kernel import accepts, below, below_low, draw
from placement.kernel_cache import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.kernel import Index, Whole

    Float = NDArray[np.float64]
    Flag = NDArray[np.uint8]

COOL_EVERY = 64
"""Proposals at one temperature."""

REFRESH = 4096
"""Accepted proposals after which all is computed anew, before rounding adds up."""

LEAST = 1e-9
"""Rise of an overload that is rounding."""

# Of 256 proposals: exchanges, moves, new copies, copies taken back; the rest gives one expert's copy to another.
SWAPS, MOVES, ADDS, DROPS = 128, 160, 192, 216
# Values of State.choice: places in ``nodes.CODES``.
EVEN, NEAREST, PER_SOURCE, FEWEST = range(4)
# Places in State.clock.
STAMP, ACCEPTED, PROPOSALS, CHOICE, ALONE = range(5)
# Places in State.now.
VALUE, OVER, TEMPERATURE, COOLING, PRICE, RATE, BEST, BEST_OVER, FINE = range(9)


class NodeState(NamedTuple):
    """One layer's experts on nodes, under way.

    ``held``, ``live``, ``best``: uint8 [experts, nodes], now, in the live map and in the best row. ``holders``: [experts].
    ``missed``: [starts, experts + 1, nodes], chance that a token that started there takes no copy on the node. ``part``:
    [experts, nodes], part of the expert's tokens. ``source``: [starts, experts], where an expert's tokens start. ``number``:
    [starts], the engine's number of a rank. ``loads``: [experts, slices]; ``weights``: [slices]; ``inverse_speed``: [nodes];
    ``cost``, ``trial_cost``: [nodes, slices]. ``sums``: [kinds, experts], loads that keep to ``limit`` [nodes]; ``load``,
    ``trial_load``: [kinds, nodes]. ``size``, ``fewest``, ``most``: [nodes], experts. ``sets``: [rows, top_k]; ``start``, ``own``:
    [rows]; ``count``, ``touched``: [rows]; ``sure``, ``product``: [rows, nodes], see ``count_row``; ``stamp``: [rows]. ``first``:
    [experts + 1] and ``rows``: the rows with each expert. ``old_part``: [2, nodes]; ``old_missed``: [2, starts, nodes]. ``clock``, ``now``: single numbers; ``random``: [1].
    """

    held: Flag
    live: Flag
    best: Flag
    holders: Whole
    missed: Float
    part: Float
    source: Float
    number: Whole
    loads: Float
    weights: Float
    inverse_speed: Float
    cost: Float
    trial_cost: Float
    sums: Float
    limit: Float
    load: Float
    trial_load: Float
    size: Whole
    fewest: Whole
    most: Whole
    sets: Whole
    start: Whole
    own: Whole
    count: Float
    touched: Float
    sure: Whole
    product: Float
    stamp: Whole
    first: Whole
    rows: Whole
    old_part: Float
    old_missed: Float
    clock: Whole
    now: Float
    random: NDArray[np.uint64]


@compiled
def serve(s: NodeState, e: Index) -> None:
    """Compute which node serves expert ``e`` for each start: ``missed`` and ``part``."""
    starts, _, nodes = s.missed.shape
    choice, holders = s.clock[CHOICE], s.holders[e]
    even = 1.0 / max(1, holders)
    s.part[e, :] = 0.0
    for start in range(starts):
        near = choice == NEAREST and s.held[e, start]
        turn = s.number[start] % max(1, holders)
        for node in range(nodes):
            chance = 0.0
            if s.held[e, node]:
                if near:
                    chance = 1.0 if node == start else 0.0
                elif choice == PER_SOURCE:
                    chance = 1.0 if turn == 0 else 0.0
                    turn -= 1
                else:
                    chance = even
            s.missed[start, e, node] = 1.0 - chance
            s.part[e, node] += s.source[start, e] * chance


@compiled
def nodes_touched(s: NodeState, row: Index) -> float:
    """Expected nodes that the tokens of a row touch, their own not counted where it is known."""
    if s.clock[CHOICE] == FEWEST:
        return covered(s, row)
    start, own, top_k = s.start[row], s.own[row], s.sets.shape[1]
    nodes = s.missed.shape[2]
    touched = 0.0
    for node in range(nodes):
        if node == own:
            continue
        missed = 1.0
        for place in range(top_k):
            missed *= s.missed[start, s.sets[row, place], node]
        touched += 1.0 - missed
    return touched


@compiled
def count_row(s: NodeState, row: Index) -> None:
    """Compute of a row, node by node: picks that go there for sure, the chance that no other does; and the nodes touched."""
    start, top_k = s.start[row], s.sets.shape[1]
    s.touched[row] = nodes_touched(s, row)
    for node in range(s.missed.shape[2]):
        sure, product = 0, 1.0
        for place in range(top_k):
            missed = s.missed[start, s.sets[row, place], node]
            if missed == 0.0:
                sure += 1
            else:
                product *= missed
        s.sure[row, node], s.product[row, node] = sure, product


@compiled
def covered(s: NodeState, row: Index) -> float:
    """Nodes that together hold every expert of a row: again and again the node that holds most of those left."""
    own, top_k = s.own[row], s.sets.shape[1]
    experts, nodes = s.held.shape
    left = 0
    for place in range(top_k):
        e = s.sets[row, place]
        if e < experts and not (own >= 0 and s.held[e, own]):
            left |= 1 << place
    touched = 0.0
    while left:
        best, most, lone = 0, 0, -1
        for place in range(top_k):
            e = s.sets[row, place]
            if left >> place & 1 and s.holders[e] == 1:
                lone = place
        for node in range(nodes):
            hits = 0
            for place in range(top_k):
                if left >> place & 1 and s.held[s.sets[row, place], node]:
                    hits |= 1 << place
            number = 0
            for place in range(top_k):
                number += hits >> place & 1
            # An expert on one node leaves no choice.
            if lone >= 0 and hits >> lone & 1:
                number += top_k
            if number > most:
                best, most = hits, number
        if not best:
            return touched
        left &= ~best
        touched += 1.0
    return touched


@compiled
def refresh(s: NodeState) -> None:
    """Compute everything from ``held``."""
    experts, nodes = s.held.shape
    s.size[:] = 0
    s.load[:] = 0.0
    s.cost[:] = 0.0
    s.missed[:, experts, :] = 1.0
    for e in range(experts):
        s.holders[e] = 0
        for node in range(nodes):
            s.holders[e] += s.held[e, node]
            s.size[node] += s.held[e, node]
        serve(s, e)
        for node in range(nodes):
            part = s.part[e, node]
            if part == 0.0:
                continue
            for kind in range(len(s.sums)):
                s.load[kind, node] += s.sums[kind, e] * part
            for t in range(len(s.weights)):
                s.cost[node, t] += s.loads[e, t] * part * s.inverse_speed[node]
    fan = 0.0
    for row in range(len(s.sets)):
        count_row(s, row)
        fan += s.count[row] * s.touched[row]
    s.now[OVER] = overload(s.load, s.limit)
    s.now[VALUE] = peak(s.cost, s.weights) + s.now[RATE] * fan


@compiled
def overload(load: Float, limit: Float) -> float:
    """Load above the limit of the node that is worst, 0 when all keep to it."""
    worst = 0.0
    for kind in range(load.shape[0]):
        for node in range(load.shape[1]):
            worst = max(worst, load[kind, node] - limit[node])
    return worst if worst > LEAST else 0.0


@compiled
def peak(cost: Float, weights: Float) -> float:
    """Mean over slices of the hottest node."""
    total = 0.0
    for t in range(cost.shape[1]):
        most = cost[0, t]
        for node in range(1, cost.shape[0]):
            most = max(most, cost[node, t])
        total += weights[t] * most
    return total


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
def shift(s: NodeState, e: Index, leaves: Index, comes: Index, back: bool) -> int:
    """Let ``e`` leave one node and come to another (-1 = none), or undo it; returns the nodes it newly came to."""
    moves = 0
    for node, gone in ((leaves, not back), (comes, back)):
        if node >= 0:
            change = -1 if gone else 1
            s.held[e, node] = 0 if gone else 1
            s.holders[e] += change
            s.size[node] += change
            if not s.live[e, node]:
                moves += change
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
def weigh_rows(s: NodeState, e: Index, place: Index, other: Index) -> float:
    """Rise of the nodes touched in the rows that select ``e`` and not ``other`` (-1 = none), by what ``serve`` changed."""
    rise, nodes, shared = 0.0, s.missed.shape[2], s.clock[STAMP]
    if other >= 0:
        for at in range(s.first[other], s.first[other + 1]):
            s.stamp[s.rows[at]] = shared
    for at in range(s.first[e], s.first[e + 1]):
        row = s.rows[at]
        if other >= 0 and s.stamp[row] == shared:
            continue
        if s.clock[CHOICE] == FEWEST:
            rise += s.count[row] * (covered(s, row) - s.touched[row])
            continue
        start, own = s.start[row], s.own[row]
        change = 0.0
        for node in range(nodes):
            old, new = s.old_missed[place, start, node], s.missed[start, e, node]
            # Where another pick goes for sure nothing changes.
            sure = s.sure[row, node] - (old == 0.0)
            if old != new and node != own and sure == 0:
                others = s.product[row, node] if old == 0.0 else s.product[row, node] / old
                change += others * (old - new)
        rise += s.count[row] * change
    return rise


@compiled
def weigh_shared(s: NodeState, one: Index, two: Index) -> float:
    """Rise of the nodes touched in the rows that select both experts; ``two``'s rows bear the stamp."""
    rise = 0.0
    for at in range(s.first[one], s.first[one + 1]):
        row = s.rows[at]
        if s.stamp[row] == s.clock[STAMP]:
            rise += s.count[row] * (nodes_touched(s, row) - s.touched[row])
    return rise


@compiled
def take_rows(s: NodeState, e: Index) -> None:
    """Count the rows with ``e`` anew."""
    for at in range(s.first[e], s.first[e + 1]):
        count_row(s, s.rows[at])


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
    s.old_part[0] = s.part[one]
    s.old_missed[0] = s.missed[:, one]
    moves = shift(s, one, leaves, comes, False)
    s.trial_load[:] = s.load
    s.trial_cost[:] = s.cost
    weigh_loads(s, one, 0)
    if two >= 0:
        s.old_part[1] = s.part[two]
        s.old_missed[1] = s.missed[:, two]
        moves += shift(s, two, gone, new, False)
        weigh_loads(s, two, 1)
    over = overload(s.trial_load, s.limit)
    s.clock[STAMP] += 1
    rise = weigh_rows(s, one, 0, two)
    if two >= 0:
        rise += weigh_shared(s, one, two)
        s.clock[STAMP] += 1
        rise += weigh_rows(s, two, 1, one)
    value = s.now[VALUE] + peak(s.trial_cost, s.weights) - peak(s.cost, s.weights) + s.now[RATE] * rise
    # An overload is fined, not forbidden: the way to a better choice often leads through one.
    change = value - s.now[VALUE] + s.now[FINE] * (over - s.now[OVER]) + s.now[PRICE] * moves
    taken = accepts(change, s.now[TEMPERATURE], bits)
    if not taken:
        shift(s, one, leaves, comes, True)
        if two >= 0:
            shift(s, two, gone, new, True)
        return
    take_rows(s, one)
    if two >= 0:
        take_rows(s, two)
    s.load[:] = s.trial_load
    s.cost[:] = s.trial_cost
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
        s.best[:] = s.held


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
            if kind >= DROPS:
                if not s.held[two, leaves]:
                    propose(s, one, leaves, -1, two, -1, leaves, draw(s.random))
            elif s.size[leaves] > s.fewest[leaves]:
                propose(s, one, leaves, -1, -1, -1, -1, draw(s.random))
