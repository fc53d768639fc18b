"""Policy: expert groups are kept whole where that can be, and where it cannot, it is said why not and what would help."""

import re

import numpy as np
import pytest
from solver_inputs import nodes_of_groups, skewed

from placement import (
    InfeasibleError,
    Topology,
    TopologyError,
    least_redundancy,
    solve,
    violations,
)
from placement.policy import resolve


def codes(result):
    return [reason.code for reason in result.reasons]


# --- known cases --------------------------------------------------------------------------------------------------


def test_sol_04_more_nodes_than_ranks_is_a_named_error_before_any_solve():
    """SOL-04, case 1: an EP size of 1 on 2 nodes."""
    with pytest.raises(TopologyError, match=r"2 nodes for 1 ranks \(EP size 1\)"):
        Topology.uniform(ranks=1, nodes=2, slots_per_rank=272)


def test_sol_04_sixteen_ranks_get_seventeen_slots():
    """SOL-04, case 2: 256 experts and 16 redundant slots on 16 ranks."""
    assert least_redundancy(256, 16, 16) == (16, 17)
    topology = Topology.uniform(ranks=16, nodes=2, slots_per_rank=17, expert_groups=8)
    result = solve(skewed(256, layers=1), topology, effort="fast")
    assert result.policy == "hierarchical"
    assert violations(result.placement, topology, 256) == []


@pytest.mark.parametrize(("groups", "told"), [(0, 0), (8, 1)])
def test_sol_04_fifteen_ranks_on_two_nodes_are_placed_flat_and_told_once(groups, told):
    """SOL-04, case 3: the fallback is what the solver does, the map is valid, and one reason says so if groups were given."""
    assert least_redundancy(120, 15, 0) == (0, 8)
    topology = Topology.uniform(ranks=15, nodes=2, slots_per_rank=8, expert_groups=groups)
    result = solve(skewed(120), topology, effort="fast")
    assert result.policy == "global"
    assert codes(result).count("policy_global") == told
    assert violations(result.placement, topology, 120) == []
    flat = solve(skewed(120), Topology.uniform(ranks=15, slots_per_rank=8), effort="fast")
    assert (result.placement.physical_to_logical == flat.placement.physical_to_logical).all()


def test_sol_07_groups_that_do_not_divide_the_experts_are_refused():
    """SOL-07, case 1: 160 experts in 9 groups leave 7 over."""
    topology = Topology.uniform(ranks=9, nodes=3, slots_per_rank=18, expert_groups=9, policy="hierarchical")
    with pytest.raises(
        InfeasibleError, match=r"160 experts do not divide into 9 groups \(7 left over\): use 8 groups"
    ):
        solve(skewed(160), topology)


@pytest.mark.parametrize(
    ("experts", "nodes", "ranks", "why"),
    [(160, 3, 9, "160 experts do not divide into 9 groups"), (162, 2, 6, "9 whole groups|9 must fit")],
)
def test_sol_07_auto_falls_back_with_the_reason(experts, nodes, ranks, why):
    """SOL-07, cases 2 and 3: 160 % 9, and 9 groups over 2 nodes."""
    slots = -(-experts // ranks)
    topology = Topology.uniform(ranks=ranks, nodes=nodes, slots_per_rank=slots, expert_groups=9)
    result = solve(skewed(experts), topology, effort="fast")
    assert result.policy == "global"
    (told,) = [reason for reason in result.reasons if reason.code == "policy_global"]
    assert re.search(why, told.sentence)
    assert violations(result.placement, topology, experts) == []


def test_sol_07_nine_groups_on_three_nodes_are_three_whole_ones_each():
    """SOL-07, case 4: each node holds exactly 3 whole groups, 54 experts."""
    topology = Topology.uniform(ranks=9, nodes=3, slots_per_rank=18, expert_groups=9, policy="hierarchical")
    result = solve(skewed(162), topology, effort="fast")
    assert result.policy == "hierarchical"
    for layer in nodes_of_groups(result.placement, topology, 162):
        assert all(len(nodes) == 1 for nodes in layer)
        assert np.bincount([nodes.pop() for nodes in layer]).tolist() == [3, 3, 3]
    assert violations(result.placement, topology, 162) == []


# --- policy -------------------------------------------------------------------------------------------------------


def test_an_uneven_number_of_groups_on_equal_nodes_is_not_kept_whole_by_auto():
    """Room for 5 + 4 groups, but one node would have a quarter more: auto is global, hierarchical does as it is told."""
    auto = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, expert_groups=9)
    policy = resolve(auto, 9)
    assert (policy.name, "9 groups do not divide over 2 equal nodes" in policy.reason.sentence) == (
        "global",
        True,
    )
    told = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, expert_groups=9, policy="hierarchical")
    result = solve(skewed(9), told, effort="fast")
    assert result.policy == "hierarchical"
    assert violations(result.placement, told, 9) == []


