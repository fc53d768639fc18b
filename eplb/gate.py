"""The checks between a measurement and a plan, and between a plan and a move: cheapest first, each with a reason.

The gate decides nothing else and does nothing: it is given facts and answers with a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.decisions import Code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.assess import Assessment
    from eplb.config import GateConfig
    from eplb.decisions import PlanFacts

MOST_MISALIGNED_SHARE = 0.01
"""Above this share of samples that fail conservation, counts are not trusted enough to move weights."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Pass or refusal, with a code, a sentence and what would change it."""

    passed: bool
    code: Code
    sentence: str
    would_change: str = ""


def refuse(code: Code, sentence: str, would_change: str) -> Verdict:
    """A refusal with its reason."""
    return Verdict(passed=False, code=code, sentence=sentence, would_change=would_change)


def before_planning(
    settings: GateConfig, seen: Assessment | None, *, time_ms: int, cooldown_until_ms: int
) -> Verdict:
    """Whether a better placement is worth looking for."""
    if seen is None:
        return refuse(Code.NOT_ENOUGH_DATA, "no rank has reported yet", "frames of the ranks")
    for verdict in _checks(settings, seen, time_ms, cooldown_until_ms):
        if not verdict.passed:
            return verdict
    sentence = (
        f"recoverable excess {seen.recoverable_excess:.3f} is above the trigger {settings.trigger_excess:g}, and at least "
        f"{seen.recent_recoverable:.3f} in the newest {settings.trigger_slices} slices"
    )
    return Verdict(passed=True, code=Code.PLANNING, sentence=sentence)


def _checks(
    settings: GateConfig, seen: Assessment, time_ms: int, cooldown_until_ms: int
) -> Iterator[Verdict]:
    if time_ms < cooldown_until_ms:
        left_s = (cooldown_until_ms - time_ms) / 1000.0
        yield refuse(Code.COOLDOWN, f"{left_s:.0f} s of the cooldown are left", "time")
    if seen.coverage < settings.coverage:
        missing = ", ".join(map(str, seen.missing_ranks[:8])) or "none"
        sentence = (
            f"{seen.ranks_seen} of {seen.ranks_expected} ranks seen (coverage {seen.coverage:.2f}, "
            f"needed {settings.coverage:g}); missing: {missing}"
        )
        yield refuse(Code.LOW_COVERAGE, sentence, "frames of the missing ranks")
    if seen.slices < settings.min_slices or seen.tokens < settings.min_tokens:
        sentence = (
            f"{seen.slices} slices with {seen.tokens} tokens under the live map; a plan needs {settings.min_slices} slices "
            f"and {settings.min_tokens} tokens"
        )
        yield refuse(Code.NOT_ENOUGH_DATA, sentence, "time, or a longer window")
    if seen.misaligned_share > MOST_MISALIGNED_SHARE:
        sentence = f"{seen.misaligned_share:.1%} of the samples fail conservation (limit {MOST_MISALIGNED_SHARE:.0%})"
        yield refuse(Code.MISALIGNED, sentence, "collectors that count the same steps on all ranks")
    yield _trigger(settings, seen)


def _trigger(settings: GateConfig, seen: Assessment) -> Verdict:
    """The mean must exceed the trigger; the newest slices must all exceed the target, so that a burst that is over does not."""
    mean, recent = seen.recoverable_excess, seen.recent_recoverable
    if not (math.isfinite(mean) and math.isfinite(recent)):
        return refuse(Code.NOT_ENOUGH_DATA, "no slice of the window holds load", "traffic")
    if mean > settings.trigger_excess and recent > settings.target_excess:
        return Verdict(passed=True, code=Code.PLANNING, sentence="")
    limits = f"(trigger {settings.trigger_excess:g}, target {settings.target_excess:g})"
    if mean > settings.trigger_excess:
        sentence = (
            f"recoverable excess {mean:.3f}, but only {recent:.3f} in one of the newest slices {limits}"
        )
        return refuse(Code.BALANCED, sentence, f"{settings.trigger_slices} slices in a row above the target")
    place = "below the target" if mean <= settings.target_excess else "inside the dead band"
    return refuse(
        Code.BALANCED,
        f"recoverable excess {mean:.3f} is {place} {limits}",
        f"recoverable excess above {settings.trigger_excess:g}",
    )


def before_moving(settings: GateConfig, plan: PlanFacts) -> Verdict:
    """Whether a plan is good enough to be moved: its gain is that on slices it did not see."""
    sentence = (
        f"{plan.moves} moves ({plan.bytes / 1e6:.2f} MB) take the ratio from {plan.ratio_before:.3f} to {plan.ratio_after:.3f} on "
        f"{plan.slices_held_out} slices that the plan did not see"
    )
    if plan.moves == 0:
        return refuse(
            Code.GAIN_TOO_SMALL, "the solver found nothing better than the live map", "another load"
        )
    if not plan.gain >= settings.min_gain:
        return refuse(
            Code.GAIN_TOO_SMALL,
            f"{sentence}; the gain {plan.gain:.3f} is below min_gain {settings.min_gain:g}",
            "a lower min_gain, or load on which more can be gained",
        )
    return Verdict(passed=True, code=Code.OFFERED, sentence=sentence)
