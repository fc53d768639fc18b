"""Who sends what to whom, and when: sources for a wave's arrivals, and rounds in which nobody is asked twice.

Every rank computes both from the same live map and offer, so both ends of a message agree without a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import OfferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange

ROUND_COPIES_MAX = 32
"""Point-to-point operations of the whole group in one round; hundreds in one batch have hung (sglang#30829)."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One expert of one layer that a slot is to hold; ``index`` is that of its ``Copy``."""

    index: int
    layer: int
    expert: int
    destination: int


@dataclass(frozen=True, slots=True)
class Copy:
    """One expert of one layer, brought from a slot that holds it now to a slot that is to hold it.

    ``index`` is its place in the wave's global order; ``source`` and ``destination`` are group-wide slot ids.
    """

    index: int
    layer: int
    expert: int
    source: int
    destination: int


def own_arrivals(
    facts: PoolFacts, rank: int, physical_to_logical: NDArray[np.int32], changes: Sequence[LayerChange]
) -> tuple[Arrival, ...]:
    """What a wave brings to one rank, without the search for sources: all that memory must be there for.

    ``physical_to_logical``: int32 [layers, slots], the live map. The order and the indices are those of ``wave_copies``.
    """
    first = rank * facts.slots_per_rank
    arrivals: list[Arrival] = []
    before = 0
    for change in sorted(changes, key=lambda change: change.layer):
        target = np.array(change.target, dtype=np.int32)
        changed = np.flatnonzero((target >= 0) & (target != physical_to_logical[change.layer]))
        start, end = np.searchsorted(changed, (first, first + facts.slots_per_rank))
        for place in range(int(start), int(end)):
            slot = int(changed[place])
            arrivals.append(Arrival(before + place, change.layer, change.target[slot], slot))
        before += changed.size
    return tuple(arrivals)


def wave_copies(
    facts: PoolFacts,
    physical_to_logical: NDArray[np.int32],
    changes: Sequence[LayerChange],
    members: Sequence[int] | None = None,
) -> tuple[Copy, ...]:
    """All copies of a wave in global order (layer, destination slot).

    A holder on the same rank costs nothing; then come holders on the same node. Among those the copies are dealt so that the
    busiest sender sends as little as can be. ``members``: ranks that take part, None = all; others neither send nor receive.

    Raises:
        OfferError: an expert that must arrive has no holder in the live map, or would arrive on a rank that takes no part.
    """
    present = set(range(facts.ranks) if members is None else members)
    arrivals: list[Arrival] = []
    choices: list[list[int]] = []
    for change in sorted(changes, key=lambda change: change.layer):
        row = physical_to_logical[change.layer].tolist()
        holders: dict[int, list[int]] = {}
        for slot, expert in enumerate(row):
            if slot // facts.slots_per_rank in present:
                holders.setdefault(expert, []).append(slot)
        for destination, expert in enumerate(change.target):
            if expert < 0 or row[destination] == expert:
                continue
            if destination // facts.slots_per_rank not in present:
                raise OfferError(f"layer {change.layer} slot {destination}: its rank has left the group")
            if expert not in holders:
                raise OfferError(f"layer {change.layer} expert {expert}: no slot of the live map holds it")
            arrivals.append(Arrival(len(arrivals), change.layer, expert, destination))
            choices.append(_nearest(facts, holders[expert], destination))
    sources = _dealt(facts, arrivals, choices)
    return tuple(
        Copy(each.index, each.layer, each.expert, source, each.destination)
        for each, source in zip(arrivals, sources, strict=True)
    )


def _nearest(facts: PoolFacts, holders: Sequence[int], destination: int) -> list[int]:
    """Slots to copy from: the first on the same rank, else the first of each rank of the same node, else of each rank."""
    goal = destination // facts.slots_per_rank
    first: dict[int, int] = {}
    for slot in holders:
        first.setdefault(slot // facts.slots_per_rank, slot)
    if goal in first:
        return [first[goal]]
    node = node_of_rank(facts, goal)
    near = [slot for rank, slot in first.items() if node_of_rank(facts, rank) == node]
    return near or list(first.values())


def _dealt(facts: PoolFacts, arrivals: Sequence[Arrival], choices: Sequence[Sequence[int]]) -> list[int]:
    """One of the choices for each arrival, so that the most that any rank sends to others is least.

    Dealt to the least busy first. Then, as long as there is a way from a busiest rank over arrivals that could come from another
    rank to one that sends at least two less, the arrivals on it change hands: no such way is left only at the optimum
    (Harvey, Ladner, Lovász, Tamir 2003, semi-matchings).
    """
    width = facts.slots_per_rank
    sent = [0] * facts.ranks
    sources: list[int] = []
    for each, slots in zip(arrivals, choices, strict=True):
        source = min(slots, key=lambda slot: (sent[slot // width], slot))
        sources.append(source)
        sent[source // width] += source // width != each.destination // width
    free = [index for index, slots in enumerate(choices) if len(slots) > 1]
    while way := _relief(free, sources, choices, sent, width):
        sent[sources[way[0][0]] // width] -= 1
        sent[way[-1][1] // width] += 1
        for index, slot in way:
            sources[index] = slot
    return sources


def _relief(
    free: Sequence[int],
    sources: Sequence[int],
    choices: Sequence[Sequence[int]],
    sent: Sequence[int],
    width: int,
) -> list[tuple[int, int]]:
    """Arrivals and their new sources along the shortest way from a busiest rank to one with two less; empty = none."""
    most = max(sent, default=0)
    gives: dict[int, list[int]] = {}
    for index in free:
        gives.setdefault(sources[index] // width, []).append(index)
    came: dict[int, tuple[int, int, int] | None] = {
        rank: None for rank, load in enumerate(sent) if load == most and rank in gives
    }
    queue = list(came)
    for rank in queue:
        for index in gives.get(rank, ()):
            for slot in choices[index]:
                other = slot // width
                if other in came:
                    continue
                came[other] = (rank, index, slot)
                if sent[other] <= most - 2:
                    return _way(came, other)
                queue.append(other)
    return []


def _way(came: dict[int, tuple[int, int, int] | None], end: int) -> list[tuple[int, int]]:
    way: list[tuple[int, int]] = []
    while (step := came[end]) is not None:
        end = step[0]
        way.append(step[1:])
    return way[::-1]


def node_of_rank(facts: PoolFacts, rank: int) -> int:
    """Node of a rank when ranks are dealt to nodes in order."""
    return rank * facts.nodes // facts.ranks


def contention_free_rounds(
    facts: PoolFacts, copies: Sequence[Copy], limit: int = ROUND_COPIES_MAX
) -> tuple[tuple[Copy, ...], ...]:
    """Cut the copies between ranks into rounds in which a rank sends at most one and receives at most one expert.

    Senders and receivers form a bipartite multigraph, whose edges need exactly as many colours as its largest degree
    (Koenig 1916). With more colours than that, sizes can be evened out along paths of two colours (de Werra 1971), so that rounds of
    at most ``limit`` copies are as few as degree and number of copies allow: :func:`fewest_rounds`. Copies within a rank are
    left out.
    """
    width = facts.slots_per_rank
    between = [copy for copy in copies if copy.source // width != copy.destination // width]
    edges = [(copy.source // width, copy.destination // width) for copy in between]
    if not edges:
        return ()
    colouring = _Colouring(edges, facts.ranks, fewest_rounds(facts, copies, limit))
    for edge in range(len(edges)):
        colouring.add(edge)
    colouring.even_out(limit)
    return tuple(tuple(between[edge] for edge in part) for part in colouring.parts() if part)


def fewest_rounds(facts: PoolFacts, copies: Sequence[Copy], limit: int = ROUND_COPIES_MAX) -> int:
    """The lower bound: what the busiest rank sends or receives, and all copies between ranks over ``limit``."""
    width = facts.slots_per_rank
    ends = np.array(
        [(copy.source // width, copy.destination // width) for copy in copies], dtype=np.int64
    ).reshape(-1, 2)
    ends = ends[ends[:, 0] != ends[:, 1]]
    degree = max(int(np.bincount(ends[:, side], minlength=1).max()) for side in (0, 1))
    return max(degree, -(-len(ends) // limit))


class _Colouring:
    """Edges of a bipartite multigraph, coloured one by one; ``at[side][rank, colour]`` is the edge there, or -1."""

    def __init__(self, edges: list[tuple[int, int]], ranks: int, colours: int) -> None:
        self._edges = edges
        self._at = np.full((2, ranks, colours), -1)
        self.chosen = [-1] * len(edges)

    def add(self, edge: int) -> None:
        sender, receiver = self._edges[edge]
        free_sender = int(np.flatnonzero(self._at[0, sender] < 0)[0])
        free_receiver = int(np.flatnonzero(self._at[1, receiver] < 0)[0])
        if free_sender != free_receiver:
            self._swap_path(receiver, free_sender, free_receiver)
        self._set(edge, free_sender)

    def _swap_path(self, receiver: int, first: int, second: int) -> None:
        # The path that alternates the two colours from this receiver cannot end at the new edge's sender: it comes to
        # senders by `first` only, and that sender misses `first`. Swapping the path frees `first` at the receiver.
        edge = int(self._at[1, receiver, first])
        if edge >= 0:
            self._flip([edge, *self._follow(edge, 0, second, first)], first, second)

    def parts(self) -> list[list[int]]:
        """Edges of each colour, in their order."""
        parts: list[list[int]] = [[] for _ in range(self._at.shape[2])]
        for edge, colour in enumerate(self.chosen):
            parts[colour].append(edge)
        return parts

    def even_out(self, limit: int) -> None:
        """Move what a colour has above ``limit`` edges to the first colours that have room; there are enough of them."""
        sizes = [len(part) for part in self.parts()]
        for colour in range(len(sizes)):
            for other in range(len(sizes)):
                count = min(sizes[colour] - limit, limit - sizes[other])
                if count > 0:
                    paths = self._longer(colour, other)
                    for path in paths[limit - sizes[colour] :][:count]:
                        self._flip(path, colour, other)
                    sizes[colour] -= count
                    sizes[other] += count

    def _longer(self, colour: int, other: int) -> list[list[int]]:
        """Paths of both colours that have one edge more of ``colour``, by their first edge."""
        paths: list[list[int]] = []
        seen: set[int] = set()
        for edge in self.parts()[colour]:
            if edge in seen:
                continue
            ways = [self._follow(edge, side, other, colour) for side in (0, 1)]
            path = [*ways[0][::-1], edge, *ways[1]]
            seen.update(path)
            if sum(self.chosen[each] == colour for each in set(path)) * 2 > len(set(path)):
                paths.append(path)
        return paths

    def _follow(self, edge: int, side: int, first: int, second: int) -> list[int]:
        """Edges from one end of an edge on, the colours by turns; a ring ends where it began."""
        path: list[int] = []
        colour, start = first, edge
        place = self._edges[edge][side]
        while (edge := int(self._at[side, place, colour])) >= 0 and edge != start:
            path.append(edge)
            side = 1 - side
            place = self._edges[edge][side]
            colour = second if colour == first else first
        return path

    def _flip(self, path: list[int], first: int, second: int) -> None:
        for edge in path:
            for side, place in enumerate(self._edges[edge]):
                self._at[side, place, self.chosen[edge]] = -1
        for edge in path:
            self._set(edge, second if self.chosen[edge] == first else first)

    def _set(self, edge: int, colour: int) -> None:
        self.chosen[edge] = colour
        for side, place in enumerate(self._edges[edge]):
            self._at[side, place, colour] = edge
