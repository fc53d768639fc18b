"""Rules of the gate: which check comes first, and what no plan passes."""

from dataclasses import replace

import pytest
from controller_stories import PLAN, RETURNS, SEEN, SETTINGS, SHARES, record_of
from hypothesis import given
from hypothesis import strategies as st

from eplb.config import GateConfig
from eplb.decisions import Code
from eplb.gains import Gains
from eplb.gate import Rest, before_moving, before_planning, horizon_of
from eplb.hot_experts import HotExpert
from eplb.price import Worth

NOW_MS = 1_000_000
NOTHING = replace(PLAN, moves=0, bytes=0, layers=0, ratio_after=PLAN.ratio_before)


def test_every_refusal_comes_before_all_that_cost_more():
    """With everything wrong at once, each check speaks in its turn once those before it are right."""
    wrong = replace(
        SEEN, coverage=0.5, slices=1, misaligned_share=0.5, recoverable_excess=0.2, recent_recoverable=0.2, fixable_excess=0.0,
        shares_followed=0.1,
    )  # fmt: skip
    right = replace(
        wrong, coverage=1.0, slices=100, misaligned_share=0.0, fixable_excess=0.1, shares_followed=0.9,
    )  # fmt: skip
    steps = [
        (wrong, Rest(NOW_MS + 1, NOW_MS + 1), Code.COOLDOWN),
        (wrong, Rest(0, NOW_MS + 1), Code.MIN_INTERVAL),
        (wrong, Rest(), Code.LOW_COVERAGE),
        (replace(wrong, coverage=1.0), Rest(), Code.NOT_ENOUGH_DATA),
        (replace(wrong, coverage=1.0, slices=100), Rest(), Code.MISALIGNED),
        (replace(wrong, coverage=1.0, slices=100, misaligned_share=0.0, recoverable_excess=0.0), Rest(), Code.BALANCED),
        (replace(wrong, coverage=1.0, slices=100, misaligned_share=0.0), Rest(), Code.SHARES_IGNORED),
        (replace(right, fixable_excess=0.0), Rest(), Code.INDIVISIBLE_HOT_EXPERT),
        (right, Rest(), Code.PLANNING),
    ]  # fmt: skip
    for seen, rest, code in steps:
        verdict = before_planning(SETTINGS, seen, time_ms=NOW_MS, rest=rest)
        assert verdict.code is code
        assert verdict.passed == (code is Code.PLANNING)
        assert verdict.passed or verdict.would_change


@pytest.mark.parametrize(
    ("followed", "code"),
    [(float("nan"), Code.PLANNING), (1.0, Code.PLANNING), (0.51, Code.PLANNING), (0.49, Code.SHARES_IGNORED)],
)
def test_nothing_is_planned_for_an_engine_that_was_seen_to_ignore_shares(followed, code):
    """Its plans would promise what cannot come, again and again; what is not known holds nothing back."""
    verdict = before_planning(SETTINGS, replace(SEEN, shares_followed=followed), time_ms=NOW_MS, rest=Rest())
    assert verdict.code is code
    assert code is Code.PLANNING or ("0.49" in verdict.sentence and "dispatch: even" in verdict.would_change)


@pytest.mark.parametrize(
    ("excess", "recent", "drift", "code"),
    [
        (0.07, 0.06, 0.31, Code.PLANNING),
        (0.07, 0.06, 0.29, Code.BALANCED),
        (0.07, 0.04, 0.31, Code.BALANCED),
        (0.04, 0.06, 0.99, Code.BALANCED),
        (0.07, 0.06, float("nan"), Code.BALANCED),
        (0.12, 0.06, float("nan"), Code.PLANNING),
    ],
)
def test_drift_triggers_only_inside_the_dead_band(excess, recent, drift, code):
    """Below the target nothing is worth it, whatever is hot; without a plan to compare with there is no drift."""
    seen = replace(SEEN, recoverable_excess=excess, recent_recoverable=recent, drift=drift)
    assert before_planning(SETTINGS, seen, time_ms=NOW_MS, rest=Rest()).code is code


