"""How many nodes a token's copies travel to under a map, and whether the engine's dispatcher makes that matter."""

from __future__ import annotations

from math import comb, nan
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import instance, whole
from placement.choice import (
    EVEN,
    Bins,
    bins_touched,
    check_choice,
    copy_table,
    tokens_of,
)
from placement.errors import MapError, PlacementError, UnsupportedError
from placement.layer import ordered_sum
from placement.placement import Placement
from placement.routes import MOST_EXPERTS, Routes
from placement.topology import MOST_SLOTS, Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.choice import Tokens

NODE_DEDUPE, RANK_DEDUPE, PER_EXPERT, ALL_GATHER = "node_dedupe", "rank_dedupe", "per_expert", "all_gather"

DISPATCHERS = (NODE_DEDUPE, RANK_DEDUPE, PER_EXPERT, ALL_GATHER)
"""What an engine's dispatcher sends (field.md 3.1): a token once per distinct node; once per distinct rank; once per selected
expert; everything to everyone."""

NO_GAIN = {
    PER_EXPERT: "a per-expert dispatcher sends one copy of a token to every selected expert, wherever it is",
    ALL_GATHER: "an all-gather dispatcher sends every token to every rank, whatever the placement",
}
"""Why no placement saves traffic under a dispatcher."""


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


def bins_of(topology: Topology, dispatcher: str = NODE_DEDUPE, number: tuple[int, ...] | None = None) -> Bins:
    """The bins of a topology: nodes, or ranks under rank dedupe. ``number``: the engine's number of each rank, None = in turn."""
    rank = topology.rank_of_slot()
    of_rank = np.array(topology.node_of_rank, dtype=np.int64)
    count = topology.nodes
    if dispatcher == RANK_DEDUPE:
        of_rank, count = np.arange(topology.ranks), topology.ranks
    return Bins(of_rank[rank], of_rank, np.array(number or range(topology.ranks), dtype=np.int64), count)


def fan_out(
    placement: Placement,
    routes: Routes,
    topology: Topology,
    *,
    dispatcher: str = NODE_DEDUPE,
    choice: str = EVEN,
    remote: bool = False,
) -> NDArray[np.float64]:
    """Mean distinct nodes (under rank dedupe: ranks) that a token's copies go to, float64 [layers], NaN without routes.

    The token's own node counts when one of its experts is there, unless ``remote`` asks for the others alone, which is what
    crosses the network. ``choice``: see ``choice.CHOICES``; ``even`` gives the exact expectation; ``nearest`` and
    ``per_source`` go by where the token started (``routes.sources``; unknown = everywhere alike).
    Dead ranks hold nothing. Under dispatchers without dedupe it is the number of copies sent: top-k per expert, the live ranks
    under all-gather.

    Raises:
        PlacementError: an argument is of another type.
        MapError: the map has another shape than the topology and the routes, lacks an expert that a token selected, or the
            routes name a source that is no rank.
        UnsupportedError: the dispatcher or the choice is unknown, ``fewest`` over more than 12 nodes, or ``remote`` without
            sources or without dedupe.
    """
    instance("placement", placement, Placement, MapError)
    instance("routes", routes, Routes)
    instance("topology", topology, Topology)
    check_dispatcher(dispatcher)
    check_choice(choice)
    if remote and (routes.sources is None or dispatcher in NO_GAIN):
        raise UnsupportedError(
            "remote nodes need routes with sources and a dispatcher that dedupes: leave remote out"
        )
    if (placement.layers, placement.slots) != (routes.layers, topology.slots):
        raise MapError(
            f"the map is [{placement.layers}, {placement.slots}], "
            f"expected [{routes.layers} layers, {topology.slots} slots]"
        )
    dead = np.isin(topology.rank_of_slot(), list(topology.dead))
    rows = np.where(dead, -1, placement.physical_to_logical).astype(np.int64)
    if dispatcher in NO_GAIN:
        return np.array(
            [_copies_sent(routes.experts[:, at], topology, dispatcher) for at in range(routes.layers)]
        )
    bins = bins_of(topology, dispatcher)
    return np.array([_layer(row, routes, at, bins, choice, remote=remote) for at, row in enumerate(rows)])


def layer_fan_out(
    row: NDArray[np.int64], tokens: Tokens, bins: Bins, experts: int, choice: str, *, remote: bool = False
) -> float:
    """``fan_out`` of one layer over its tokens; NaN without tokens.

    ``row``: int64 [slots], ``experts`` (their number) or -1 = empty. Every expert of the sets has a slot.
    """
    if not len(tokens.sets):
        return nan
    touched = bins_touched(tokens, copy_table(row, bins, experts, choice), choice, remote=remote)
    return ordered_sum(touched * tokens.count) / ordered_sum(tokens.count)


def _copies_sent(picks: NDArray[np.int16], topology: Topology, dispatcher: str) -> float:
    taken = (picks >= 0).sum(axis=1)
    tokens = int((taken > 0).sum())
    if not tokens:
        return nan
    return float(len(topology.live_ranks)) if dispatcher == ALL_GATHER else int(taken.sum()) / tokens


def _layer(
    row: NDArray[np.int64], routes: Routes, at: int, bins: Bins, choice: str, *, remote: bool
) -> float:
    experts = 1 + max(int(routes.experts[:, at].max()), 0)
    tokens = tokens_of(routes, at, experts, bins, choice)
    lost = np.bincount(row[(row >= 0) & (row < experts)], minlength=experts + 1) == 0
    lost[-1] = False
    if lost[tokens.sets].any():
        expert = int(tokens.sets[lost[tokens.sets]][0])
        raise MapError(
            f"layer {at}: routes select expert {expert}, which no slot holds: repair the map first"
        )
    return layer_fan_out(row, tokens, bins, experts, choice, remote=remote)
