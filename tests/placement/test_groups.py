"""Expert groups: which node takes which, and that every map on the way keeps them whole."""

import numpy as np
import pytest
from solver_inputs import layer_of, nodes_of_groups, one_slice, skewed

from placement import (
    Limits,
    LoadTrace,
    Topology,
    evaluate,
    solve,
    violations,
)
from placement.groups import fresh_homes, kept_homes, moved_near
from placement.layer import make_layer


def codes(result):
    return [reason.code for reason in result.reasons]


# --- homes --------------------------------------------------------------------------------------------------------


def test_groups_that_peak_together_go_to_different_nodes():
    """Sums are equal, slices are not."""
    loads = [[9, 0, 9, 0, 0, 0, 0, 0], [0, 0, 0, 0, 9, 0, 9, 0]]
    topology = Topology.uniform(ranks=2, nodes=2, slots_per_rank=4, expert_groups=4)
    layer = make_layer(np.array(loads), np.ones(2), topology)
    home = fresh_homes(layer, 4)[::2]
    assert home[0] != home[1]
    assert home[2] != home[3]


def test_a_fast_node_takes_more_groups():
    """Cost is tokens over speed."""
    topology = Topology((6, 6), (0, 1), (3.0, 1.0), expert_groups=4)
    layer = make_layer(np.full((1, 8), 5), np.ones(1), topology)
    assert np.bincount(fresh_homes(layer, 4)).tolist() == [6, 2]


def test_no_node_is_left_without_a_group():
    """Neither without load nor when one group has it all."""
    for loads in ([0] * 6, [90, 0, 0, 0, 0, 0]):
        layer = make_layer(np.array([loads]), np.ones(1), Topology((6, 6, 2), (0, 1, 2), expert_groups=3))
        assert set(fresh_homes(layer, 3).tolist()) == {0, 1, 2}


def test_a_live_map_keeps_its_homes_and_a_split_group_goes_where_most_of_it_is():
    """Whole groups stay; of a split one the larger part stays."""
    layer = make_layer(
        np.ones((1, 6), dtype=np.int64), np.ones(1), Topology((2,) * 4, (0, 0, 1, 1), expert_groups=2)
    )
    assert kept_homes(layer, np.array([3, 4, 5, 3, 0, 1, 2, 0]), 2).tolist() == [1, 1, 1, 0, 0, 0]
    assert kept_homes(layer, np.array([3, 4, 0, 3, 5, 1, 2, 0]), 2).tolist() == [1, 1, 1, 0, 0, 0]


def test_fresh_homes_are_named_after_the_nodes_that_hold_them_already():
    """Equal nodes are exchanged so that the live map keeps most; nodes of another make are not."""
    layer = make_layer(
        np.ones((1, 4), dtype=np.int64), np.ones(1), Topology((2,) * 3, (0, 1, 2), (1.0, 1.0, 2.0))
    )
    home = np.array([0, 0, 1, 2])
    assert moved_near(layer, home, np.array([2, 4, 0, 1, 0, 1])).tolist() == [1, 1, 0, 2]
    assert moved_near(layer, home, np.array([3, 4, 2, 4, 0, 1])).tolist() == [0, 0, 1, 2]


# --- solving with whole groups ------------------------------------------------------------------------------------


def test_a_whole_live_map_is_improved_inside_its_nodes_or_by_whole_groups():
    """Never worse, never split, and every point of the frontier too."""
    topology = Topology.uniform(ranks=8, nodes=2, slots_per_rank=5, expert_groups=4, policy="hierarchical")
    half = np.tile(np.arange(16), 2)[:20]
    current = np.tile(np.concatenate([half, 16 + half]), (2, 1))
    trace = skewed(32, slices=6)
    assert violations(solve(trace, topology, current, limits=Limits(moves=0)).placement, topology, 32) == []
    result = solve(trace, topology, current)
    assert result.objective < result.objective_start
    for point in result.frontier:
        assert violations(result.at(point.moves), topology, 32) == []


def test_groups_change_their_node_where_that_is_worth_it():
    """The live homes overload a node: whole groups are exchanged, and every point on the way is whole."""
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, expert_groups=4, policy="hierarchical")
    loads = np.array([30, 31, 32, 29, 28, 33, 1, 2, 3, 2, 1, 3])
    trace = LoadTrace(np.array([[loads], [np.roll(loads, 1)]]))
    result = solve(trace, topology, [list(range(12))])
    assert result.objective < 1.31  # 1.86 within the live homes: their node has 94 % of the load
    homes = nodes_of_groups(result.placement, topology, 12)[0]
    assert homes[0] != homes[1]
    for point in result.frontier:
        assert violations(result.at(point.moves), topology, 12) == []


def test_a_split_group_is_repaired_and_told():
    """An engine's id-order map splits groups; that is a violation, its repair is counted, and the result is whole."""
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, expert_groups=2, policy="hierarchical")
    current = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]]
    result = solve(one_slice([5] * 8), topology, current)
    assert "repaired_split_group" in codes(result)
    assert result.frontier[0].moves > 0
    assert violations(result.placement, topology, 8) == []


def test_whole_groups_cost_what_their_node_costs():
    """The node limit binds where groups cannot be shared out evenly, and the result says so."""
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2, expert_groups=2, policy="hierarchical")
    trace = one_slice([10, 10, 10, 2, 2, 2])
    result = solve(trace, topology)
    assert result.bound_reason.code == "node_limit"
    assert result.bound == pytest.approx(30 / 18)
    assert result.objective >= result.bound
    flat = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2, policy="global")
    assert solve(trace, flat).objective < result.bound


def test_copies_stay_inside_a_node():
    """A hot expert has at most as many copies as its node has ranks."""
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, expert_groups=2, policy="hierarchical")
    result = solve(one_slice([90, 1, 1, 1, 1, 1]), topology)
    assert result.placement.replicas(6)[0, 0] == 2
    assert evaluate(result.placement, one_slice([90, 1, 1, 1, 1, 1]), topology).rank_load.max() >= 45


def test_a_layer_without_homes_lets_every_rank_hold_every_expert():
    """Homes restrict only where they are given."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    assert layer.allowed().all()
    assert [(e.tolist(), r.tolist()) for e, r in layer.blocks()] == [([0, 1, 2, 3], [0, 1])]
