"""What a lost rank, and one that is back, ask of the daemon ahead of balance.

The ranks have an expert of every kind again before they serve without a rank (:mod:`eplb.agent.reform`). What is left is to give
the survivors replicas where the load is, and that must not wait for complete data, which cannot come while a rank is down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.decisions import Code

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.decisions import Decision, PlanFacts
    from eplb.ranks import LiveRanks
    from eplb.window import WindowView

LEAST_SLICES = 4
"""Fewer slices cannot be parted into those that are planned on and one that judges: then all experts count alike."""
RETRY_S = 10.0
"""A plan that failed or was refused is asked for anew after this long, whatever the cooldown."""


@dataclass(frozen=True, slots=True)
class Need:
    """Why a plan is wanted whatever the gate says of balance.

    ``urgent``: at once, on whatever data there is. Else once there are data, whatever the gain; ``code`` and ``sentence`` why.
    """

    code: Code
    sentence: str
    urgent: bool


class Evacuation:
    """Remembers for which life of the group a plan was made; a new leader makes one more, which then moves nothing."""

    def __init__(self) -> None:
        self._done_run: int | None = None
        self._asked_ms = 0

    def need(self, ranks: LiveRanks, now_ms: int) -> Need | None:
        """What the present membership asks for at store time ``now_ms``; None = nothing, or not yet again."""
        rows = ranks.rows
        if rows is None or ranks.run_id == self._done_run or now_ms < self._asked_ms + RETRY_S * 1000:
            return None
        if ranks.lost:
            return Need(Code.RANK_LOST, _lost_sentence(ranks), urgent=True)
        empty = empty_ranks(rows, len(ranks.lost) + len(ranks.members))
        if empty:
            named = ", ".join(map(str, empty[:8]))
            return Need(Code.RANK_BACK, f"ranks {named} are back and hold no expert yet", urgent=False)
        return None

    def note(self, decision: Decision, ranks: LiveRanks) -> None:
        """Learn from a cycle's decision: whether a plan was asked for, and whether one is live or has nothing to move."""
        if decision.code in (Code.RANK_LOST, Code.RANK_BACK):
            self._asked_ms = decision.time_ms
        plan = decision.plan
        if plan is not None and plan.degraded and (decision.code is Code.APPLIED or plan.moves == 0):
            self._done_run = ranks.run_id


def empty_ranks(rows: NDArray[np.int32], ranks: int) -> tuple[int, ...]:
    """Ranks whose slots are empty in every layer: int32 [layers, slots]."""
    held = (rows >= 0).reshape(len(rows), ranks, -1).any(axis=(0, 2))
    return tuple(np.flatnonzero(~held).tolist())


def tokens_at_hand(view: WindowView, facts: PoolFacts) -> NDArray[np.int64]:
    """Slices for a plan that cannot wait, int64 [slices, layers, experts]: all that the window has, or equal loads.

    Tokens by expert do not depend on the map or the ranks that they were counted under.
    """
    loaded = view.tokens[view.tokens.any(axis=(1, 2))]
    if len(loaded) >= LEAST_SLICES:
        return loaded
    return np.ones((LEAST_SLICES, facts.layers, facts.experts), dtype=np.int64)


def refusal_of(plan: PlanFacts) -> tuple[Code, str] | None:
    """Why a plan that membership asked for is not moved, None = it is: only when it moves nothing or makes the ratio worse."""
    if plan.moves == 0:
        return Code.GAIN_TOO_SMALL, "the experts stand well on the living ranks already; nothing moves"
    if not plan.gain >= 0.0:
        return Code.GAIN_TOO_SMALL, f"the plan would raise the ratio by {-plan.gain:.3f}"
    return None


def _lost_sentence(ranks: LiveRanks) -> str:
    named = ", ".join(map(str, ranks.lost[:8]))
    more = f" and {len(ranks.lost) - 8} more" if len(ranks.lost) > 8 else ""
    reloaded = ranks.first.reloaded_experts if ranks.first is not None else 0
    back = f"; {reloaded} experts had no living copy and were loaded again" if reloaded else ""
    return f"rank {named}{more} lost, {len(ranks.members)} serve{back}; a plan for these is made at once, on the data there are"
