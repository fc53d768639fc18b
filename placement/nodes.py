"""Give every expert of a layer the nodes that hold it, so that tokens touch few nodes and no node is overloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement import kernel_nodes as kernel
from placement import kernel_nodes_anneal
from placement.choice import EVEN, FEWEST, NEAREST, PER_SOURCE
from placement.layer import ordered_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placement.choice import Tokens
    from placement.topology import Topology

CODES = {
    EVEN: kernel.EVEN,
    NEAREST: kernel.NEAREST,
    PER_SOURCE: kernel.PER_SOURCE,
    FEWEST: kernel.FEWEST,
}
"""The compiled search's number of a choice."""

ROOM_KEPT = 0.5
"""Part of a node's redundant slots that is kept for second copies; the rest lets nodes hold unequal numbers of experts, and
experts be on several nodes."""

CHUNK = 512
"""Proposals between two looks at ``should_stop``: some milliseconds."""

HOT, COLD = 0.02, 0.0005
"""First and last temperature, in parts of the figure's scale: weight + HALF."""

HALF = 0.5

FEW = 2.0
"""First temperature times experts, in parts of the scale, at least: where experts are few every step is large."""

MOST_ROUNDS, ROUND_EXPERTS = 8, 64
"""Rounds of annealing, each from the first temperature: one for every time that the experts go into so many."""

FINE = 2.0
"""Fine of the worst node's whole fair share above its limit, in parts of the scale; the last temperature bears a thousandth."""

MOST_WEIGHT = 2.0**12
"""A larger weight of the fan-out counts as this in the search: the peaks are then all but ignored."""

SLACK = 1e-9
"""Part of a load limit that is left free, so that sums in another order keep to it too."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class NodeSearch:
    """How many ``proposals`` to weigh and with which ``seed``; ``should_stop`` is asked every few milliseconds.

    ``price``: of every node that an expert newly comes to, in units of the figure; 0 = as good as any.
    """

    proposals: int
    seed: int = 0
    should_stop: Callable[[], bool] = _never
    price: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What every node can take.

    ``fewest``, ``most``: int64 [nodes], distinct experts; fewer than ``fewest`` would leave a slot empty, more than ``most``
    too few second copies. ``load``: float64 [nodes], most load in parts of the total.
    """

    fewest: NDArray[np.int64]
    most: NDArray[np.int64]
    load: NDArray[np.float64]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.load)

    def fits(self, experts: int) -> bool:
        """Whether so many experts can have one node each and fill every node."""
        return int(self.fewest.sum()) <= experts <= int(self.most.sum())

    def open_nodes(self, size: NDArray[np.int64], left: int) -> NDArray[np.bool_]:
        """Nodes that the next of ``left`` experts may go to when the nodes have ``size`` experts, bool [nodes]."""
        lacking = np.maximum(self.fewest - size, 0)
        return lacking > 0 if int(lacking.sum()) >= left else size < self.most