@pytest.mark.parametrize(
    ("plan", "gains", "code"),
    [
        (NOTHING, Gains(), Code.GAIN_TOO_SMALL),
        (replace(NOTHING, reasons=(RETURNS,)), Gains(), Code.THRASH),
        (replace(PLAN, ratio_after=1.89), Gains(), Code.GAIN_TOO_SMALL),
        (replace(PLAN, ratio_after=1.875), Gains(), Code.OFFERED),
        (replace(PLAN, ratio_after=1.875), record_of(0.7, 0.0), Code.GAIN_TOO_SMALL),
        (replace(PLAN, worth=Worth()), Gains(), Code.NO_PRICE),
        (replace(PLAN, worth=Worth(1.0, 0.5, 0.0, "fitted", "")), Gains(), Code.PRICE_TOO_HIGH),
        (replace(PLAN, ratio_after=1.87, undoes=0.6), record_of(0.7, 0.7, error=0.02), Code.THRASH),
        (replace(PLAN, ratio_after=1.87, undoes=0.4), record_of(0.7, 0.7, error=0.02), Code.OFFERED),
        (replace(PLAN, undoes=0.6), record_of(0.7, 0.7, error=0.02), Code.OFFERED),
        (SHARES, Gains(), Code.SHARES_OFFERED),
        (replace(SHARES, ratio_after=1.889), Gains(), Code.SHARES_OFFERED),
        (replace(SHARES, ratio_after=1.891), Gains(), Code.GAIN_TOO_SMALL),
        (replace(SHARES, worth=Worth()), Gains(), Code.SHARES_OFFERED),
    ],
)
def test_a_plan_passes_or_is_refused_for_its_reason(plan, gains, code):
    """Gain, price, thrash, in that order; shares alone have their own cheaper gate and no price."""
    verdict = before_moving(SETTINGS, plan, gains, SEEN)
    assert verdict.code is code
    assert verdict.passed == (code in (Code.OFFERED, Code.SHARES_OFFERED))


def test_pln_04_a_dominant_expert_needs_replicas():
    """PLN-04: where one expert holds most of the excess, a plan that finds nothing says so instead of promising another load."""
    hot = replace(SEEN, fixable_excess=0.1, hot_expert=HotExpert(3, 0, 1.5))
    assert before_moving(SETTINGS, NOTHING, Gains(), hot).code is Code.INDIVISIBLE_HOT_EXPERT
    assert (
        before_moving(SETTINGS, NOTHING, Gains(), replace(hot, fixable_excess=0.6)).code
        is Code.GAIN_TOO_SMALL
    )


@pytest.mark.parametrize(("full", "what"), [(True, "window.max_slices than 256"), (False, "time")])
def test_a_full_window_of_too_few_tokens_is_not_told_to_wait(full, what):
    """Small steps fill the slices with fewer tokens than are asked for: no time changes that, two settings do."""
    thin = replace(SEEN, slices=256, tokens=900, full=full)
    verdict = before_planning(SETTINGS, thin, time_ms=0, rest=Rest())
    assert verdict.code is Code.NOT_ENOUGH_DATA
    assert what in verdict.would_change


def test_advice_needs_no_price():
    """A person can weigh a ratio; only auto refuses to move without a price."""
    advise = SETTINGS.model_copy(update={"mode": "advise"})
    verdict = before_moving(advise, replace(PLAN, worth=Worth()), Gains())
    assert verdict.passed
    assert "no price in time" in verdict.sentence


def test_the_horizon_is_the_setting_or_the_half_life():
    """Whichever is shorter."""
    assert horizon_of(SETTINGS, Gains()) == SETTINGS.horizon_s
    assert horizon_of(SETTINGS, record_of(0.7, 0.7, half_life_s=60.0)) == 60.0
    assert horizon_of(SETTINGS, record_of(0.7, 0.7, half_life_s=1e9)) == SETTINGS.horizon_s


NUMBER = st.floats(0.0, 10.0)


@given(
    NUMBER,
    NUMBER,
    NUMBER,
    st.floats(0.0, 1e6),
    st.floats(1.0, 1e5),
    st.floats(-1.0, 1.0),
    st.floats(1.0, 1e6),
)
def test_no_plan_passes_whose_price_is_above_its_gain_over_the_horizon(  # noqa: PLR0917 - drawn
    before, after, stall_s, saved, horizon_s, brought, half_life_s
):
    """Whatever record, setting and plan: what is offered gains enough and pays."""
    settings = GateConfig(mode="auto", horizon_s=horizon_s)
    gains = record_of(0.5, brought, half_life_s=half_life_s)
    plan = replace(
        PLAN,
        ratio_before=1.0 + before,
        ratio_after=1.0 + after,
        worth=Worth(saved, stall_s, 0.0, "fitted", ""),
    )
    verdict = before_moving(settings, plan, gains)
    if verdict.passed:
        assert plan.gain * gains.correction >= settings.min_gain
        assert saved * 1e-6 * gains.correction * min(horizon_s, half_life_s) > stall_s
