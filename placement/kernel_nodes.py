"""The search for the nodes of every expert, compiled: what is stored of a choice of nodes, and how it is computed afresh.

The figure is the mean over slices of the hottest node + rate x (nodes that a token's copies touch), plus a price for every node
that an expert newly comes to and a fine for the load above the limit of the worst node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from placement.kernel_cache import compiled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placement.kernel import Index, Whole

    Float = NDArray[np.float64]
    Flag = NDArray[np.uint8]

LEAST = 1e-9
"""Rise of an overload that is rounding."""

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
    [rows]; ``tokens``, ``touched``: [rows]; ``sure``, ``product``: [rows, nodes], see ``count_node``; ``stamp``: [rows]. ``first``:
    [experts + 1] and ``rows``: the rows with each expert. ``old_part``: [2, nodes]; ``old_missed``: [2, starts, nodes]. ``clock``, ``now``: single
    numbers; ``random``: [1].
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
    tokens: Float
    touched: Float
    sure: NDArray[np.int16]
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
    """Compute of a row what is stored of it."""
    if s.clock[CHOICE] != FEWEST:
        for node in range(s.missed.shape[2]):
            count_node(s, row, node)
    touch(s, row)


@compiled
def count_node(s: NodeState, row: Index, node: Index) -> None:
    """Compute of a row and a node the picks that go there for sure, and the chance that no other does."""
    start = s.start[row]
    sure, product = 0, 1.0
    for place in range(s.sets.shape[1]):
        missed = s.missed[start, s.sets[row, place], node]
        if missed == 0.0:
            sure += 1
        else:
            product *= missed
    s.sure[row, node], s.product[row, node] = sure, product


@compiled
def touch(s: NodeState, row: Index) -> None:
    """Compute the nodes that a row touches from what is stored of its nodes."""
    if s.clock[CHOICE] == FEWEST:
        s.touched[row] = covered(s, row)
        return
    touched, own = 0.0, s.own[row]
    for node in range(s.sure.shape[1]):
        if node != own:
            touched += 1.0 if s.sure[row, node] else 1.0 - s.product[row, node]
    s.touched[row] = touched


@compiled
def covered(s: NodeState, row: Index) -> float:
    """Nodes that together hold every expert of a row: again and again the node that holds most of those left."""
    own, experts = s.own[row], s.held.shape[0]
    left, lone = 0, 0
    for place in range(s.sets.shape[1]):
        e = s.sets[row, place]
        if e < experts and not (own >= 0 and s.held[e, own]):
            left |= 1 << place
            if s.holders[e] == 1:
                lone |= 1 << place
    touched = 0.0
    while left:
        best, most = left, 0
        for node in range(s.held.shape[1]):
            hits = holds(s, row, left, node)
            number = 0
            for place in range(s.sets.shape[1]):
                number += hits >> place & 1
            # An expert on one node leaves no choice.
            if hits & lone:
                number += s.sets.shape[1]
            if number > most:
                best, most = hits, number
        left &= ~best
        touched += 1.0
    return touched


@compiled
def holds(s: NodeState, row: Index, left: int, node: Index) -> int:
    """Which of the places ``left`` of a row have an expert that a node holds, as bits."""
    hits = 0
    for place in range(s.sets.shape[1]):
        if left >> place & 1 and s.held[s.sets[row, place], node]:
            hits |= 1 << place
    return hits


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
        fan += s.tokens[row] * s.touched[row]
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
