"""The byte budget: what is sent per second stays below it, and ranks keep choosing the same steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_examples import pool

from collectors import CollectorError, Kind, PoolFacts
from collectors.budget import SAMPLE_SHARE, Budget

LARGE = PoolFacts("large", 320, 40, 1, 256, 8, tuple(range(58)))


@given(st.lists(st.integers(0, 1_000_000), min_size=1), st.floats(1.0, 1e7))
def test_frames_of_any_size_keep_to_the_rank_s_part_of_the_budget(sizes, bytes_per_s):
    """Bytes over the time they take never exceed publish_bytes_per_s / ranks, nor the interval its least length."""
    budget = Budget(pool(ranks=4), Kind.ROUTED, 1, 0.5, bytes_per_s)
    waits_s = [budget.wait_s(size) for size in sizes]
    assert sum(sizes) <= sum(waits_s) * bytes_per_s / 4 * (1 + 1e-9)
    assert min(waits_s) >= 0.5


def test_a_small_frame_does_not_stretch_the_interval():
    """Within the budget the interval is the configured one."""
    assert Budget(pool(), Kind.ROUTED, 1, 1.0, 2_000_000).wait_s(1_000) == 1.0


@given(
    st.sampled_from(Kind),
    st.sampled_from([1, 3, 4]),
    st.floats(0.5, 500.0),
    st.floats(1e4, 1e8),
)
def test_the_stride_keeps_samples_within_their_share(kind, first, steps_per_s, bytes_per_s):
    """At the chosen stride, samples at one byte a count fit; half of it would not, or is below the first."""
    budget = Budget(LARGE, kind, first, 1.0, bytes_per_s, sample_capacity=1_000_000)
    budget.stride(0, 0.0)
    stride = budget.stride(int(steps_per_s * 100), 100.0)
    rate = int(steps_per_s * 100) / 100.0
    per_s = rate * (LARGE.layers * LARGE.width(kind) + 57)
    assert per_s / stride <= SAMPLE_SHARE * budget.bytes_per_s * (1 + 1e-9)
    assert stride == first or per_s / (stride / 2) > SAMPLE_SHARE * budget.bytes_per_s * (1 - 1e-9)


@given(st.floats(0.5, 2_000.0), st.integers(1, 256), st.floats(0.1, 10.0))
def test_the_stride_leaves_no_more_samples_than_a_recorder_holds(steps_per_s, capacity, interval_s):
    """Between two frames there are fewer sampled steps than places, or ranks would each lose other ones."""
    budget = Budget(pool(), Kind.RECEIVED_SLOTS, 1, interval_s, 1e12, sample_capacity=capacity)
    budget.stride(0, 0.0)
    stride = budget.stride(int(steps_per_s * 100), 100.0)
    assert int(steps_per_s * 100) / 100.0 * interval_s / stride <= capacity


def test_strides_are_the_first_one_times_a_power_of_two():
    """So that every step of the larger stride is one of the smaller, and ranks meet."""
    budget = Budget(LARGE, Kind.ROUTED, 3, 1.0, 2_000_000)
    step, strides = 0, set()
    for second, rate in enumerate([1, 10, 40, 200, 900, 30, 2, 1, 1, 1]):
        step += rate
        strides.add(budget.stride(step, float(second)))
    multiples = sorted(stride // 3 for stride in strides)
    assert len(multiples) > 3
    assert all(stride % 3 == 0 for stride in strides)
    assert all(multiple & (multiple - 1) == 0 for multiple in multiples)


def test_a_small_change_of_rate_does_not_move_the_stride_back():
    """Between a rate and half of it the stride stays: ranks that measure a little apart agree."""
    budget = Budget(LARGE, Kind.ROUTED, 1, 1.0, 2_000_000)
    budget.stride(0, 0.0)
    stride = budget.stride(1000, 10.0)
    assert stride > 1
    assert budget.stride(1000 + 600, 20.0) == stride
    assert budget.stride(1000 + 600 + 100, 30.0) < stride


def test_an_idle_group_keeps_its_stride():
    """Without new steps there is no rate to follow."""
    budget = Budget(LARGE, Kind.ROUTED, 1, 1.0, 2_000_000)
    budget.stride(0, 0.0)
    stride = budget.stride(1000, 10.0)
    assert budget.stride(1000, 20.0) == stride
    assert budget.stride(5, 30.0) == stride


@pytest.mark.parametrize("bytes_per_s", [0, -1, float("nan")])
def test_a_budget_must_be_positive(bytes_per_s):
    """A budget of nothing is a mistake of set-up."""
    with pytest.raises(CollectorError, match="publish_bytes_per_s"):
        Budget(pool(), Kind.ROUTED, 1, 1.0, bytes_per_s)
