"""How many nodes a token's copies travel to under a map, and whether the engine's dispatcher makes that matter."""

from __future__ import annotations

from math import comb, nan
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import instance, whole
from placement.coactivation import merged_sets
from placement.errors import MapError, PlacementError, UnsupportedError
from placement.layer import ordered_sum
from placement.placement import Placement
from placement.routes import MOST_EXPERTS, Routes
from placement.topology import MOST_SLOTS, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

NODE_DEDUPE, RANK_DEDUPE, PER_EXPERT, ALL_GATHER = "node_dedupe", "rank_dedupe", "per_expert", "all_gather"

DISPATCHERS = (NODE_DEDUPE, RANK_DEDUPE, PER_EXPERT, ALL_GATHER)
"""What an engine's dispatcher sends (field.md 3.1): a token once per distinct node; once per distinct rank; once per selected
expert; everything to everyone."""

NO_GAIN = {
    PER_EXPERT: "a per-expert dispatcher sends one copy of a token to every selected expert, wherever it is",
    ALL_GATHER: "an all-gather dispatcher sends every token to every rank, whatever the placement",
}
"""Why no placement saves traffic under a dispatcher."""

CHOICES = ("even", "nearest", "fewest")
"""Which copy of an expert a token takes: any, with equal chance; one on the token's own node when there is one; those
that together touch fewest nodes (a limit that no public engine reaches)."""

MOST_COVERED_BINS = 12
"""Most nodes over which ``fewest`` is searched exactly: it tries every set of nodes."""


def check_dispatcher(dispatcher: str) -> None:
    """Refuse an unknown dispatcher.

    Raises:
        UnsupportedError: names the dispatchers.
    """
    if not (isinstance(dispatcher, str) and dispatcher in DISPATCHERS):
        raise UnsupportedError(f"dispatcher {dispatcher!r} is unknown: use one of {', '.join(DISPATCHERS)}")


def random_fan_out(experts: int, top_k: int, bins: int) -> float:
    """Mean distinct bins of a token whose experts lie at random, ``experts / bins`` in each: b(1 - C(E-E/b,k)/C(E,k)).

    field.md 3.2. Bins are nodes, or ranks. Where ``bins`` does not divide ``experts``, bins hold one expert more or less.

    Raises:
        PlacementError: a number is no whole number, too small or above any pool, or ``top_k`` is above ``experts``.
    """
    experts, bins = whole("experts", experts, 1, most=MOST_EXPERTS), whole("bins", bins, 1, most=MOST_SLOTS)
    top_k = whole("top_k", top_k, 0)
    if top_k > experts:
        raise PlacementError(f"top_k is {top_k}, but there are only {experts} experts")
    small, larger = divmod(experts, bins)
    sizes = [small + 1] * larger + [small] * (bins - larger)
    return sum(1 - comb(experts - size, top_k) / comb(experts, top_k) for size in sizes)


def bins_of(topology: Topology, dispatcher: str) -> tuple[NDArray[np.int64], int]:
    """The bin of every slot, int64 [slots], and their number: nodes, or ranks under rank dedupe."""
    rank = topology.rank_of_slot()
    if dispatcher == RANK_DEDUPE:
        return rank, topology.ranks
    return np.array(topology.node_of_rank, dtype=np.int64)[rank], topology.nodes


def bin_shares(
    row: NDArray[np.int64], bins: NDArray[np.int64], count: int, experts: int
) -> NDArray[np.float64]:
    """Part of an expert's copies in every bin, float64 [experts + 1, bins]; the last row, for no pick, is zero.

    ``row``: int64 [slots], -1 or ``experts`` = empty.
    """
    held = np.zeros((experts + 1, count))
    filled = (row >= 0) & (row < experts)
    np.add.at(held, (row[filled], bins[filled]), 1.0)
    copies = np.bincount(row[filled], minlength=experts + 1)[:, None]
    shares: NDArray[np.float64] = held / np.maximum(copies, 1)
    return shares


def fan_out(
    placement: Placement,
    routes: Routes,
    topology: Topology,
    *,
    dispatcher: str = NODE_DEDUPE,
    choice: str = "even",
) -> NDArray[np.float64]:
    """Mean distinct nodes (under rank dedupe: ranks) that a token's copies go to, float64 [layers], NaN without routes.

    The token's own node counts when one of its experts is there. ``choice``: ``even`` takes each expert's copies with equal
    chance, independently, and gives the exact expectation; ``nearest`` takes a copy on the node where the token started
    (``routes.sources``; unknown = every node alike), else any; ``fewest`` takes those that touch fewest nodes.
    Dead ranks hold nothing. Under dispatchers without dedupe it is the number of copies sent: top-k per expert, the live ranks under all-gather.

    Raises:
        PlacementError: an argument is of another type.
        MapError: the map has another shape than the topology and the routes, or lacks an expert that a token selected.
        UnsupportedError: the dispatcher or the choice is unknown, or ``fewest`` over more than 12 nodes.
    """
    instance("placement", placement, Placement, MapError)
    instance("routes", routes, Routes)
    instance("topology", topology, Topology)
    check_dispatcher(dispatcher)
    if not (isinstance(choice, str) and choice in CHOICES):
        raise UnsupportedError(f"choice {choice!r} is unknown: use one of {', '.join(CHOICES)}")
    if (placement.layers, placement.slots) != (routes.layers, topology.slots):
        raise MapError(
            f"the map is [{placement.layers}, {placement.slots}], "
            f"expected [{routes.layers} layers, {topology.slots} slots]"
        )
    dead = np.isin(topology.rank_of_slot(), list(topology.dead))
    rows = np.where(dead, -1, placement.physical_to_logical).astype(np.int64)
    return np.array(
        [
            _layer(row, routes, at, topology, dispatcher=dispatcher, choice=choice)
            for at, row in enumerate(rows)
        ]
    )


