"""Topology: shapes of the EP group and the smallest change that makes a pool feasible."""

import numpy as np
import pytest

from placement import (
    InfeasibleError,
    LoadTrace,
    Topology,
    TopologyError,
    evaluate,
    least_redundancy,
    solve,
    violations,
)


def test_uniform_spreads_ranks_over_nodes_in_order():
    """Ranks fill nodes in order, and a node differs by at most one rank."""
    topology = Topology.uniform(ranks=5, nodes=3, slots_per_rank=2)
    assert topology.node_of_rank == (0, 0, 1, 1, 2)
    assert topology.slots == 10
    assert topology.rank_of_slot().tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_live_drops_dead_ranks_and_their_slots():
    """The live group keeps the order of ranks and renumbers nodes without gaps."""
    small, slots = Topology((2, 3, 1), (0, 1, 2), (1.0, 0.5, 2.0), frozenset({1})).live()
    assert small == Topology((2, 1), (0, 1), (1.0, 2.0))
    assert slots.tolist() == [0, 1, 5]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"ranks": 0, "slots_per_rank": 1}, "ranks is 0"),
        ({"ranks": 2, "nodes": 3, "slots_per_rank": 1}, "at most 2 nodes"),
        ({"ranks": 2, "slots_per_rank": 1, "dead": frozenset({2})}, "dead rank 2"),
        ({"ranks": 2, "slots_per_rank": 1, "speeds": (1.0,)}, "speeds names 1"),
        ({"ranks": 2, "slots_per_rank": 1, "speeds": (1.0, float("nan"))}, "speed of rank 1 is nan"),
    ],
)
def test_contradictions_are_named(arguments, part):
    """A topology that cannot be is refused with the number and the limit."""
    with pytest.raises(TopologyError, match=part):
        Topology.uniform(**arguments)


@pytest.mark.parametrize(
    ("slots", "nodes"), [((), ()), ((1, 0), (0, 0)), ((1, 1), (0,)), ((1, 1), (0, 2)), ((1, 1), (1, 1))]
)
def test_uneven_topologies_are_checked(slots, nodes):
    """No rank, an empty rank, and wrong node numbers are refused."""
    with pytest.raises(TopologyError):
        Topology(slots, nodes)


def test_sol_05_the_smallest_redundancy_is_proposed():
    """SOL-05: 256 experts on 3 ranks need 2 redundant slots, 86 a rank; 85 a rank is refused with that number."""
    assert least_redundancy(256, 3) == (2, 86)
    tokens = np.ones((1, 1, 256), dtype=np.int64)
    with pytest.raises(
        InfeasibleError, match=r"at least 86 slots per rank \(2 redundant slots\), or at least 4 live ranks"
    ):
        solve(LoadTrace(tokens), Topology.uniform(ranks=3, slots_per_rank=85))


def test_sol_05_uneven_slots_hold_every_expert_once():
    """SOL-05: slots 86, 85, 85 are accepted as they are, with every expert exactly once."""
    topology = Topology((86, 85, 85), (0, 0, 0))
    result = solve(LoadTrace(np.arange(1, 257)[None, None, :]), topology, effort="fast")
    assert sorted(result.placement.physical_to_logical[0].tolist()) == list(range(256))


def test_uneven_slots_that_are_too_few_are_told_how_many_to_add():
    """There is no one number of slots per rank: 86 + 84 + 84 slots are 2 short of 256 experts."""
    topology = Topology((86, 84, 84), (0, 0, 0))
    with pytest.raises(
        InfeasibleError, match=r"2 too few: add at least 2 slots, or at least 3 live ranks of 86 slots"
    ):
        topology.check_holds(256)
    Topology((86, 85, 85), (0, 0, 0)).check_holds(256)


def test_pln_06_a_scale_down_below_the_experts_is_refused_and_a_scale_up_is_used():
    """PLN-06: 128 experts with 64 slots a rank need 2 ranks; on 4 ranks 128 slots are redundant."""
    loads = LoadTrace(np.arange(1, 129)[None, None, :])
    with pytest.raises(
        InfeasibleError, match=r"at least 128 slots per rank .* or at least 2 live ranks of 64 slots"
    ):
        solve(loads, Topology.uniform(ranks=1, slots_per_rank=64))
    four = Topology.uniform(ranks=4, slots_per_rank=64)
    result = solve(loads, four, effort="fast")
    assert violations(result.placement, four, 128) == []
    assert int((result.placement.physical_to_logical >= 0).sum()) - 128 == 128


@pytest.mark.parametrize(
    ("experts", "ranks", "redundant", "slots"),
    [(128, 40, 32, 4), (384, 40, 16, 10), (160, 9, 2, 18), (162, 9, 0, 18), (256, 32, 0, 8), (64, 5, 1, 13), (8, 8, 0, 1), (896, 72, 40, 13)],
)  # fmt: skip
def test_sol_06_least_redundancy_of_every_pair(experts, ranks, redundant, slots):
    """SOL-06: minimum R = (P - E mod P) mod P and S = (E + R) / P."""
    assert least_redundancy(experts, ranks) == (redundant, slots)
    assert least_redundancy(experts, ranks, redundant) == (redundant, slots)


@pytest.mark.parametrize(("redundant", "part"), [(-1, "use at least 32"), (0, "use 32 redundant")])
def test_sol_06_wrong_redundancy_is_refused(redundant, part):
    """SOL-06: R = -1 and an R that leaves uneven ranks are refused with the number to use."""
    with pytest.raises(InfeasibleError, match=part):
        least_redundancy(128, 40, redundant)


def test_least_redundancy_needs_experts_and_ranks():
    """Neither 0 experts nor 0 ranks make a pool."""
    with pytest.raises(TopologyError):
        least_redundancy(0, 3)


def test_sol_08_every_rank_of_unequal_nodes_serves_and_a_fast_one_serves_more():
    """SOL-08 with speeds: destinations are ranks 0..4, and the rank alone on its node, twice as fast, gets most."""
    topology = Topology((2,) * 5, (0, 0, 1, 1, 2), (1.0, 1.0, 1.0, 1.0, 2.0))
    trace = LoadTrace(np.array([[[9, 8, 7, 6, 5, 4, 3, 2, 1, 1]]]))
    score = evaluate(solve(trace, topology).placement, trace, topology)
    assert (score.rank_load > 0).all()
    assert score.rank_load[0, 0].argmax() == 4
    assert score.mean_ratio < 1.25


def test_sol_08_unequal_nodes_are_used_whole():
    """SOL-08: nodes of 2, 2 and 1 ranks; every expert once, hottest rank at most 10."""
    topology = Topology((2,) * 5, (0, 0, 1, 1, 2))
    trace = LoadTrace(np.array([[[9, 8, 7, 6, 5, 4, 3, 2, 1, 1]]]))
    placement = solve(trace, topology).placement
    assert violations(placement, topology, 10) == []
    assert evaluate(placement, trace, topology).rank_load.max() <= 10


def test_no_live_rank_is_infeasible():
    """With every rank dead nothing can be placed, and the message says so."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2, dead=frozenset({0, 1}))
    with pytest.raises(InfeasibleError, match="all 2 ranks are dead"):
        solve(LoadTrace(np.ones((1, 1, 2), dtype=np.int64)), topology)
