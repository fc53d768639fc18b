"""The checks between a measurement and a plan, and between a plan and a move: cheapest first, each with a reason.

The gate decides nothing else and does nothing: it is given facts and answers with a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.decisions import Code
from eplb.rollback import NOISE
from eplb.thrash import UNDOING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.assess import Assessment
    from eplb.config import GateConfig
    from eplb.decisions import PlanFacts
    from eplb.gains import Gains

MOST_MISALIGNED_SHARE = 0.01
"""Above this share of samples that fail conservation, counts are not trusted enough to move weights."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Pass or refusal, with a code, a sentence and what would change it."""

    passed: bool
    code: Code
    sentence: str
    would_change: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """Store times in ms before which no plan is looked for: after one that moved or failed, and after one that was offered.

    ``after`` the code that the cooldown follows, "" = a former leader's.
    """

    cooldown_until_ms: int = 0
    interval_until_ms: int = 0
    after: str = ""

    def left_s(self, time_ms: int) -> float:
        """Seconds until both are over, never below 0."""
        return max(0, self.cooldown_until_ms - time_ms, self.interval_until_ms - time_ms) / 1000.0


def refuse(code: Code, sentence: str, would_change: str) -> Verdict:
    """A refusal with its reason."""
    return Verdict(passed=False, code=code, sentence=sentence, would_change=would_change)


def before_planning(settings: GateConfig, seen: Assessment | None, *, time_ms: int, rest: Rest) -> Verdict:
    """Whether a better placement is worth looking for."""
    if seen is None:
        return refuse(Code.NOT_ENOUGH_DATA, "no rank has reported yet", "frames of the ranks")
    verdicts = list(_checks(settings, seen, time_ms, rest))
    return next((verdict for verdict in verdicts if not verdict.passed), verdicts[-1])


def _checks(settings: GateConfig, seen: Assessment, time_ms: int, rest: Rest) -> Iterator[Verdict]:
    if time_ms < rest.cooldown_until_ms:
        left_s = (rest.cooldown_until_ms - time_ms) / 1000.0
        after = f", which follows {rest.after}" if rest.after else ""
        yield refuse(Code.COOLDOWN, f"{left_s:.0f} s of the cooldown are left{after}", "time")
    if time_ms < rest.interval_until_ms:
        left_s = (rest.interval_until_ms - time_ms) / 1000.0
        sentence = (
            f"{left_s:.0f} s of the {settings.min_interval_s:g} s between two plans (min_interval_s) are left"
        )
        yield refuse(Code.MIN_INTERVAL, sentence, "time")
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
        # A window that is full of small steps never holds more tokens, however long one waits.
        yield refuse(
            Code.NOT_ENOUGH_DATA,
            sentence,
            "time, and where steps are small a larger window.max_slices or a lower gate.min_tokens",
        )
    if seen.misaligned_share > MOST_MISALIGNED_SHARE:
        sentence = f"{seen.misaligned_share:.1%} of the samples fail conservation (limit {MOST_MISALIGNED_SHARE:.0%})"
        yield refuse(Code.MISALIGNED, sentence, "collectors that count the same steps on all ranks")
    yield from _wanted(settings, seen)


def _wanted(settings: GateConfig, seen: Assessment) -> Iterator[Verdict]:
    trigger = _trigger(settings, seen)
    if trigger.passed and seen.fixable_excess <= settings.target_excess:
        yield indivisible(seen)
    yield trigger


def indivisible(seen: Assessment) -> Verdict:
    """The refusal when the expert that binds is hotter than any rank's fair share and cannot be split further."""
    hot = seen.hot_expert
    named = (
        f"expert {hot.expert} of layer {hot.layer} alone is {hot.load_ratio:.2f} of a rank's fair share"
        if hot
        else "single experts are hotter than a rank's fair share"
    )
    sentence = (
        f"{named}, and there are no slots for enough copies: of the recoverable excess {seen.recoverable_excess:.3f} "
        f"moves can take {max(0.0, seen.fixable_excess):.3f}"
    )
    return refuse(Code.INDIVISIBLE_HOT_EXPERT, sentence, "more redundant slots, for replicas of that expert")


def _trigger(settings: GateConfig, seen: Assessment) -> Verdict:
    """The mean above the trigger, or above the target with other experts hot than before; the newest slices all above the target.

    So a burst that is over triggers nothing, and inside the dead band only a change of traffic does.
    """
    mean, recent = seen.recoverable_excess, seen.recent_recoverable
    if not (math.isfinite(mean) and math.isfinite(recent)):
        return refuse(Code.NOT_ENOUGH_DATA, "no slice of the window holds load", "traffic")
    limits = f"(trigger {settings.trigger_excess:g}, target {settings.target_excess:g})"
    drifted = seen.drift > settings.drift_share and mean > settings.target_excess
    if (mean > settings.trigger_excess or drifted) and recent > settings.target_excess:
        return Verdict(passed=True, code=Code.PLANNING, sentence=_triggered(settings, seen))
    if mean > settings.trigger_excess or drifted:
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


