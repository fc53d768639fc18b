"""The way back after a failed read-back: one wave to an earlier map from whatever each rank was found to serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digests
from collectors.shares import all_shares
from eplb.agent.wire import LayerChange
from eplb.migration.align import newcomers
from eplb.migration.plan import Plan, plan_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LiveRecord


def put_back_plan(
    facts: PoolFacts,
    before: NDArray[np.int32],
    shares: NDArray[np.float64] | None,
    first: LiveRecord,
    records: Mapping[int, LiveRecord],
    *,
    created_ms: int,
    reasons: tuple[tuple[str, str], ...] = (),
) -> Plan | None:
    """All layers, if any rank serves one otherwise than ``before``, int32 [layers, slots]; None where none does or the map is unknown.

    Layers that all serve as before are named too: one of them may be broken on a rank whose router kept its old row, and no record tells.

    ``shares``: float64 [layers, slots] or None. ``first`` the record that carries the map, ``records`` those of all ranks. It is one wave, because
    a rank that was read back wrong takes an offer only if it puts all its broken layers right.
    """
    rows = first.physical_to_logical()
    if rows is None:
        return None
    shares = None if shares is None else all_shares(before, shares)
    targets = layer_map_digests(facts.model_layers, before, shares)
    changes, differs = [], False
    for layer, target in enumerate(int(digest) for digest in targets):
        found = {record.digests[layer] for record in records.values()}
        differs = differs or found != {target}
        wire = None if shares is None else tuple(float(x) for x in shares[layer])
        row = tuple(int(x) for x in before[layer])
        changes.append(LayerChange(layer, first.digests[layer], target, row, wire, tuple(sorted(found))))
    if not differs:
        return None
    moves = int(newcomers(facts, rows, before).sum())
    return Plan(
        pool=facts.pool,
        plan_id=plan_id(created_ms, np.array(first.digests, dtype=np.uint64), changes),
        created_ms=created_ms,
        base_digests=first.digests,
        changes=tuple(changes),
        moves=moves,
        bytes=moves * facts.bytes_per_expert,
        gain_ratio=0.0,
        reasons=reasons,
    )
