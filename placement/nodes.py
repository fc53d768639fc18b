"""Give every expert of a layer a home node, so that tokens touch few nodes and no node is overloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.layer import ordered_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placement.coactivation import Touched
    from placement.peaks import Peaks, Step
    from placement.topology import Topology

LOAD_UNITS = 2**40
"""Loads are whole parts of a layer's total, so that sums are exact in any order."""

ROOM_KEPT = 0.5
"""Part of a node's redundant slots that is kept for second copies; the rest lets nodes hold unequal numbers of experts."""

WEIGHED = 24
"""Exchanges, and moves, with the lowest slopes that are weighed exactly before one is taken."""

GAIN = 1e-9
"""Smallest fall of the figure that counts as better."""

PATIENCE = 60
"""Steps without a new best after which the search for homes ends."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class HomeSearch:
    """How long to search and with which ``seed``; ``should_stop`` is asked before every step."""

    steps: int
    seed: int = 0
    should_stop: Callable[[], bool] = _never


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What every node can take.

    ``fewest``, ``most``: int64 [nodes], distinct experts; fewer than ``fewest`` would leave a slot empty, more than ``most``
    too few second copies. ``slots``: int64 [nodes]. ``load``: int64 [nodes], most load in LOAD_UNITS.
    """

    fewest: NDArray[np.int64]
    most: NDArray[np.int64]
    slots: NDArray[np.int64]
    load: NDArray[np.int64]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.slots)

    def fits(self, experts: int) -> bool:
        """Whether so many experts can have homes that fill every node."""
        return bool((self.fewest <= self.slots).all()) and (
            int(self.fewest.sum()) <= experts <= int(np.maximum(self.most, self.fewest).sum())
        )

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
    # Every expert's whole load may be off by half a unit: the limit holds for the unrounded loads too.
    load = np.floor(tolerance * LOAD_UNITS * speed / ordered_sum(speed)).astype(np.int64) - experts
    fewest = -(-widest // size)
    return Room(fewest, np.maximum(most // size, fewest), slots // size, load)


def whole_loads(loads: NDArray[np.float64]) -> NDArray[np.int64]:
    """Scale loads, float64 [kinds, experts], to int64 parts of LOAD_UNITS in every kind; a kind without load stays 0."""
    total = np.cumsum(loads, axis=1)[:, -1:]
    return np.rint(loads / np.where(total > 0, total, 1.0) * LOAD_UNITS).astype(np.int64)


def first_homes(room: Room, load: NDArray[np.int64]) -> NDArray[np.int64]:
    """Heaviest expert first to the node with most load to spare, sizes kept; int64 [experts].

    ``load``: int64 [experts] in LOAD_UNITS. Nodes that lack experts come first once only as many experts are left.
    """
    home = np.zeros(len(load), dtype=np.int64)
    size, spare = np.zeros(room.nodes, dtype=np.int64), room.load.copy()
    for left, expert in zip(range(len(load), 0, -1), np.argsort(-load, kind="stable").tolist(), strict=True):
        node = int(np.where(room.open_nodes(size, left), spare, np.iinfo(np.int64).min).argmax())
        home[expert] = node
        size[node] += 1
        spare[node] -= load[expert]
    return home


def live_homes(held: NDArray[np.float64], room: Room, load: NDArray[np.int64]) -> NDArray[np.int64]:
    """Homes near a live map, int64 [experts]: the node with most of an expert's copies that has room left.

    ``held``: float64 [experts, nodes], copies on each node. Experts that are all on one node choose first, then the heaviest;
    nodes that lack experts come first once only as many experts are left.
    """
    home = np.zeros(len(load), dtype=np.int64)
    size, spare = np.zeros(room.nodes, dtype=np.int64), room.load.copy()
    order = np.lexsort((-load, (held > 0).sum(axis=1) != 1))
    for left, expert in zip(range(len(load), 0, -1), order.tolist(), strict=True):
        closed = ~room.open_nodes(size, left)
        node = int(np.lexsort((-spare, -held[expert], closed))[0])
        home[expert] = node
        size[node] += 1
        spare[node] -= load[expert]
    return home


def improve_homes(
    peaks: Peaks, touched: Touched, room: Room, loads: NDArray[np.int64], *, search: HomeSearch
) -> NDArray[np.int64]:
    """Exchange and move experts between nodes for a lower figure of ``peaks``; the best homes seen, int64 [experts].

    ``loads``: int64 [kinds, experts] in LOAD_UNITS; every kind keeps to ``room.load``, or to the worst load there was when the
    start is above it. Takes the best step again and again, also uphill; an expert that left a node stays away for some steps
    unless its return leads below the best. Sizes stay in ``room``. Steps: swap gains of field.md 2.11 on the exact objective.
    """
    state = _State(peaks, touched, room, loads)
    for _ in range(search.steps):
        relief = state.relief() if state.overload() else None
        if relief is None:
            break
        state.take(relief, 0)
    best, found = (state.overload(), peaks.value, touched.home[:-1].copy()), 0
    for turn in range(1, search.steps + 1):
        if turn > found + PATIENCE or search.should_stop():
            break
        step = state.best_step(turn, best[1] if state.overload() <= best[0] else -np.inf)
        if step is None:
            break
        state.take(step, turn + 5 + (turn * 7919 + search.seed) % 7)
        overload = state.overload()
        if overload < best[0] or (overload == best[0] and peaks.value < best[1] - GAIN):
            best, found = (overload, peaks.value, touched.home[:-1].copy()), turn
    return best[2]


class _State:
    """Homes, loads and barred pairs of one search."""

    __slots__ = ("_barred_until", "_load", "_loads", "_peaks", "_room", "_size", "_touched")

    def __init__(self, peaks: Peaks, touched: Touched, room: Room, loads: NDArray[np.int64]) -> None:
        self._peaks, self._touched, self._room, self._loads = peaks, touched, room, loads
        home = touched.home[:-1]
        self._load = np.zeros((len(loads), room.nodes), dtype=np.int64)
        for kind, load in enumerate(loads):
            np.add.at(self._load[kind], home, load)
        self._size = np.bincount(home, minlength=room.nodes)
        self._barred_until = np.zeros((touched.experts, room.nodes), dtype=np.int64)

    def overload(self) -> int:
        """Load above the limit on the node that is worst, 0 when all keep to it."""
        return max(0, int((self._load - self._room.load).max()))

    def best_step(self, turn: int, aspire: float) -> Step | None:
        """The exchange or move with the lowest figure after it, of those with the lowest slopes."""
        steps, rise = self._exchanges()
        barred = self._barred_until > turn
        shut = np.array([any(barred[pair] for pair in step) for step in steps], dtype=bool)
        if not steps:
            return None
        figures = self._peaks.after(steps, rise)
        figures[shut & (figures >= aspire - GAIN)] = np.inf
        at = int(figures.argmin())
        return steps[at] if figures[at] < np.inf else None

    def _exchanges(self) -> tuple[list[Step], NDArray[np.int64]]:
        """Some allowed exchanges and moves with the lowest slopes, and their exact rise of the nodes touched."""
        home, limit = self._touched.home[:-1], self.overload()
        slopes, swaps, moves = self._peaks.slopes(), self._touched.swaps(), self._touched.move
        # The exchange of two touches what it touches; only the peaks are priced by their slopes.
        heat = slopes - self._peaks.touched_units(moves)
        both = heat[:, home]
        both = both + both.T + self._peaks.touched_units(swaps)
        closed = ~self._bearable_swaps(limit) | (np.arange(len(home))[:, None] >= np.arange(len(home)))
        closed |= home[:, None] == home
        pairs = _lowest(both, closed)
        steps: list[Step] = [[(one, int(home[two])), (two, int(home[one]))] for one, two in pairs]
        rise = [int(swaps[pair]) for pair in pairs]
        singles = _lowest(slopes, ~self._bearable_moves(limit))
        steps += [[pair] for pair in singles]
        rise += [int(moves[pair]) for pair in singles]
        return steps, np.array(rise, dtype=np.int64)

    def relief(self) -> Step | None:
        """The exchange that takes most from the node that is most above its limit; None when none helps."""
        home = self._touched.home[:-1]
        kind, node = divmod(int((self._load - self._room.load).argmax()), self._room.nodes)
        inside, outside = np.flatnonzero(home == node), np.flatnonzero(home != node)
        if not len(inside) or not len(outside):
            return None
        worst = np.full((len(inside), len(outside)), np.iinfo(np.int64).min)
        for load, at in zip(self._loads, self._load, strict=True):
            over, change = at - self._room.load, load[inside][:, None] - load[outside]
            worst = np.maximum(worst, np.maximum(over[node] - change, over[home[outside]] + change))
        one, two = divmod(int(worst.argmin()), len(outside))
        if int(worst[one, two]) >= int(self._load[kind, node] - self._room.load[node]):
            return None
        return [(int(inside[one]), int(home[outside[two]])), (int(outside[two]), node)]

    def _bearable_swaps(self, limit: int) -> NDArray[np.bool_]:
        home = self._touched.home[:-1]
        good = np.ones((len(home), len(home)), dtype=bool)
        for load, at in zip(self._loads, self._load, strict=True):
            over = (at - self._room.load)[home]
            good &= over[:, None] + load - load[:, None] <= limit
        good &= good.T
        return good

    def _bearable_moves(self, limit: int) -> NDArray[np.bool_]:
        home = self._touched.home[:-1]
        good: NDArray[np.bool_] = (self._size < self._room.most) & (self._size > self._room.fewest)[home][
            :, None
        ]
        for load, at in zip(self._loads, self._load, strict=True):
            good = good & (load[:, None] + at - self._room.load <= limit)
        good[np.arange(len(home)), home] = False
        return good

    def take(self, step: Step, until: int) -> None:
        """Settle a step and bar its experts from the nodes they left."""
        self._peaks.settle(step)
        for expert, node in step:
            left = int(self._touched.home[expert])
            self._barred_until[expert, left] = until
            self._load[:, left] -= self._loads[:, expert]
            self._load[:, node] += self._loads[:, expert]
            self._size[left] -= 1
            self._size[node] += 1
        self._touched.settle(step)
        self._peaks.refresh()


def _lowest(values: NDArray[np.int64], closed: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Places of the WEIGHED lowest open entries, and of all that equal the last of them up to twice as many."""
    shown = np.where(closed, np.iinfo(np.int64).max, values).ravel()
    count = min(WEIGHED, int(shown.size - closed.sum()))
    if not count:
        return []
    bar = np.partition(shown, count - 1)[count - 1]
    places = np.concatenate([np.flatnonzero(shown < bar), np.flatnonzero(shown == bar)])[: 2 * WEIGHED]
    return [(int(at) // values.shape[1], int(at) % values.shape[1]) for at in places]