def _triggered(settings: GateConfig, seen: Assessment) -> str:
    newest = f"at least {seen.recent_recoverable:.3f} in the newest {settings.trigger_slices} slices"
    if seen.recoverable_excess > settings.trigger_excess:
        return f"recoverable excess {seen.recoverable_excess:.3f} is above the trigger {settings.trigger_excess:g}, and {newest}"
    return (
        f"recoverable excess {seen.recoverable_excess:.3f} is inside the dead band, but {seen.drift:.0%} of the hottest load is on "
        f"other experts than when the last plan was made (drift_share {settings.drift_share:g}), and {newest}"
    )


def before_moving(
    settings: GateConfig, plan: PlanFacts, gains: Gains, seen: Assessment | None = None
) -> Verdict:
    """Whether a plan is good enough to be moved: its gain is that on slices it did not see, corrected by what earlier plans delivered."""
    for verdict in _plan_checks(settings, plan, gains, seen):
        if not verdict.passed:
            return verdict
    code = Code.SHARES_OFFERED if plan.shares_only else Code.OFFERED
    return Verdict(
        passed=True, code=code, sentence=f"{_numbers(plan, gains)}{_in_time(settings, plan, gains)}"
    )


def _plan_checks(
    settings: GateConfig, plan: PlanFacts, gains: Gains, seen: Assessment | None
) -> Iterator[Verdict]:
    yield from _gain_checks(settings, plan, gains, seen)
    if not plan.shares_only:
        yield from _price_checks(settings, plan, gains)
        yield from _undoing(plan, gains)


def _gain_checks(
    settings: GateConfig, plan: PlanFacts, gains: Gains, seen: Assessment | None
) -> Iterator[Verdict]:
    returns = next((sentence for code, sentence in plan.reasons if code == Code.THRASH), "")
    least, name = (
        (settings.min_gain_shares, "min_gain_shares") if plan.shares_only else (settings.min_gain, "min_gain")
    )
    if not plan.changes_nothing and plan.gain * gains.correction >= least:
        return
    if returns:
        yield refuse(
            Code.THRASH, f"{returns}; what is left gains {plan.gain:.3f}", "time, or a lasting change of load"
        )
    if seen is not None and seen.hot_expert is not None and seen.hot_expert.load_ratio > 1.0:
        bound = seen.recoverable_excess - seen.fixable_excess
        if bound >= 0.5 * seen.recoverable_excess:
            yield indivisible(seen)
    if plan.changes_nothing:
        yield refuse(Code.GAIN_TOO_SMALL, "the solver found nothing better than the live map", "another load")
    yield refuse(
        Code.GAIN_TOO_SMALL,
        f"{_numbers(plan, gains)}; the gain {plan.gain * gains.correction:.3f} is below {name} {least:g}",
        f"a lower {name}, or load on which more can be gained",
    )


def _price_checks(settings: GateConfig, plan: PlanFacts, gains: Gains) -> Iterator[Verdict]:
    worth, horizon_s = plan.worth, horizon_of(settings, gains)
    if not worth.known:
        if settings.mode == "auto":
            yield refuse(
                Code.NO_PRICE,
                f"{_numbers(plan, gains)}; what that is worth in time is unknown: {worth.no_price}",
                "step times from the ranks, or gate.price_us_per_token",
            )
    elif not worth.pays(horizon_s, gains.correction):
        yield refuse(
            Code.PRICE_TOO_HIGH,
            f"{_numbers(plan, gains)}{_in_time(settings, plan, gains)}, which does not pay",
            "a larger gain, gains that last longer, or cheaper moves",
        )


def _undoing(plan: PlanFacts, gains: Gains) -> Iterator[Verdict]:
    """A plan that takes the last one back must be sure of more than both measurements could be wrong by."""
    last = gains.last
    if last is None or plan.undoes < UNDOING or last.rolled_back:
        return
    noise = NOISE * math.hypot(plan.gain_error, last.error)
    if not plan.gain * gains.correction > noise:
        yield refuse(
            Code.THRASH,
            f"{_numbers(plan, gains)}; it takes back {plan.undoes:.0%} of the last plan, and its gain is within the noise {noise:.3f} of both",
            "a gain above the noise",
        )


def horizon_of(settings: GateConfig, gains: Gains) -> float:
    """Seconds over which a gain counts: the setting, or the half-life of past gains if that is shorter."""
    return min(settings.horizon_s, gains.half_life_s)


def _numbers(plan: PlanFacts, gains: Gains) -> str:
    what = (
        f"shares of {plan.layers} layers alone take"
        if plan.shares_only
        else f"{plan.moves} moves ({plan.bytes / 1e6:.2f} MB) take"
    )
    corrected = "" if gains.correction == 1.0 else f" (promises are corrected by {gains.correction:.2f})"
    return (
        f"{what} the ratio from {plan.ratio_before:.3f} to {plan.ratio_after:.3f} on {plan.slices_held_out} slices that the "
        f"plan did not see{corrected}"
    )


def _in_time(settings: GateConfig, plan: PlanFacts, gains: Gains) -> str:
    if plan.shares_only:
        return "; no bytes move"
    worth, horizon_s = plan.worth, horizon_of(settings, gains)
    if not worth.known:
        return f"; no price in time: {worth.no_price}"
    cap = ", the half-life of past gains" if horizon_s < settings.horizon_s else ""
    return f"; it saves {worth.saved_s(horizon_s, gains.correction):.3g} s over {horizon_s:.0f} s{cap}, and asks {worth.price_s:.3g} s"
