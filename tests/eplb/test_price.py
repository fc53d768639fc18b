"""Rules of the price: what a measured line says, when it says nothing, and what pays."""

import math
from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS
from hypothesis import given
from hypothesis import strategies as st

from eplb.price import (
    ANY_PHASE,
    NoFit,
    PhasePrice,
    Pricing,
    StepFit,
    Worth,
    fit_step_time,
    price_phases,
    step_cost,
    worth_of,
)
from eplb.window import Window

TIMES = st.floats(1e-3, 1e6)


def steps(count=60, base_us=500.0, slope=0.25, noise_us=5.0, seed=1):
    rng = np.random.default_rng(seed)
    cost = rng.uniform(10_000, 14_000, count)
    return cost, base_us + slope * cost + rng.normal(0.0, noise_us, count)


def test_a_line_is_found_within_its_own_error():
    """Base and slope of simulated steps come back, and the error that is stated is the error that is made."""
    slopes = []
    for seed in range(200):
        fit = fit_step_time(*steps(seed=seed))
        slopes.append((fit.us_per_token - 0.25) / fit.error_us_per_token)
    assert np.std(slopes) == pytest.approx(1.0, abs=0.2)
    assert fit.base_us == pytest.approx(500.0, abs=60.0)


def test_pauses_of_the_engine_are_left_out():
    """Three steps that took a hundred times as long do not move the line."""
    cost, step_us = steps()
    step_us[[3, 20, 41]] *= 100.0
    fit = fit_step_time(cost, step_us)
    assert fit.us_per_token == pytest.approx(0.25, abs=0.01)
    assert fit.left_out >= 3


@pytest.mark.parametrize(
    ("cost", "step_us", "why"),
    [
        (*steps(count=10), "10 steps with a measured time"),
        (np.full(50, 1000.0), steps(50)[1], "nearly the same load"),
        (np.zeros(50), steps(50)[1], "nearly the same load"),
        (steps(50)[0], np.random.default_rng(0).normal(900, 50, 50), "do not follow the load"),
        (steps(50)[0], -steps(50)[1], "do not follow the load"),
        (steps(50)[0], np.full(50, np.nan), "0 steps with a measured time"),
    ],
    ids=["few", "flat", "idle", "noise", "falling", "unmeasured"],
)
def test_no_price_is_given_without_evidence(cost, step_us, why):
    """Too few, too flat, or a slope that its error does not tell from 0."""
    fit = fit_step_time(cost, step_us)
    assert isinstance(fit, NoFit)
    assert why in fit.sentence


def test_the_line_does_not_depend_on_the_machine():
    """The same steps give the same bits whatever the memory layout."""
    cost, step_us = steps()
    strided = np.stack([cost, step_us], axis=1)
    assert fit_step_time(cost, step_us) == fit_step_time(strided[:, 0], strided[:, 1])


def test_the_saving_is_slope_times_fall_times_steps():
    """2 us a token, 100 tokens less a step, 20 steps a second, half exposed: 2 ms a second."""
    pricing = Pricing({1: PhasePrice(2.0, 20.0)}, "fitted")
    worth = worth_of([(1, 100.0)], pricing, exposed_share=0.5, stall_s=0.3, slowdown_s=0.1)
    assert worth.saved_us_per_s == pytest.approx(2000.0)
    assert worth.price_s == pytest.approx(0.4)
    assert worth.pays(201.0)
    assert not worth.pays(199.0)


def test_phases_are_priced_each_for_itself():
    """A fall in prefill and a rise in decode are added up at their own prices; a phase without a price says nothing."""
    pricing = Pricing({0: PhasePrice(1.0, 1.0), 1: PhasePrice(10.0, 2.0)}, "fitted")
    both = worth_of([(0, 50.0), (1, -1.0), (2, 999.0)], pricing, exposed_share=1.0, stall_s=0, slowdown_s=0)
    assert both.saved_us_per_s == pytest.approx(50.0 - 20.0)


