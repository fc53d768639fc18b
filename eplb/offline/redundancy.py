"""How many slots a rank should have: what each further one gains on slices that the plan did not see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eplb.offline.holdout import HOLDOUT, split
from eplb.offline.plan import solved
from placement import InfeasibleError, Topology, evaluate, least_redundancy

if TYPE_CHECKING:
    from eplb.offline.plan import Ask
    from placement import LoadTrace

TRIES = 5
"""Slot counts that are tried, from the smallest on."""
TOLERANCE = 0.01
"""Ratio that may be lost against the best count tried: a slot more on every rank costs memory for one more expert per layer."""


@dataclass(frozen=True, slots=True)
class Try:
    """``slots_per_rank`` slots on every rank, ``redundant`` in all beyond one for every expert, and the ratio then."""

    slots_per_rank: int
    redundant: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The counts that were tried and the one taken. ``held_out``: whether slices were scored that the plan did not see."""

    tries: tuple[Try, ...]
    chosen: Try
    held_out: bool


def slots_for(experts: int, ranks: int, redundant: int) -> int:
    """Slots of a rank that make ``redundant`` slots beyond the experts.

    Raises:
        InfeasibleError: they do not divide over the ranks; says which number would.
    """
    return least_redundancy(experts, ranks, redundant)[1]


def choose(trace: LoadTrace, kinds: tuple[tuple[str, str], ...], ask: Ask) -> Choice:
    """Try the smallest counts, quickly, and take the first whose ratio is within ``TOLERANCE`` of the best.

    ``ask.topology`` gives ranks, nodes and groups; its slots do not count. A part of ``trace`` is held out to score; of a single
    slice nothing can be.

    Raises:
        InfeasibleError: no count can be used; or as ``placement.solve``.
    """
    parts = split(trace, kinds, HOLDOUT)
    seen, unseen = (trace, trace) if parts is None else (parts.seen, parts.unseen)
    least = least_redundancy(trace.experts, ask.topology.ranks)[1]
    tries: list[Try] = []
    for slots in range(least, min(least + TRIES, trace.experts + 1)):
        topology = resized(ask.topology, slots)
        quick = replace(ask, topology=topology, effort="fast")
        try:
            placement = solved(seen, quick, f"{slots} slots a rank").placement
        except InfeasibleError:
            # Whole groups may need more slots than the experts alone; the last word is that of the largest count.
            if slots == min(least + TRIES, trace.experts + 1) - 1 and not tries:
                raise
            continue
        ratio = evaluate(placement, unseen, topology, ask.engine.dispatch).mean_ratio
        tries.append(Try(slots, topology.slots - trace.experts, ratio))
    best = min(each.ratio for each in tries)
    chosen = next((each for each in tries if each.ratio <= best + TOLERANCE), tries[0])
    return Choice(tuple(tries), chosen, parts is not None)


def resized(topology: Topology, slots_per_rank: int) -> Topology:
    """The same ranks with other slots."""
    return replace(topology, slots_of_rank=(slots_per_rank,) * topology.ranks)
