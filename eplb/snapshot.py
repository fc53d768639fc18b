"""What the daemon knows about one pool at one moment: immutable, read by metrics, API, page and CLI alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PhaseReading:
    """Load and balance of one phase of one pool over the window.

    ``ratio_by_layer``: float64 [layers], mean over slices of max/mean rank load, NaN = no load in that layer.
    ``quality``: how the ratio was had: ``exact``, ``sampled 1/n`` or ``predicted``.
    ``excess`` mean over layers of ratio - 1. ``noise_floor`` the excess that sampling noise alone would show on the same
    steps. ``recoverable_excess`` = excess - that of a balanced map on the same steps.
    ``node_max_tokens``, ``node_mean_tokens``: float64 [nodes], the most loaded rank's and the mean rank's tokens per step.
    ``top_ranks``: (rank, load / mean load), the most loaded first, at most 8.
    ``layer_rank_load``: float64 [layers, ranks], load / mean load. Times are means in microseconds over sampled steps.
    """

    phase: str
    quality: str
    slices: int
    steps: int
    tokens: int
    ratio_by_layer: NDArray[np.float64]
    excess: float
    noise_floor: float
    recoverable_excess: float
    waste_share: float
    node_max_tokens: NDArray[np.float64]
    node_mean_tokens: NDArray[np.float64]
    top_ranks: tuple[tuple[int, float], ...]
    layer_rank_load: NDArray[np.float64]
    step_us: float | None = None
    moe_wait_us: float | None = None
    a2a_us: float | None = None
    expert_us: float | None = None
    batch_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """How the pool's plans fare.

    ``stalled_s`` for how long nothing has moved although it should, 0 = all is well; ``stalled_ranks`` that are waited for. ``next_plan_s`` until the next plan
    may be looked for, never below 0. ``promised_gain``, ``realised_gain`` of the last plan that was measured, falls of the mean ratio; ``correction`` on
    the next promise; ``half_life_s`` of past gains; None = not known. ``missed`` the last plan brought far less than promised; ``rolled_back`` of the remembered
    plans.
    """

    stalled_s: float = 0.0
    stalled_ranks: tuple[int, ...] = ()
    next_plan_s: float = 0.0
    promised_gain: float | None = None
    realised_gain: float | None = None
    correction: float = 1.0
    half_life_s: float | None = None
    missed: bool = False
    rolled_back: int = 0


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Everything the daemon shows about one pool.

    ``coverage`` ranks seen / ranks expected in the window. ``stale_ranks`` ranks without a frame in the last interval limit.
    ``counters`` totals since the daemon began, by name (frames, bytes, lost, misaligned, refused, ...).
    ``decision`` the last decision record as plain data. ``time_ms`` store time in milliseconds, 0 while it is unknown.
    ``ranks_lost`` ranks of the configuration that are no members of the group; expected, seen and stale ranks are members.
    ``backlog_ms`` time between the last frame read and the last one written, 0 = nothing is left to read.
    ``state_saved`` whether the last good map is on disk, None = no state_folder. ``store_may_evict`` None = this user may not ask.
    ``store_used_ratio`` memory used over maxmemory, None = no limit. ``records_refused`` live records that could not be read.
    """

    pool: str
    time_ms: int
    mode: str
    leader: bool
    term: int
    paused: bool
    map_version: int
    migration_state: str
    ranks_expected: int
    ranks_seen: int
    coverage: float
    stale_ranks: tuple[int, ...]
    newest_age_s: float | None
    readings: tuple[PhaseReading, ...]
    counters: dict[str, int]
    decision: dict[str, Any] | None
    model_layers: tuple[int, ...] = ()
    alerting: bool = False
    store_up: bool = True
    backlog_ms: int = 0
    ranks_lost: int = 0
    state_saved: bool | None = None
    store_may_evict: bool | None = None
    store_used_ratio: float | None = None
    records_refused: int = 0
    rebalance: Rebalance = Rebalance()