def view_of(slices, *, run_id, members=(0, 1, 2, 3), same=True):
    """A view of equal slices, 96 tokens a layer, with twice the mean on the costliest rank."""
    empty = Window(FACTS).view(1_000_000)
    return replace(
        empty,
        tokens=np.full((slices, FACTS.layers, FACTS.experts), 96 // FACTS.experts, dtype=np.int64),
        ratio=np.full((slices, FACTS.layers), 2.0),
        run_ids=np.full(slices, run_id, dtype=np.uint64),
        group_steps=np.arange(slices),
        step_us_by_slice=np.full(slices, np.nan),
        members=members,
        same_members=np.full(slices, same),
        steps=600,
        span_s=30.0,
    )


def test_a_configured_price_counts_intervals_where_no_step_was_sampled():
    """6 intervals in 30 s, 1000 tokens less in each, 2 us a token: 400 us a second; without a price there is none."""
    pricing = price_phases([(1, view_of(6, run_id=0))], 2.0)
    worth = worth_of([(ANY_PHASE, 1000.0)], pricing, exposed_share=1.0, stall_s=0.0, slowdown_s=0.0)
    assert worth.saved_us_per_s == pytest.approx(400.0)
    assert ANY_PHASE not in price_phases([(1, view_of(6, run_id=0))], None).phases
    assert ANY_PHASE not in price_phases([(1, view_of(6, run_id=5))], 2.0).phases


def test_the_cost_of_a_step_is_that_of_its_members():
    """Ratios are over the members of a step's life: 2 x 96 / 3 tokens in each layer; with other members it is not known."""
    lost = view_of(4, run_id=5, members=(0, 1, 2))
    assert step_cost(lost) == pytest.approx(np.full(4, FACTS.layers * 64.0))
    assert np.isnan(step_cost(replace(lost, same_members=np.zeros(4, dtype=np.bool_)))).all()


def test_without_a_price_a_plan_never_pays():
    """Unknown is not free."""
    worth = worth_of([(1, 100.0)], Pricing({}, "", "too few"), exposed_share=1.0, stall_s=0, slowdown_s=0)
    assert (worth.known, worth.no_price) == (False, "too few")
    assert not worth.pays(1e12)


@given(
    st.floats(-1e6, 1e6),
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    TIMES,
    st.floats(0.25, 1.0),
)
def test_no_plan_pays_whose_price_is_above_its_saving(saved, stall_s, slowdown_s, horizon_s, correction):
    """Whatever the numbers, and a smaller horizon, a lower correction or a higher price never turns a no into a yes."""
    worth = Worth(saved, stall_s, slowdown_s, "fitted", "")
    if worth.price_s >= saved * 1e-6 * horizon_s:
        assert not worth.pays(horizon_s, correction)
    if not worth.pays(horizon_s, correction):
        assert not worth.pays(horizon_s / 2, correction)
        assert not Worth(saved, stall_s + 1.0, slowdown_s, "fitted", "").pays(horizon_s, correction)


@given(st.integers(-8, 8), st.floats(1.0, 500.0), st.floats(0.0, 50.0), st.floats(1.0, 1e5))
def test_units_of_time_change_no_verdict(power, fall, stall_s, horizon_s):
    """A clock that runs 2^n times as fast gives the same answer: slower steps, fewer of them, longer stall and horizon."""
    unit = 2.0**power
    verdicts = []
    for scale in (1.0, unit):
        pricing = Pricing({1: PhasePrice(2.0 * scale, 20.0 / scale)}, "fitted")
        worth = worth_of([(1, fall)], pricing, exposed_share=1.0, stall_s=stall_s * scale, slowdown_s=0.0)
        verdicts.append(worth.pays(horizon_s * scale))
    assert verdicts[0] == verdicts[1]


def test_the_fit_scales_with_the_unit_of_time():
    """Times in other units give the same line in other units."""
    cost, step_us = steps()
    one, four = fit_step_time(cost, step_us), fit_step_time(cost, 4.0 * step_us)
    assert isinstance(one, StepFit)
    assert four.us_per_token == 4.0 * one.us_per_token
    assert math.isclose(four.error_us_per_token, 4.0 * one.error_us_per_token)
