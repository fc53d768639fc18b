"""Slots that were read back wrong, as the daemon sees them: what their ranks route by, and which wave writes them anew.

Only an engine that moves by itself needs this (profile ``delegated``): its rank cannot be stopped, so it serves on until a plan mends it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digest
from eplb.migration.plan import remaining
from eplb.migration.waves import merged
from eplb.protocol import left_broken, weights_in_doubt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange, LiveRecord, Offer
    from eplb.migration.plan import Plan


def in_doubt_of_weights(record: LiveRecord) -> bool:
    """Whether a rank is stuck with weights that failed their read-back; one that only lost its group waits for it to form again."""
    codes = {code for rank, code, _ in record.refusals if rank == record.rank}
    return weights_in_doubt(record.state, codes)


def broken_slots(facts: PoolFacts, record: LiveRecord) -> tuple[tuple[int, int], ...]:
    """Slots (layer, slot) of a rank that it says were read back wrong, as far as the pool has them."""
    return tuple(
        (layer, slot)
        for layer, slot in record.broken
        if 0 <= layer < facts.layers and 0 <= slot < facts.slots
    )


def routed_digests(facts: PoolFacts, record: LiveRecord, first: LiveRecord) -> tuple[int, ...]:
    """Digests of the rows that a rank routes by, one a layer.

    They are those that it reports, but for layers with broken slots: it reports the row with these slots empty, and if that is the
    first member's row with these slots empty, it routes by the first member's row.
    """
    digests, slots = list(record.digests), broken_slots(facts, record)
    if first.map_rows is None:
        return record.digests
    for layer in sorted({layer for layer, _ in slots}):
        row = np.array(first.map_rows[layer], dtype=np.int32)
        gaps = row.copy()
        gaps[[slot for where, slot in slots if where == layer]] = -1
        if digests[layer] == layer_map_digest(facts.model_layers[layer], gaps):
            shares = None if first.shares_rows is None else np.array(first.shares_rows[layer])
            digests[layer] = layer_map_digest(facts.model_layers[layer], row, shares)
    return tuple(digests)


def is_mended(facts: PoolFacts, record: LiveRecord, first: LiveRecord, offer: Offer) -> bool:
    """Whether an offer, later than the one that left a rank with broken slots, writes all of these anew."""
    slots = broken_slots(facts, record)
    if not slots or first.map_rows is None or record.offer == offer.key:
        return False
    targets = {change.layer: change.target for change in offer.changes if len(change.target) == facts.slots}
    return left_broken(slots, dict(enumerate(first.map_rows)), targets) is None


def mending_first(
    plan: Plan, digests: Sequence[int], records: Iterable[LiveRecord]
) -> tuple[tuple[LayerChange, ...], Plan]:
    """The plan's changes of layers with broken slots as one wave, () = there are none, and the plan without them.

    A rank with a broken slot takes nothing that leaves it broken, so this wave comes before all others.

    Raises:
        PlanStale: a layer serves a map that is nowhere in its chain.
    """
    layers = {layer for record in records if in_doubt_of_weights(record) for layer, _ in record.broken}
    first = merged([change for change in remaining(plan, digests) if change.layer in layers])
    rest = tuple(change for change in plan.changes if change.layer not in layers)
    return first, replace(plan, changes=rest)
