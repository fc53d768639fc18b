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
    facts: PoolFacts, physical_to_logical: NDArray[np.int32], changes: Sequence[LayerChange]
) -> tuple[Copy, ...]:
    """All copies of a wave in global order (layer, destination slot).

    A holder on the same rank costs nothing; then holders on the same node come first, then the one that has sent least
    so far, then the lowest rank.

    Raises:
        OfferError: an expert that must arrive has no holder in the live map.
    """
    sent = [0] * facts.ranks
    copies: list[Copy] = []
    for change in sorted(changes, key=lambda change: change.layer):
        row = physical_to_logical[change.layer].tolist()
        holders: dict[int, list[int]] = {}
        for slot, expert in enumerate(row):
            holders.setdefault(expert, []).append(slot)
        for destination, expert in enumerate(change.target):
            if expert < 0 or row[destination] == expert:
                continue
            source = _choose_source(facts, holders.get(expert, ()), destination, sent)
            if source is None:
                raise OfferError(f"layer {change.layer} expert {expert}: no slot of the live map holds it")
            sent[source // facts.slots_per_rank] += 1
            copies.append(Copy(len(copies), change.layer, expert, source, destination))
    return tuple(copies)


def _choose_source(facts: PoolFacts, holders: Sequence[int], destination: int, sent: list[int]) -> int | None:
    goal = destination // facts.slots_per_rank

    def price(slot: int) -> tuple[bool, bool, int, int]:
        rank = slot // facts.slots_per_rank
        return (rank != goal, node_of_rank(facts, rank) != node_of_rank(facts, goal), sent[rank], slot)

    return min(holders, key=price, default=None)


def node_of_rank(facts: PoolFacts, rank: int) -> int:
    """Node of a rank when ranks are dealt to nodes in order."""
    return rank * facts.nodes // facts.ranks


def contention_free_rounds(
    facts: PoolFacts, copies: Sequence[Copy], limit: int = ROUND_COPIES_MAX
) -> tuple[tuple[Copy, ...], ...]:
    """Cut the copies between ranks into rounds in which a rank sends at most one and receives at most one expert.

    Senders and receivers form a bipartite multigraph, whose edges need exactly as many colours as its largest degree
    (Koenig). A colour with more than ``limit`` copies is cut further, by global order. Copies within a rank are left out.
    """
    between = [c for c in copies if c.source // facts.slots_per_rank != c.destination // facts.slots_per_rank]
    edges = [(c.source // facts.slots_per_rank, c.destination // facts.slots_per_rank) for c in between]
    rounds: list[list[Copy]] = []
    for copy, colour in zip(between, _edge_colours(edges, facts.ranks), strict=True):
        rounds.extend([] for _ in range(colour + 1 - len(rounds)))
        rounds[colour].append(copy)
    return tuple(tuple(part[i : i + limit]) for part in rounds for i in range(0, len(part), limit))


def _edge_colours(edges: list[tuple[int, int]], ranks: int) -> list[int]:
    if not edges:
        return []
    ends = np.array(edges)
    colours = max(int(np.bincount(ends[:, side]).max()) for side in (0, 1))
    colouring = _Colouring(edges, ranks, colours)
    for edge in range(len(edges)):
        colouring.add(edge)
    return colouring.chosen


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
        path: list[int] = []
        side, place, colour = 1, receiver, first
        while (edge := int(self._at[side, place, colour])) >= 0:
            path.append(edge)
            side = 1 - side
            place = self._edges[edge][side]
            colour = second if colour == first else first
        for edge in path:
            for side, place in enumerate(self._edges[edge]):
                self._at[side, place, self.chosen[edge]] = -1
        for edge in path:
            self._set(edge, second if self.chosen[edge] == first else first)

    def _set(self, edge: int, colour: int) -> None:
        self.chosen[edge] = colour
        for side, place in enumerate(self._edges[edge]):
            self._at[side, place, colour] = edge
