"""Expert groups: kept whole on a node where that can be, and where it cannot, why not and what would help."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of, one_slice

from placement import (
    InfeasibleError,
    Limits,
    LoadTrace,
    Topology,
    TopologyError,
    evaluate,
    least_redundancy,
    solve,
    violations,
)
from placement.groups import fresh_homes, kept_homes, moved_near, resolve
from placement.layer import make_layer


def skewed(experts, slices=3, layers=2, seed=0):
    rng = np.random.default_rng(seed)
    return LoadTrace(np.rint(rng.lognormal(3, 1, (slices, layers, experts))).astype(np.int64))


def nodes_of_groups(placement, topology, experts):
    """Nodes that hold each group in each layer, as sets [layers][groups]."""
    node = np.array(topology.node_of_rank)[topology.rank_of_slot()]
    size = experts // topology.expert_groups
    return [
        [set(node[(row >= 0) & (row // size == group)].tolist()) for group in range(topology.expert_groups)]
        for row in placement.physical_to_logical
    ]


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


def refusal(topology, experts):
    """The message with which a policy is refused, or None."""
    try:
        resolve(topology, experts)
    except InfeasibleError as error:
        return str(error)
    return None


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5)),
    st.integers(1, 8),
    st.integers(1, 4),
    st.data(),
)
@settings(deadline=None)
def test_the_smallest_change_is_the_smallest(shape, groups, size, data):
    """With the slots per rank that the message names the groups fit, with one less they do not."""
    nodes, per_node, slots = shape
    ranks = nodes * per_node
    dead = frozenset(data.draw(st.sets(st.integers(0, ranks - 1), max_size=ranks - 1)))

    def refused(slots_per_rank):
        options = {"dead": dead, "expert_groups": groups, "policy": "hierarchical"}
        return refusal(
            Topology.uniform(ranks=ranks, nodes=nodes, slots_per_rank=slots_per_rank, **options),
            groups * size,
        )

    message = refused(slots)
    if message is None or "slots per rank" not in message:
        return
    enough = int(re.search(r"at least (\d+) slots per rank", message).group(1))
    assert enough > slots
    assert refused(enough) is None
    assert refused(enough - 1) is not None


def test_uneven_ranks_are_told_how_many_slots_more_each():
    """There is no one number of slots per rank to name."""
    topology = Topology((2, 1), (0, 1), expert_groups=2, policy="hierarchical")
    assert "use at least 1 more slots on every rank (1 redundant slots)" in refusal(topology, 4)


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
