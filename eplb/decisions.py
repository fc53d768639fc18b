"""Decision records: what the daemon decided about a pool in one cycle, why, and what would change it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from eplb.plain import plain
from eplb.price import Worth

if TYPE_CHECKING:
    from eplb.gains import Departure, Outcome
    from eplb.history import PlannedOn


class Code(StrEnum):
    """Why something was or was not done; each comes with a sentence."""

    STANDBY = "standby"
    ELECTED = "elected"
    STORE_AWAY = "store_away"
    CYCLE_FAILED = "cycle_failed"
    NOT_ENOUGH_DATA = "not_enough_data"
    FACTS_MISMATCH = "facts_mismatch"
    PAUSED = "paused"
    OBSERVE_ONLY = "observe_only"
    IN_FLIGHT = "in_flight"
    IN_DOUBT = "in_doubt"
    MISALIGNED = "misaligned"
    COOLDOWN = "cooldown"
    MIN_INTERVAL = "min_interval"
    LOW_COVERAGE = "low_coverage"
    BALANCED = "balanced"
    PLANNING = "planning"
    PLANNING_TIMEOUT = "planning_timeout"
    PLANNING_FAILED = "planning_failed"
    INDIVISIBLE_HOT_EXPERT = "indivisible_hot_expert"
    GAIN_TOO_SMALL = "gain_too_small"
    SHARES_IGNORED = "shares_ignored"
    NO_PRICE = "no_price"
    PRICE_TOO_HIGH = "price_too_high"
    THRASH = "thrash"
    PLAN_STALE = "plan_stale"
    NEEDS_STAGING = "needs_staging"
    ADVISED = "advised"
    OFFERED = "offered"
    SHARES_OFFERED = "shares_offered"
    WAVE_LIVE = "wave_live"
    OFFER_REFUSED = "offer_refused"
    OFFER_EXPIRED = "offer_expired"
    ADOPTED = "adopted"
    WITHDRAWN = "withdrawn"
    NOT_DONE = "not_done"
    RANKS_STUCK = "ranks_stuck"
    RANK_LOST = "rank_lost"
    RANK_BACK = "rank_back"
    EXPERT_LOST = "expert_lost"
    MODEL_CHANGED = "model_changed"
    FRAMES_REFUSED = "frames_refused"
    STORE_MAY_EVICT = "store_may_evict"
    APPLY_UNVERIFIED = "apply_unverified"
    APPLIED = "applied"
    SETTLING = "settling"
    SETTLED = "settled"
    GAIN_MISSED = "gain_missed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    REBALANCE_STALLED = "rebalance_stalled"
    NO_PROGRESS = "no_progress"


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A plan in numbers.

    ``ratio_before`` and ``ratio_after``: mean over held-out slices and layers of max/mean under the live map and under the plan.
    ``gain`` their difference. ``solve_s`` how long the solver took; ``seconds`` how long moving is predicted to take, None = unknown. ``bytes`` weights to move, 0 while the size of an expert is unknown.
    ``degraded`` membership asked for it, so that it was made on whatever data there was.
    ``planned_on`` the slices that the solver was given, from the window and from its history.
    ``layers`` that change. ``gain_error`` standard error of the gain over the held-out slices. ``falls`` (phase, mean fall by step of the tokens on the costliest
    ranks, over layers). ``busiest_moves`` sum over layers of the most experts that come to one rank. ``worth`` the plan in time. ``undoes`` share of the last plan's moves that it takes back. ``rollback`` it puts the map before the last plan back.
    """

    plan_id: str
    map_version: int
    moves: int
    bytes: int
    ratio_before: float
    ratio_after: float
    bound: float
    slices_planned: int
    slices_held_out: int
    solve_s: float = 0.0
    seconds: float | None = None
    reasons: tuple[tuple[str, str], ...] = ()
    planned_on: PlannedOn | None = None
    layers: int = 0
    gain_error: float = 0.0
    falls: tuple[tuple[int, float], ...] = ()
    worth: Worth = field(default_factory=Worth)
    busiest_moves: int = 0
    undoes: float = 0.0
    rollback: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Whether the solver kept the live map and its shares."""
        return self.moves == 0 and self.layers == 0

    @property
    def shares_only(self) -> bool:
        """Whether it moves nothing and still changes something."""
        return self.moves == 0 and self.layers > 0

    degraded: bool = False

    @property
    def gain(self) -> float:
        """Predicted fall of the ratio on slices that the plan did not see."""
        return self.ratio_before - self.ratio_after


@dataclass(frozen=True, slots=True)
class Decision:
    """One cycle's record.

    ``state`` the controller's state after the cycle; ``would_change`` what would lead to another decision. Ratios are max/mean.
    ``correction`` factor on what plans promise; ``half_life_s`` of past gains, infinite = not known to fade; ``next_plan_s`` until the next plan may be looked for.
    ``stalled_ranks`` ranks that a stalled plan waits for, ``stalled_s`` for how long nothing has moved, 0 = all is well.
    ``outcome`` and ``departed``: what a plan brought and took from where, on the cycle that found it; a new leader reads them back.
    """

    pool: str
    time_ms: int
    cycle: int
    term: int
    state: str
    code: Code
    sentence: str
    would_change: str = ""
    coverage: float = 0.0
    slices: int = 0
    excess: float = math.nan
    recoverable_excess: float = math.nan
    map_version: int = 0
    ratio_by_layer: tuple[float, ...] = ()
    plan: PlanFacts | None = None
    realised_gain: float | None = None
    correction: float = 1.0
    half_life_s: float = math.inf
    next_plan_s: float = 0.0
    stalled_s: float = 0.0
    stalled_ranks: tuple[int, ...] = ()
    outcome: Outcome | None = None
    departed: Departure | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, NaN as None, with the plan's gain beside its ratios."""
        body: dict[str, Any] = plain(self)
        if self.plan is not None:
            body["plan"]["gain"] = plain(self.plan.gain)
        return body

    def as_json(self) -> bytes:
        """One line of JSON for the store's log."""
        return json.dumps(self.as_dict(), separators=(",", ":"), allow_nan=False).encode()
