"""Bounds: no map of any copies is below them, and they say what binds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import best_max, best_of_all_maps, layer_of, one_slice, tiny_pools

from placement import InfeasibleError, Limits, LoadTrace, Topology, solve
from placement.bounds import Bound, layer_bound, reason
from placement.layer import make_layer
from placement.policy import resolve


def test_the_mean_binds_where_copies_can_be_small():
    """Loads that divide well are bounded by 1.0."""
    assert layer_bound(layer_of([5, 5, 5, 5], [2, 2])).value == 1.0


def test_a_hot_expert_binds_where_its_copies_cannot_be_small():
    """An expert with all the load and one copy costs as much as all ranks together."""
    assert layer_bound(layer_of([12, 0, 0], [2, 2])).value == pytest.approx(1.0)
    assert layer_bound(layer_of([12, 0, 0, 0], [1, 1, 1, 1])).value == pytest.approx(4.0)


def test_a_fast_rank_lowers_the_bound_of_a_hot_expert():
    """A copy costs least on the fastest rank."""
    assert layer_bound(layer_of([9, 0], [1, 1], [2.0, 1.0])).value == pytest.approx(1.5)


@given(
    st.lists(st.integers(0, 20), min_size=4, max_size=4).filter(any),
    st.sampled_from([(2, 2), (3, 2), (2, 3), (4, 1)]),
)
@settings(deadline=None)
def test_the_bound_is_below_the_best_of_all_maps(loads, shape):
    """Against every map without twins."""
    ranks, slots = shape
    bound = layer_bound(layer_of(loads, [slots] * ranks)).value
    assert bound <= best_max(loads, ranks, slots) / (sum(loads) / ranks) + 1e-9


@given(tiny_pools(), st.integers(0, 2**32), st.booleans())
@settings(deadline=None, max_examples=60)
def test_nothing_is_below_the_bound_on_any_tiny_pool(pool, seed, skewed):
    """Uneven slots, speeds, dead ranks, nodes and whole groups: bound <= best of all maps <= what a solve finds."""
    topology, experts = pool
    rng = np.random.default_rng(seed)
    trace = LoadTrace(rng.integers(1, 40, (2, 1, experts)) ** (3 if skewed else 1), weights=[1.0, 2.0])
    try:
        policy = resolve(topology, experts)
    except InfeasibleError:
        return
    result = solve(trace, topology, limits=Limits(slack=0.0), effort="fast")
    best = best_of_all_maps(trace, topology)
    assert result.policy == policy.name
    assert result.bound <= best + 1e-9
    assert best <= result.objective + 1e-9


@pytest.mark.parametrize(
    ("loads", "shape", "bound", "code"),
    [
        ([8, 7, 6, 5], (2, 2), 1.0, "mean"),
        ([9, 9, 9, 1, 1, 1], (2, 3), 19 / 15, "hottest_pair"),  # two of the three hot ones, and the coldest
        ([9, 1, 1, 1, 1, 1], (3, 2), 10 / (14 / 3), "replica_granularity"),  # the hot one and the coldest
        ([6] * 6 + [0], (4, 2), 12 / 9, "hottest_pair"),  # 1 spare slot cannot cool 2 of 6 hot experts
    ],
)
def test_hot_copies_that_share_a_rank_bind(loads, shape, bound, code):
    """Row 3 of the field notes' table without redundancy, and its knapsack with."""
    ranks, slots = shape
    found = layer_bound(layer_of(loads, [slots] * ranks))
    assert (found.value, found.code) == (pytest.approx(bound), code)
    assert found.value == pytest.approx(best_max(loads, ranks, slots) / (sum(loads) / ranks))


def test_shares_that_are_not_even_leave_the_bound_of_hot_copies_out():
    """Two ranks can share three equal experts of which one is copied, but not evenly split."""
    layer = layer_of([6, 6, 6, 0], [2, 2])
    assert layer_bound(layer).value > 1.0
    assert layer_bound(layer, even=False).value == 1.0


def test_whole_groups_bind_through_their_node():
    """Three equal groups on two nodes: one node has two."""
    topology = Topology.uniform(ranks=2, nodes=2, slots_per_rank=4)
    layer = make_layer(np.array([[5] * 6]), np.ones(1), topology)
    assert layer_bound(layer).code == "mean"
    found = layer_bound(layer, groups=3)
    assert (found.value, found.code) == (pytest.approx(4 / 3), "node_limit")


def test_the_reason_is_what_binds_most_over_all_layers():
    """Weighted by the layers' part in the objective; layers without load do not count."""
    bounds = [Bound(replica_granularity=0.5), Bound(hottest_pair=0.2), Bound(loaded=False)]
    assert reason(bounds, np.array([0.5, 0.5, 0.0])).code == "replica_granularity"
    told = reason(bounds, np.array([0.1, 0.9, 0.0]))
    assert (told.code, told.places) == ("hottest_pair", ((1, -1),))
    assert "bound 1.2300" in told.sentence
    assert [bound.code for bound in bounds] == ["replica_granularity", "hottest_pair", "no_data"]


def test_the_result_says_which_bound_binds():
    """mean, replica_granularity, or no_data, with the layers that need more slots named, for all layers and for each."""
    pair = Topology.uniform(ranks=2, slots_per_rank=2)
    assert solve(one_slice([5, 5, 5, 5]), pair).bound_reason.code == "mean"
    hot = solve(one_slice([90, 10, 10, 10]), pair)
    assert hot.bound_reason.code == "replica_granularity"
    assert hot.bound == pytest.approx(5 / 3)
    assert "needs_replicas" in [reason.code for reason in hot.reasons]
    nothing = solve(LoadTrace(np.zeros((1, 1, 4), dtype=np.int64)), pair)
    assert nothing.bound_reason.code == "no_data"
    two = solve(LoadTrace(np.array([[[5, 5, 5, 5], [90, 10, 10, 10]]])), pair)
    assert [bound.code for bound in two.layer_bounds] == ["mean", "replica_granularity"]
    assert two.bound == pytest.approx(sum(bound.value for bound in two.layer_bounds) / 2)