def layer_fan_out(
    row: NDArray[np.int64],
    sets: NDArray[np.int64],
    tokens: NDArray[np.int64],
    topology: Topology,
    experts: int,
    *,
    dispatcher: str = NODE_DEDUPE,
) -> float:
    """``fan_out`` of one layer over its merged sets (see ``coactivation.merged_sets``), copies taken with equal chance.

    ``row``: int64 [slots], ``experts`` (their number) or -1 = empty. Every expert of the sets has a slot.
    """
    bins, count = bins_of(topology, dispatcher)
    shares = bin_shares(row, bins, count, experts)
    return ordered_sum(expected_bins(sets, shares) * tokens) / int(tokens.sum())


def _layer(
    row: NDArray[np.int64], routes: Routes, at: int, topology: Topology, *, dispatcher: str, choice: str
) -> float:
    picks = routes.experts[:, at]
    experts = 1 + max(int(picks.max()), 0)
    sets, tokens, of_token = merged_sets(picks, experts)
    if not len(sets):
        return nan
    if dispatcher == ALL_GATHER:
        return float(len(topology.live_ranks))
    if dispatcher == PER_EXPERT:
        return int(((sets < experts).sum(axis=1) * tokens).sum()) / int(tokens.sum())
    bins, count = bins_of(topology, dispatcher)
    shares = bin_shares(row, bins, count, experts)
    _check_served(sets, shares, at)
    if choice == "nearest":
        return _nearest(
            sets, shares, started_at(len(sets), of_token, routes, topology, dispatcher=dispatcher)
        )
    touched = _fewest(sets, shares) if choice == "fewest" else expected_bins(sets, shares)
    return ordered_sum(touched * tokens) / int(tokens.sum())


def _check_served(sets: NDArray[np.int64], shares: NDArray[np.float64], at: int) -> None:
    lost = shares.max(axis=1) <= 0
    lost[-1] = False
    if lost[sets].any():
        expert = int(sets[lost[sets]][0])
        raise MapError(
            f"layer {at}: routes select expert {expert}, which no slot holds: repair the map first"
        )


def expected_bins(sets: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected distinct bins of every set when each expert's bin is drawn by its shares, float64 [sets].

    Sum over bins of 1 - prod over the set of (1 - share).
    """
    missed = np.ones((len(sets), shares.shape[1]))
    for place in range(sets.shape[1]):
        missed *= 1.0 - shares[sets[:, place]]
    touched: NDArray[np.float64] = np.cumsum(1.0 - missed, axis=1)[:, -1]
    return touched


def _nearest(sets: NDArray[np.int64], shares: NDArray[np.float64], started: NDArray[np.float64]) -> float:
    """Expected bins when a token started on each bin in turn, weighted by the tokens that ``started`` there."""
    total = 0.0
    for bin_ in range(shares.shape[1]):
        here = shares[:, bin_] > 0
        near = np.where(here[:, None], np.arange(shares.shape[1]) == bin_, shares)
        total += ordered_sum(expected_bins(sets, near) * started[:, bin_])
    return total / ordered_sum(started.ravel())


def started_at(
    sets: int,
    of_token: NDArray[np.int64],
    routes: Routes,
    topology: Topology,
    *,
    dispatcher: str = NODE_DEDUPE,
) -> NDArray[np.float64]:
    """Tokens of every set by the bin they started on, float64 [sets, bins]; spread evenly when ``routes`` do not say.

    Raises:
        MapError: a source is not a rank of the topology.
    """
    by_node = dispatcher != RANK_DEDUPE
    count = topology.nodes if by_node else topology.ranks
    known = of_token >= 0
    started = np.zeros((sets, count))
    if routes.sources is None:
        np.add.at(started, of_token[known], 1.0 / count)
        return started
    if int(routes.sources.max()) >= topology.ranks:
        raise MapError(
            f"routes name source rank {int(routes.sources.max())}, ranks are 0..{topology.ranks - 1}"
        )
    sources = np.array(topology.node_of_rank)[routes.sources] if by_node else routes.sources
    np.add.at(started, (of_token[known], sources[known]), 1.0)
    return started


def _fewest(sets: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smallest number of bins that hold a copy of every expert of a set, by trying all sets of bins in rising size."""
    count = shares.shape[1]
    if count > MOST_COVERED_BINS:
        raise UnsupportedError(
            f"choice 'fewest' tries every set of nodes, {count} are too many: use at most {MOST_COVERED_BINS}"
        )
    bit: NDArray[np.int64] = ((shares > 0) * (1 << np.arange(count))).sum(axis=1)
    bit[-1] = (1 << count) - 1
    held = bit[sets]
    touched = np.full(len(sets), float(count))
    for chosen in sorted(range(1, 1 << count), key=int.bit_count, reverse=True):
        touched[((held & chosen) > 0).all(axis=1)] = chosen.bit_count()
    return touched
