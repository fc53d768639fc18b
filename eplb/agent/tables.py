"""What an engine's router needs of a map row: where each expert's copies stand, how many there are, and their shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import even_shares, quantised_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of some layers, made together so that no router ever sees one of a new map and one of an old.

    ``logical_to_physical``: int32 [layers, experts, copies], slots of each expert, lowest first, -1 padded; ``copies``: int32
    [layers, experts]; ``shares``: float64 [layers, experts, copies], 0 padded, in steps of a millionth; each expert's add up to 1.
    """

    logical_to_physical: NDArray[np.int32]
    copies: NDArray[np.int32]
    shares: NDArray[np.float64]


def tables_of(facts: PoolFacts, changes: Sequence[LayerChange]) -> Tables:
    """Tables of the rows that these changes ask for, by layer; even shares where a change names none."""
    ordered = sorted(changes, key=lambda change: change.layer)
    rows = np.array([change.target for change in ordered], dtype=np.int32)
    shares = [
        None if change.shares is None else np.array(change.shares, dtype=np.float64) for change in ordered
    ]
    copies = np.array([np.bincount(row[row >= 0], minlength=facts.experts) for row in rows], dtype=np.int32)
    width = int(copies.max(initial=1))
    slots = np.full((len(rows), facts.experts, width), -1, dtype=np.int32)
    parts = np.zeros((len(rows), facts.experts, width))
    for layer, (row, given) in enumerate(zip(rows, shares, strict=True)):
        each = quantised_shares(row, even_shares(row) if given is None else given)
        order = np.argsort(row, kind="stable")
        order = order[row[order] >= 0]
        experts = row[order]
        places = np.arange(order.size) - np.searchsorted(experts, experts)
        slots[layer, experts, places] = order
        parts[layer, experts, places] = each[order]
    return Tables(slots, copies, parts)


def dispatch_tables(facts: PoolFacts, physical_to_logical: NDArray[np.int32]) -> NDArray[np.int32]:
    """The slot that runs each expert where all ranks see the same tokens and their results are summed (no all-to-all).

    ``physical_to_logical``: int32 [layers, slots] -> int32 [layers, experts], -1 = no slot. The same on every rank, because it
    depends on the map alone, so that one rank runs an expert for a token; copies are dealt to experts in turn.
    """
    table = np.full((len(physical_to_logical), facts.experts), -1, dtype=np.int32)
    for layer, row in enumerate(physical_to_logical):
        for expert in range(facts.experts):
            slots = np.flatnonzero(row == expert)
            if slots.size:
                table[layer, expert] = slots[expert % slots.size]
    return table
