"""From what a cycle knows to the snapshot that everybody reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.assess import read_phase
from eplb.migration.status import State
from eplb.snapshot import PoolSnapshot, Rebalance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.config import PoolConfig
    from eplb.decisions import Decision
    from eplb.migration import Desired, MigrationStatus
    from eplb.ranks import LiveRanks
    from eplb.states import Inputs
    from eplb.store.health import StoreHealth
    from eplb.window import WindowView


@dataclass(frozen=True, slots=True)
class Known:
    """What one cycle read: the store's time in ms, the window, the ranks, what is desired, where the migration stands, how far the
    reader is behind the ranks in ms, the store's memory, and whether the last good map is on disk (None = not asked for).
    """

    now_ms: int
    view: WindowView
    ranks: LiveRanks
    desired: Desired
    status: MigrationStatus
    paused: bool
    backlog_ms: int
    health: StoreHealth
    saved: bool | None


def snapshot_of(
    config: PoolConfig,
    inputs: Inputs,
    known: Known,
    views: Sequence[tuple[str, WindowView]],
    decision: Decision,
) -> PoolSnapshot:
    """The snapshot of a cycle; ``views`` are the window's views by phase."""
    view, ranks, facts = known.view, known.ranks, config.facts()
    return PoolSnapshot(
        pool=config.name,
        time_ms=inputs.time_ms,
        mode=config.gate.mode,
        leader=inputs.leader,
        term=inputs.term,
        paused=inputs.paused,
        map_version=ranks.map_version,
        migration_state=str(known.status.state),
        ranks_expected=view.ranks_expected,
        ranks_seen=view.ranks_seen,
        coverage=view.coverage,
        ranks_lost=len(ranks.lost),
        stale_ranks=view.stale_ranks,
        newest_age_s=view.newest_age_s,
        readings=tuple(
            read_phase(shown, facts, name, live_digest=ranks.live_digest) for name, shown in views
        ),
        backlog_ms=known.backlog_ms,
        counters=view.counters,
        decision=decision.as_dict(),
        model_layers=facts.model_layers,
        state_saved=known.saved,
        store_may_evict=known.health.may_evict,
        store_used_ratio=known.health.used_ratio,
        records_refused=len(ranks.damaged),
        rebalance=_rebalance(inputs, decision),
    )


def _rebalance(inputs: Inputs, decision: Decision) -> Rebalance:
    gains, last = inputs.gains, inputs.gains.last
    return Rebalance(
        stalled_s=decision.stalled_s,
        stalled_ranks=decision.stalled_ranks,
        next_plan_s=decision.next_plan_s,
        promised_gain=None if last is None else last.predicted,
        realised_gain=None if last is None else last.realised,
        correction=gains.correction,
        half_life_s=gains.half_life_s if math.isfinite(gains.half_life_s) else None,
        missed=last is not None and last.missed,
        rolled_back=sum(outcome.rolled_back for outcome in gains.outcomes),
    )


def nothing_known(config: PoolConfig) -> PoolSnapshot:
    """The snapshot before the first cycle that reached the store."""
    return PoolSnapshot(
        pool=config.name,
        time_ms=0,
        mode=config.gate.mode,
        leader=False,
        term=0,
        paused=False,
        map_version=0,
        migration_state=str(State.IDLE),
        ranks_expected=config.topology.ranks,
        ranks_seen=0,
        coverage=0.0,
        stale_ranks=tuple(range(config.topology.ranks)),
        newest_age_s=None,
        readings=(),
        counters={},
        decision=None,
        model_layers=config.model.moe_layers,
    )