def test_auto_counts_live_ranks_only():
    """A dead rank takes the room of a group away: auto falls back, and hierarchical says how many slots would do."""
    shape = {"ranks": 4, "nodes": 2, "slots_per_rank": 2, "expert_groups": 4, "dead": frozenset({3})}
    assert resolve(Topology.uniform(ranks=4, nodes=2, slots_per_rank=2, expert_groups=4), 8).hierarchical
    assert resolve(Topology.uniform(**shape), 8).name == "global"
    with pytest.raises(
        InfeasibleError, match=r"room for 2, 1 whole groups of 2 experts, 4 must fit.*at least 3 slots"
    ):
        resolve(Topology.uniform(**shape, policy="hierarchical"), 8)


def test_global_one_node_and_no_groups_have_nothing_to_tell():
    """What was asked for, or makes no difference, is no reason."""
    assert resolve(Topology.uniform(ranks=4, nodes=2, slots_per_rank=2), 8).reason is None
    assert resolve(Topology.uniform(ranks=4, nodes=2, slots_per_rank=2, policy="global"), 8).reason is None
    assert resolve(Topology.uniform(ranks=4, slots_per_rank=2, expert_groups=3), 8).reason is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"policy": "flat"}, "policy 'flat' is unknown: use one of auto, hierarchical, global"),
        ({"policy": "hierarchical"}, "needs expert_groups"),
        ({"expert_groups": -1}, "expert_groups is -1"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(options, part):
    """Unknown names and missing groups are named."""
    with pytest.raises(TopologyError, match=part):
        Topology.uniform(ranks=4, nodes=2, slots_per_rank=2, **options)


def test_fewer_groups_than_nodes_are_infeasible():
    """A node without experts would idle."""
    topology = Topology.uniform(ranks=4, nodes=4, slots_per_rank=4, expert_groups=2, policy="hierarchical")
    with pytest.raises(
        InfeasibleError, match="2 groups leave 2 of 4 nodes without experts: use at most 2 nodes"
    ):
        resolve(topology, 8)


def test_uneven_ranks_are_told_how_many_slots_more_each():
    """There is no one number of slots per rank to name."""
    topology = Topology((2, 1), (0, 1), expert_groups=2, policy="hierarchical")
    with pytest.raises(
        InfeasibleError, match=r"use at least 1 more slots on every rank \(1 redundant slots\)"
    ):
        resolve(topology, 4)


@pytest.mark.parametrize(
    ("topology", "experts", "cure"),
    [
        (
            Topology((2,) * 4, (0, 1, 2, 3), expert_groups=3, policy="hierarchical"),
            8,
            "4 groups or policy global",
        ),
        (
            Topology((1, 1, 1, 3), (0, 1, 2, 3), expert_groups=3, policy="hierarchical"),
            6,
            "at most 2 nodes or policy global",
        ),
        (
            Topology.uniform(ranks=9, nodes=3, slots_per_rank=18, expert_groups=9, policy="hierarchical"),
            160,
            r"8 groups and at least 20 slots per rank \(20 redundant slots\) or policy global",
        ),
        (
            Topology((1,) * 4, (0, 0, 1, 1), expert_groups=3, policy="hierarchical"),
            6,
            r"at least 2 slots per rank \(2 redundant slots\)",
        ),
    ],
)
def test_the_cure_is_whole(topology, experts, cure):
    """Groups that every node gets one of; nodes before slots; all of it where one change alone is not enough."""
    with pytest.raises(InfeasibleError, match=f": use {cure}$"):
        resolve(topology, experts)