def make_room(topology: Topology, experts: int, tolerance: float, size: int = 1) -> Room:
    """Room of the nodes of a topology without dead ranks, whose loads may reach ``tolerance`` times their fair share.

    ``size``: experts of one unit, where groups of experts keep together; the room then counts units.
    """
    node = np.array(topology.node_of_rank)
    width = np.minimum(np.array(topology.slots_of_rank), experts)
    slots = np.bincount(node, width, topology.nodes).astype(np.int64)
    widest = np.zeros(topology.nodes, dtype=np.int64)
    np.maximum.at(widest, node, width)
    even = -(-experts * slots // int(slots.sum()))
    most = np.minimum(slots - ((slots - even) * ROOM_KEPT).astype(np.int64), experts)
    speed = np.bincount(node, topology.speed_of_rank(), topology.nodes).astype(np.float64)
    fewest = -(-widest // size)
    load = (1.0 - SLACK) * tolerance * speed / ordered_sum(speed)
    return Room(fewest, np.maximum(most // size, fewest), load)


def part_loads(loads: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale loads, float64 [kinds, experts], to parts of the total of every kind; a kind without load stays 0."""
    total = np.cumsum(loads, axis=1)[:, -1:]
    parts: NDArray[np.float64] = loads / np.where(total > 0, total, 1.0)
    return parts


def first_nodes(room: Room, load: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Heaviest expert first to the node with most load to spare, sizes kept; bool [experts, nodes], one node each.

    ``load``: float64 [experts]. Nodes that lack experts come first once only as many experts are left.
    """
    return live_nodes(np.zeros((len(load), room.nodes)), room, load, alone=True)


def live_nodes(
    copies: NDArray[np.float64], room: Room, load: NDArray[np.float64], *, alone: bool
) -> NDArray[np.bool_]:
    """Nodes near those of a live map, bool [experts, nodes]: where most of an expert's copies are and room is left.

    ``copies``: float64 [experts, nodes], copies on each node. Experts that are all on one node choose first, then the heaviest;
    nodes that lack experts come first once only as many experts are left. Then further nodes that hold an expert, while there
    is room, unless each expert is to be ``alone`` on one.
    """
    held = np.zeros(copies.shape, dtype=bool)
    size, spare = np.zeros(room.nodes, dtype=np.int64), room.load.copy()
    order = np.lexsort((-load, (copies > 0).sum(axis=1) != 1))
    for left, expert in zip(range(len(load), 0, -1), order.tolist(), strict=True):
        closed = ~room.open_nodes(size, left)
        node = int(np.lexsort((-spare, -copies[expert], closed))[0])
        held[expert, node] = True
        size[node] += 1
        spare[node] -= load[expert]
    for expert in [] if alone else order.tolist():
        more = (copies[expert] > 0) & ~held[expert] & (size < room.most)
        held[expert] |= more
        size += more
    return held


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """What the search makes small: mean over slices of the hottest node + ``weight`` × mean nodes that a token touches.

    ``tokens``: whose nodes count; one with a known own node counts the others only. ``loads``: float64 [slices, experts], each
    slice summing to the nodes' total speed; ``weights``: float64 [slices], summing to 1; ``speed``: float64 [nodes].
    ``sums``: float64 [kinds, experts], loads that keep to the room, in parts of their total (``part_loads``).
    ``source``: float64 [starts, experts], where each expert's tokens start, summing to 1; ``number``: int64 [starts], the engine's
    number of a rank. ``alone``: whether every expert stays on one node.
    """

    tokens: Tokens
    loads: NDArray[np.float64]
    weights: NDArray[np.float64]
    speed: NDArray[np.float64]
    sums: NDArray[np.float64]
    weight: float
    choice: str = EVEN
    source: NDArray[np.float64] | None = None
    number: NDArray[np.int64] | None = None
    alone: bool = False


def improve_nodes(
    figure: Figure,
    held: NDArray[np.bool_],
    room: Room,
    search: NodeSearch,
    live: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Anneal from ``held`` to nodes with a lower figure, bool [experts, nodes]: the best that were seen.

    ``live``: bool [experts, nodes], where a node costs no ``search.price``. Every kind of ``figure.sums`` keeps to ``room.load``,
    or is above it by no more than at the start. Sizes stay in ``room``. Exact figures after every proposal
    (hypergraph objective of field.md 2.11), also for experts on several nodes.
    """
    state = node_state(figure, held, room, live, search.seed)
    scale = min(figure.weight, MOST_WEIGHT) + HALF
    hot = search.price / 8 if search.price else max(HOT, FEW / len(held)) * scale
    state.now[kernel.FINE] = FINE * scale * room.nodes
    cold = min(hot, COLD * scale)
    state.now[kernel.PRICE] = search.price
    rounds = max(1, min(MOST_ROUNDS, ROUND_EXPERTS // len(held)))
    each = search.proposals // rounds
    state.now[kernel.COOLING] = _root(cold / hot, max(1, each // kernel_nodes_anneal.COOL_EVERY))
    kernel_nodes_anneal.begin(state)
    for _ in range(rounds):
        state.now[kernel.TEMPERATURE] = hot
        left = each
        while left > 0 and not search.should_stop():
            kernel_nodes_anneal.anneal_nodes(state, min(CHUNK, left))
            left -= CHUNK
    return state.best.astype(bool)


def _root(value: float, degree: int) -> float:
    """The ``degree``-th root by halving, from products alone: the pow of a C library rounds as it likes."""
    low, high = value, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _raised(middle, degree) < value:
            low = middle
        else:
            high = middle
    return high


def _raised(base: float, exponent: int) -> float:
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def node_state(
    figure: Figure, held: NDArray[np.bool_], room: Room, live: NDArray[np.bool_] | None, seed: int
) -> kernel.NodeState:
    """The compiled search's arrays for one layer."""
    tokens, (experts, nodes) = figure.tokens, held.shape
    kinds, (slices, _) = len(figure.sums), figure.loads.shape
    source = np.ones((1, experts)) if figure.source is None else figure.source
    starts, rows = len(source), len(tokens.sets)
    order = np.argsort(tokens.sets, axis=None, kind="stable")
    first = np.searchsorted(tokens.sets.ravel()[order], np.arange(experts + 1))
    number = np.arange(starts) if figure.number is None else figure.number
    state = kernel.NodeState(
        held=held.astype(np.uint8), live=(held if live is None else live).astype(np.uint8), best=held.astype(np.uint8),
        holders=np.zeros(experts, dtype=np.int64), missed=np.ones((starts, experts + 1, nodes)),
        part=np.zeros((experts, nodes)), source=np.ascontiguousarray(source), number=number,
        loads=np.ascontiguousarray(figure.loads.T), weights=figure.weights, inverse_speed=1.0 / figure.speed,
        cost=np.zeros((nodes, slices)), trial_cost=np.zeros((nodes, slices)), sums=np.ascontiguousarray(figure.sums),
        limit=room.load, load=np.zeros((kinds, nodes)), trial_load=np.zeros((kinds, nodes)),
        size=np.zeros(nodes, dtype=np.int64), fewest=room.fewest, most=room.most,
        sets=np.ascontiguousarray(tokens.sets), start=tokens.start, own=tokens.own, tokens=tokens.count,
        touched=np.zeros(rows), sure=np.zeros((rows, nodes), dtype=np.int16), product=np.zeros((rows, nodes)), stamp=np.zeros(rows, dtype=np.int64), first=first,
        rows=order // tokens.sets.shape[1], old_part=np.zeros((2, nodes)), old_missed=np.zeros((2, starts, nodes)), clock=np.zeros(5, dtype=np.int64),
        now=np.zeros(9), random=np.array([seed], dtype=np.uint64),
    )  # fmt: skip
    state.clock[kernel.CHOICE], state.clock[kernel.ALONE] = CODES[figure.choice], figure.alone
    state.now[kernel.RATE] = min(figure.weight, MOST_WEIGHT) / max(float(tokens.count.sum()), 1.0)
    return state
