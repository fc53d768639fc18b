"""Bounds: no map of any copies is below them, and they say what binds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import best_max, layer_of, one_slice

from placement import LoadTrace, Topology, solve
from placement.bounds import layer_bound


def test_the_mean_binds_where_copies_can_be_small():
    """Loads that divide well are bounded by 1.0."""
    assert layer_bound(layer_of([5, 5, 5, 5], [2, 2])) == 1.0


def test_a_hot_expert_binds_where_its_copies_cannot_be_small():
    """An expert with all the load and one copy costs as much as all ranks together."""
    assert layer_bound(layer_of([12, 0, 0], [2, 2])) == pytest.approx(1.0)
    assert layer_bound(layer_of([12, 0, 0, 0], [1, 1, 1, 1])) == pytest.approx(4.0)


def test_a_fast_rank_lowers_the_bound_of_a_hot_expert():
    """A copy costs least on the fastest rank."""
    assert layer_bound(layer_of([9, 0], [1, 1], [2.0, 1.0])) == pytest.approx(1.5)


@given(
    st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any),
    st.sampled_from([(2, 2), (3, 2), (2, 3), (4, 1)]),
)
@settings(deadline=None)
def test_the_bound_is_below_the_best_of_all_maps(loads, shape):
    """Against every map without twins."""
    ranks, slots = shape
    bound = layer_bound(layer_of(loads, [slots] * ranks))
    assert bound <= best_max(loads, ranks, slots) / (sum(loads) / ranks) + 1e-9


def test_the_result_says_which_bound_binds():
    """mean, replica_granularity, or no_data, with the layers that need more slots named."""
    pair = Topology.uniform(ranks=2, slots_per_rank=2)
    assert solve(one_slice([5, 5, 5, 5]), pair).bound_reason.code == "mean"
    hot = solve(one_slice([90, 10, 10, 10]), pair)
    assert hot.bound_reason.code == "replica_granularity"
    assert hot.bound == pytest.approx(1.5)
    assert "needs_replicas" in [reason.code for reason in hot.reasons]
    nothing = solve(LoadTrace(np.zeros((1, 1, 4), dtype=np.int64)), pair)
    assert nothing.bound_reason.code == "no_data"
