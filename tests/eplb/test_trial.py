"""Rules of a plan's trial: shares before moves, no returns, and what is judged on unseen slices."""

from dataclasses import replace

import numpy as np
import pytest
from test_planner import LAYERS, SLOTS_PER_RANK, request_of

from eplb.planner import make_plan
from eplb.thrash import arrivals


def weighted(**changes):
    """A skewed load that even shares spread badly and other shares spread well: three copies of the hot experts stand unevenly."""
    rng = np.random.default_rng(1)
    tokens = rng.poisson(50, (16, LAYERS, 8)).astype(np.int64)
    tokens[:, :, 0] *= 6
    current = np.tile(np.array([0, 1, 2, 0, 3, 4, 0, 5, 6, 7, 1, 2]), (LAYERS, 1)).astype(np.int32)
    return request_of(**{"tokens": tokens, "current": current, "dispatch": "weighted", **changes})


def test_shares_that_reach_the_target_are_the_plan_and_nothing_moves():
    """No expert changes its slot; the gain is that on slices which the shares were not made on."""
    plan = make_plan(weighted(enough_ratio=10.0))
    assert np.array_equal(plan.target, weighted().current)
    assert plan.ratio_after < plan.ratio_before
    assert [code for code, _ in plan.reasons] == ["shares_only"]


def test_moves_come_only_when_shares_do_not_reach_the_target():
    """Then both are answers, and moves do at least as well."""
    plan = make_plan(weighted(enough_ratio=1.0))
    assert not np.array_equal(plan.target, weighted().current)
    assert plan.shares_only is not None
    assert np.array_equal(plan.shares_only.target, weighted().current)
    assert plan.ratio_after < plan.shares_only.ratio_after < plan.ratio_before


@pytest.mark.parametrize("dispatch", ["even", "hash_row"])
def test_where_dispatch_has_no_shares_nobody_tries_them(dispatch):
    """A share that no engine follows is no plan."""
    assert make_plan(weighted(dispatch=dispatch, enough_ratio=10.0)).shares_only is None


def test_shares_that_gain_too_little_are_no_plan():
    """Their own, cheaper gate."""
    assert make_plan(weighted(min_gain_shares=5.0)).shares_only is None


def test_a_barred_expert_does_not_come_back_and_its_layer_stays():
    """The other layer is as planned; the reason says how many stay."""
    free = make_plan(request_of())
    coming = arrivals(request_of().current, free.target, SLOTS_PER_RANK)
    barred = tuple(place for place in coming if place[0] == 1)[:1]
    plan = make_plan(request_of(barred=barred))
    assert np.array_equal(plan.target[1], request_of().current[1])
    assert np.array_equal(plan.target[0], free.target[0])
    assert (
        "thrash",
        "1 layers stay as they are, because experts would come back to ranks that they left lately",
    ) in plan.reasons
    assert np.allclose(np.bincount(plan.target[1], weights=plan.shares[1]), 1.0)


def test_the_fall_is_counted_for_each_phase():
    """Every held-out slice belongs to one; the mean over all is the fall without phases."""
    whole = make_plan(request_of())
    phases = np.array([0, 1] * 8, dtype=np.int8)
    split = make_plan(request_of(phases=phases))
    ((phase, fall),) = whole.falls
    assert phase == -1
    assert [phase for phase, _ in split.falls] == [0, 1]
    assert np.mean([fall for _, fall in split.falls]) == pytest.approx(fall)
    assert fall > 0.0
    assert 0.0 < whole.gain_error < whole.ratio_before - whole.ratio_after


def test_the_same_request_gives_the_same_judgement():
    """Bit for bit, whatever else runs on the machine."""
    first, second = make_plan(weighted(enough_ratio=1.0)), make_plan(weighted(enough_ratio=1.0))
    assert (
        replace(first, solve_s=0.0, shares_only=None).falls
        == replace(second, solve_s=0.0, shares_only=None).falls
    )
    assert (first.ratio_after, first.gain_error) == (second.ratio_after, second.gain_error)
