"""Waves: the parts of a plan that are moved and switched together, whole layers each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digests
from eplb.errors import PlanError, PlanStale

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange
    from eplb.migration.plan import Plan


def waves(
    facts: PoolFacts,
    plan: Plan,
    live: NDArray[np.int32],
    *,
    staging_slots: int | None = None,
    bytes_per_rank: int | None = None,
) -> list[tuple[LayerChange, ...]]:
    """Cut what is left of a plan, seen from the live map, int32 [layers, slots].

    A layer is never cut, so swaps stay whole and each boundary consists of rows of the old and of the new map.
    ``staging_slots`` is the largest number of arrivals on one rank in a wave (None = one layer's slots);
    ``bytes_per_rank`` the largest number of bytes that arrive on one rank (None = no limit).

    Raises:
        PlanStale: a layer serves neither the plan's base nor its target.
        PlanError: one layer alone exceeds a limit: ``needs_staging(n)``.
    """
    limit = _slot_limit(facts, staging_slots, bytes_per_rank)
    parts: list[list[LayerChange]] = []
    filled = np.zeros(facts.ranks, dtype=np.int64)
    for change in remaining(facts, plan, live):
        arrivals = arrivals_by_rank(facts, live[change.layer], change)
        need = int(arrivals.max())
        if need > limit:
            raise PlanError(
                f"plan {plan.plan_id} layer {change.layer}: needs_staging({need}): {need} experts arrive on one rank, "
                f"{limit} fit; raise migration.staging_slots or the byte limit"
            )
        if not parts or int((filled + arrivals).max()) > limit:
            parts.append([])
            filled = np.zeros(facts.ranks, dtype=np.int64)
        parts[-1].append(change)
        filled += arrivals
    return [tuple(part) for part in parts]


def remaining(facts: PoolFacts, plan: Plan, live: NDArray[np.int32]) -> tuple[LayerChange, ...]:
    """Changes whose layers still serve the base; changes of shares alone are always left over.

    Raises:
        PlanStale: a layer serves neither the plan's base nor its target.
    """
    digests = layer_map_digests(facts.model_layers, live)
    left: list[LayerChange] = []
    for change in plan.changes:
        served = int(digests[change.layer])
        if served not in (change.base_digest, change.target_digest):
            raise PlanStale(
                f"plan {plan.plan_id} layer {change.layer}: serves map {served:016x}, neither the plan's base nor its "
                "target; plan anew from the live map"
            )
        if served == change.base_digest:
            left.append(change)
    return tuple(left)


def arrivals_by_rank(facts: PoolFacts, row: NDArray[np.int32], change: LayerChange) -> NDArray[np.int64]:
    """Slots of each rank that get another expert, copies within a rank included: int64 [ranks]."""
    target = np.array(change.target, dtype=np.int32)
    fresh = (target != row) & (target >= 0)
    return np.asarray(fresh.reshape(facts.ranks, facts.slots_per_rank).sum(axis=1), dtype=np.int64)


def _slot_limit(facts: PoolFacts, staging_slots: int | None, bytes_per_rank: int | None) -> int:
    limit = facts.slots_per_rank if staging_slots is None else staging_slots
    if bytes_per_rank is not None and facts.bytes_per_expert > 0:
        limit = min(limit, bytes_per_rank // facts.bytes_per_expert)
    return limit
