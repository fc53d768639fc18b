"""Decision records: what the daemon decided about a pool in one cycle, why, and what would change it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from eplb.plain import plain

if TYPE_CHECKING:
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
    LOW_COVERAGE = "low_coverage"
    BALANCED = "balanced"
    PLANNING = "planning"
    PLANNING_TIMEOUT = "planning_timeout"
    PLANNING_FAILED = "planning_failed"
    GAIN_TOO_SMALL = "gain_too_small"
    PLAN_STALE = "plan_stale"
    NEEDS_STAGING = "needs_staging"
    ADVISED = "advised"
    OFFERED = "offered"
    WAVE_LIVE = "wave_live"
    OFFER_REFUSED = "offer_refused"
    OFFER_EXPIRED = "offer_expired"
    ADOPTED = "adopted"
    WITHDRAWN = "withdrawn"
    NOT_DONE = "not_done"
    RANKS_STUCK = "ranks_stuck"
    FRAMES_REFUSED = "frames_refused"
    STORE_MAY_EVICT = "store_may_evict"
    APPLY_UNVERIFIED = "apply_unverified"
    APPLIED = "applied"
    SETTLING = "settling"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A plan in numbers.

    ``ratio_before`` and ``ratio_after``: mean over held-out slices and layers of max/mean under the live map and under the plan.
    ``gain`` their difference. ``solve_s`` how long the solver took; ``seconds`` how long moving is predicted to take, None = unknown. ``bytes`` weights to move, 0 while the size of an expert is unknown.
    ``planned_on`` the slices that the solver was given, from the window and from its history.
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

    @property
    def gain(self) -> float:
        """Predicted fall of the ratio on slices that the plan did not see."""
        return self.ratio_before - self.ratio_after


@dataclass(frozen=True, slots=True)
class Decision:
    """One cycle's record.

    ``state`` the controller's state after the cycle; ``would_change`` what would lead to another decision. Ratios are max/mean.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain data, NaN as None, with the plan's gain beside its ratios."""
        body: dict[str, Any] = plain(self)
        if self.plan is not None:
            body["plan"]["gain"] = plain(self.plan.gain)
        return body

    def as_json(self) -> bytes:
        """One line of JSON for the store's log."""
        return json.dumps(self.as_dict(), separators=(",", ":"), allow_nan=False).encode()
