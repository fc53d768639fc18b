"""What a lost rank, and one that is back, ask of the daemon ahead of balance.

The ranks have an expert of every kind again before they serve without a rank (:mod:`eplb.agent.reform`). What is left is to give
the survivors replicas where the load is, and that must not wait for complete data, which cannot come while a rank is down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.decisions import Code
from eplb.gate import Verdict, refuse
from eplb.history.material import Material
from eplb.history.planned_on import PlannedOn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.decisions import Decision, PlanFacts
    from eplb.ranks import LiveRanks
    from eplb.window import WindowView

LEAST_SLICES = 4
"""Fewer slices cannot be parted into those that are planned on and one that judges: then all experts count alike."""
_ANSWERED = (Code.APPLIED, Code.ADVISED, Code.GAIN_TOO_SMALL)
_TRIGGER = (Code.BALANCED, Code.INDIVISIBLE_HOT_EXPERT, Code.SHARES_IGNORED)
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
        self._asked_ms: int | None = None

    def need(self, ranks: LiveRanks, now_ms: int) -> Need | None:
        """What the present membership asks for at store time ``now_ms``; None = nothing, or not yet again."""
        rows = ranks.rows
        # A store whose clock stepped back must not stretch the rest.
        resting = self._asked_ms is not None and 0 <= now_ms - self._asked_ms < RETRY_S * 1000
        if rows is None or resting or ranks.run_id == self._done_run:
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
        if plan is not None and plan.degraded and decision.code in _ANSWERED:
            self._done_run = ranks.run_id


def empty_ranks(rows: NDArray[np.int32], ranks: int) -> tuple[int, ...]:
    """Ranks whose slots are empty in every layer: int32 [layers, slots]."""
    held = (rows >= 0).reshape(len(rows), ranks, -1).any(axis=(0, 2))
    return tuple(np.flatnonzero(~held).tolist())


def urgent_material(view: WindowView, facts: PoolFacts) -> Material:
    """Slices for a plan that cannot wait: all that the window has, or equal loads.

    Tokens by expert do not depend on the map or the ranks that they were counted under.
    """
    tokens = view.tokens[view.tokens.any(axis=(1, 2))]
    seen = len(tokens)
    if seen < LEAST_SLICES:
        tokens, seen = np.ones((LEAST_SLICES, facts.layers, facts.experts), dtype=np.int64), 0
    held_out = max(1, len(tokens) // LEAST_SLICES)
    told = PlannedOn("off", seen, 0, 0.0, float(seen))
    return Material(tokens, None, held_out, told, np.zeros(0, dtype=np.int64), 0)


def asked_for(need: Need | None, verdict: Verdict) -> Verdict:
    """The gate's verdict on looking for a plan, unless membership outweighs it.

    A lost rank outweighs cooldown, coverage and trigger; one that is back only the trigger, hot experts or not.
    """
    if need is None or not (verdict.passed or need.urgent or verdict.code in _TRIGGER):
        return verdict
    besides = verdict.sentence if verdict.passed else f"not waited for: {verdict.sentence}"
    return Verdict(passed=True, code=need.code, sentence=f"{need.sentence}; {besides}")


def before_moving(plan: PlanFacts) -> Verdict:
    """Whether a plan that membership asked for is moved: unless it moves nothing or makes the ratio worse; its price does not count."""
    if plan.moves == 0:
        sentence = "the experts stand well on the living ranks already; nothing moves"
        return refuse(Code.GAIN_TOO_SMALL, sentence, "another load")
    if not plan.gain >= 0.0:
        return refuse(
            Code.GAIN_TOO_SMALL, f"the plan would raise the ratio by {-plan.gain:.3f}", "another load"
        )
    sentence = (
        f"{plan.moves} moves give the living ranks their replicas; the ratio goes from {plan.ratio_before:.3f} to "
        f"{plan.ratio_after:.3f} on {plan.slices_held_out} slices; membership asked for it, so neither price nor least gain is"
    )
    return Verdict(passed=True, code=Code.OFFERED, sentence=sentence)


def _lost_sentence(ranks: LiveRanks) -> str:
    named = ", ".join(map(str, ranks.lost[:8]))
    more = f" and {len(ranks.lost) - 8} more" if len(ranks.lost) > 8 else ""
    reloaded = ranks.first.reloaded_experts if ranks.first is not None else 0
    back = f"; {reloaded} experts had no living copy and were loaded again" if reloaded else ""
    return f"rank {named}{more} lost, {len(ranks.members)} serve{back}; a plan for these is made at once, on the data there are"
