"""solve: valid, never worse, few moves, exact in small cases, and the same bytes for the same input."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import arrivals, best_max, one_slice, problems, problems_with_map

from placement import (
    InfeasibleError,
    Limits,
    LoadTrace,
    MapError,
    Placement,
    Topology,
    UnsupportedError,
    evaluate,
    solve,
    violations,
)


def check_frontier(result, topology, trace, dispatch="even"):
    """Moves rise, the objective falls, every point is a valid map with the objective it claims."""
    for one, two in pairwise(result.frontier):
        assert one.moves <= two.moves
        assert np.isnan(one.objective) or one.objective >= two.objective
    for point in result.frontier[:: max(1, len(result.frontier) // 6)]:
        last = [other for other in result.frontier if other.moves == point.moves][-1]
        at = result.at(point.moves)
        assert violations(at, topology, trace.experts) == []
        if trace.tokens.any():
            assert evaluate(at, trace, topology, dispatch=dispatch).mean_ratio == pytest.approx(
                last.objective, rel=1e-9, nan_ok=True
            )


# --- known cases --------------------------------------------------------------------------------------------------


def test_sol_01_redundant_copies_reach_the_optimum_without_twins():
    """SOL-01: 4 experts on 3 ranks of 2 slots: hottest rank at most 36.5, nothing missing, no rank with one expert twice."""
    topology, trace = Topology.uniform(ranks=3, slots_per_rank=2), one_slice([16, 38, 35, 9])
    result = solve(trace, topology)
    assert violations(result.placement, topology, 4) == []
    assert evaluate(result.placement, trace, topology).rank_load.max() <= 36.5


@pytest.mark.parametrize(("groups", "policy"), [(0, "global"), (16, "hierarchical")])
def test_sol_01_at_full_size_has_no_twins(groups, policy):
    """SOL-01: 256 experts, in 16 groups or none, and 32 redundant slots on 32 ranks of 2 nodes."""
    topology = Topology.uniform(ranks=32, nodes=2, slots_per_rank=9, expert_groups=groups)
    loads = np.rint(np.random.default_rng(1).lognormal(5, 1.5, 256)).astype(np.int64)
    result = solve(one_slice(loads), topology, effort="fast")
    assert result.policy == policy
    assert violations(result.placement, topology, 256) == []
    assert (result.placement.physical_to_logical >= 0).all()


def test_sol_03_without_redundancy_it_still_packs():
    """SOL-03: loads 100 90 2 1 on 2 x 2 slots: hottest rank 101, not 190."""
    topology, trace = Topology.uniform(ranks=2, slots_per_rank=2), one_slice([100, 90, 2, 1])
    assert evaluate(solve(trace, topology).placement, trace, topology).rank_load.max() == 101


def test_sol_11_ties_between_hottest_ranks_are_left_in_two_swaps():
    """SOL-11: from 10, 10, 2, 2 to at most 7 with at most two swaps, which are four moves."""
    topology, trace = Topology.uniform(ranks=4, slots_per_rank=2), one_slice([6, 4, 6, 4, 1, 1, 1, 1])
    result = solve(trace, topology, [[0, 1, 2, 3, 4, 5, 6, 7]])
    assert evaluate(result.placement, trace, topology).rank_load.max() <= 7
    assert result.moves <= 4


@pytest.mark.parametrize("loads", [[10] * 6, [30, 10, 10, 10, 10, 10]])
def test_pln_03_nothing_moves_when_nothing_is_gained(loads):
    """PLN-03: an even map, and a hot expert that no move can help: zero moves, every slot as it was."""
    topology = Topology.uniform(ranks=2, slots_per_rank=3)
    result = solve(one_slice(loads), topology, [[0, 1, 2, 3, 4, 5]])
    assert result.moves == 0
    assert result.placement.physical_to_logical.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_pln_03_an_expert_that_stays_on_its_rank_keeps_its_slot():
    """PLN-03: only the slots of arrivals differ from the live map."""
    topology = Topology.uniform(ranks=4, slots_per_rank=4)
    tokens = np.rint(np.random.default_rng(3).lognormal(3, 1, (5, 2, 12))).astype(np.int64)
    current = np.tile(np.arange(16) % 12, (2, 1))
    result = solve(LoadTrace(tokens), topology, current)
    new = result.placement.physical_to_logical
    assert result.moves == int((new != current).sum()) > 0
    for row, old in zip(new.reshape(2, 4, 4), current.reshape(2, 4, 4), strict=True):
        for rank, before in zip(row, old, strict=True):
            kept = set(rank.tolist()) & set(before.tolist())
            assert rank[rank == before].tolist() == [e for e in before.tolist() if e in kept]


@pytest.mark.parametrize("first", [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[2, 1], [0, 3]]])
@pytest.mark.parametrize(
    "loads", [[[50, 50, 10, 10], [50, 10, 50, 10]], [[50, 10, 50, 10], [50, 50, 10, 10]]]
)
def test_pln_04_alternating_hot_experts_are_not_chased(first, loads):
    """PLN-04: over 10 intervals at most 2 plans that move, the last ending at {0, 3}, {1, 2}; no expert comes back within 3."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2)
    ranks_of = [np.array(first).ravel()]
    moved = []
    for interval in range(10):
        seen = [loads[at % 2] for at in range(max(0, interval - 3), interval + 1)]
        result = solve(LoadTrace(np.array(seen)[:, None]), topology, ranks_of[-1][None])
        moved.append(result.moves > 0)
        ranks_of.append(result.placement.physical_to_logical[0])
    assert sum(moved) <= 2
    assert not any(moved[2:])
    assert {frozenset(pair) for pair in ranks_of[-1].reshape(2, 2).tolist()} == {
        frozenset((0, 3)),
        frozenset((1, 2)),
    }
    assert max(np.array(loads)[:, pair].sum(axis=1).max() for pair in ([0, 3], [1, 2])) == 60
    for at in range(len(ranks_of) - 2):
        left = ranks_of[at + 1] != ranks_of[at]
        assert not any((later[left] == ranks_of[at][left]).any() for later in ranks_of[at + 2 : at + 5])


def test_pln_04_a_dominant_expert_is_not_moved_but_told():
    """PLN-04: loads 90 10 10 10 without redundancy: no move helps, and the reason is that it needs replicas."""
    result = solve(one_slice([90, 10, 10, 10]), Topology.uniform(ranks=2, slots_per_rank=2), [[0, 1, 2, 3]])
    assert result.moves == 0
    assert "needs_replicas" in [reason.code for reason in result.reasons]


# --- rules --------------------------------------------------------------------------------------------------------


@given(problems())
@settings(deadline=None, max_examples=60)
def test_a_cold_start_is_valid_and_above_its_bound(case):
    """Odd sizes, dead ranks, speeds, zero layers, one expert with all the load: no violation, and the bound holds."""
    topology, trace = case
    result = solve(trace, topology, effort="fast")
    assert violations(result.placement, topology, trace.experts) == []
    assert result.objective_start is None
    check_frontier(result, topology, trace)
    if not np.isnan(result.objective):
        assert result.objective >= result.bound - 1e-9
        assert evaluate(result.placement, trace, topology).mean_ratio == pytest.approx(
            result.objective, rel=1e-9
        )


@given(problems_with_map(), st.sampled_from(["even", "weighted"]), st.sampled_from([None, 0, 2]))
@settings(deadline=None, max_examples=60)
def test_from_any_live_map_it_is_valid_and_never_worse(case, dispatch, moves):
    """Twins, gaps, unknown ids and dead ranks are repaired; a map that needed no repair is never made worse."""
    topology, trace, rows = case
    result = solve(trace, topology, rows, dispatch=dispatch, effort="fast", limits=Limits(moves=moves))
    assert violations(result.placement, topology, trace.experts) == []
    check_frontier(result, topology, trace, dispatch)
    codes = [reason.code for reason in result.reasons]
    if not violations(Placement(rows), topology, trace.experts) and result.objective_start is not None:
        assert result.objective <= result.objective_start
    elif result.objective_start is not None:
        assert (result.objective > result.objective_start) == ("repair_costs" in codes)
    if moves is not None:
        assert result.moves <= moves or "repairs_exceed_moves" in codes
    assert result.moves == arrivals(result.placement.physical_to_logical, rows, topology, trace.experts)


@given(st.sampled_from([(2, 3), (3, 2), (2, 2)]), st.data())
@settings(deadline=None, max_examples=30)
def test_small_cases_without_redundancy_are_solved_exactly(shape, data):
    """Against every map of one slice."""
    ranks, slots = shape
    size = ranks * slots
    loads = data.draw(st.lists(st.integers(0, 30), min_size=size, max_size=size).filter(any))
    assert solved_max(loads, ranks, slots) == pytest.approx(best_max(loads, ranks, slots))


def test_small_cases_with_redundancy_are_nearly_always_solved_exactly():
    """Against every map without twins of one slice: 9 of 10 are optimal, none is 20 % off."""
    rng = np.random.default_rng(0)
    excess = []
    for number in range(30):
        ranks, slots = [(2, 3), (3, 2), (4, 2)][number % 3]
        loads = rng.integers(1, 30, 5).tolist()
        excess.append(solved_max(loads, ranks, slots) / best_max(loads, ranks, slots) - 1)
    assert sum(x < 1e-9 for x in excess) >= 27
    assert max(excess) < 0.2


def solved_max(loads, ranks, slots):
    topology, trace = Topology.uniform(ranks=ranks, slots_per_rank=slots), one_slice(loads)
    result = solve(trace, topology, limits=Limits(slack=0.0))
    return evaluate(result.placement, trace, topology).rank_load.max()


@pytest.mark.parametrize(
    ("experts", "ranks", "slots"),
    [(896, 72, 13), (8, 8, 1), (7, 1, 7), (5, 1, 9), (10, 4, 3), (3, 5, 2), (1, 3, 2)],
)
def test_sizes_at_the_edge_are_solved(experts, ranks, slots):
    """896 experts, one slot a rank, one rank, more slots than experts, fewer experts than ranks."""
    topology = Topology.uniform(ranks=ranks, slots_per_rank=slots)
    tokens = np.rint(np.random.default_rng(experts).lognormal(3, 1, (3, 1, experts))).astype(np.int64)
    result = solve(LoadTrace(tokens), topology, effort="fast")
    assert violations(result.placement, topology, experts) == []
    again = solve(LoadTrace(tokens), topology, result.placement, effort="fast")
    assert again.objective <= result.objective + 1e-12


def test_the_id_order_map_of_an_engine_comes_near_a_fresh_solve():
    """From arange(slots) % experts, copies move as needed: within 3 % of a cold start's ratio."""
    topology = Topology.uniform(ranks=8, nodes=2, slots_per_rank=5)
    rng = np.random.default_rng(8)
    tokens = np.rint(rng.lognormal(3, 1, (1, 2, 32)) * rng.lognormal(0, 0.4, (30, 2, 32))).astype(np.int64)
    trace = LoadTrace(tokens)
    start = np.tile(np.arange(40) % 32, (2, 1))
    result = solve(trace, topology, start)
    assert result.objective <= solve(trace, topology).objective * 1.03
    assert result.objective_start == pytest.approx(evaluate(Placement(start), trace, topology).mean_ratio)


def test_the_chosen_point_has_the_fewest_moves_within_the_slack():
    """A wider slack never moves more, and the point is within it of the best found."""
    topology = Topology.uniform(ranks=4, slots_per_rank=5)
    tokens = np.rint(np.random.default_rng(2).lognormal(3, 1, (10, 3, 16))).astype(np.int64)
    current = np.tile(np.arange(20) % 16, (3, 1))
    results = [
        solve(LoadTrace(tokens), topology, current, limits=Limits(slack=slack), effort="fast")
        for slack in (0.005, 0.1)
    ]
    for result, slack in zip(results, (0.005, 0.1), strict=True):
        best = result.frontier[-1].objective
        good = [p for p in result.frontier if p.objective <= max(best, result.bound) * (1 + slack)]
        assert (result.moves, result.objective) == (good[0].moves, good[0].objective)
    assert results[1].moves < results[0].moves


def test_limits_of_moves_and_bytes_hold():
    """No more moves than allowed; bytes are moves times the bytes of an expert."""
    topology = Topology.uniform(ranks=4, slots_per_rank=4)
    tokens = np.rint(np.random.default_rng(4).lognormal(3, 1, (4, 2, 16))).astype(np.int64)
    current = np.tile(np.arange(16), (2, 1))
    result = solve(LoadTrace(tokens), topology, current, limits=Limits(moves=3, bytes_per_expert=10))
    assert 0 < result.moves <= 3
    assert all(point.bytes == point.moves * 10 for point in result.frontier)
    assert result.objective < result.objective_start


def test_a_layer_without_load_keeps_its_map_and_says_so():
    """Zero is not missing: no_data, and not one move in that layer."""
    topology = Topology.uniform(ranks=4, slots_per_rank=2)
    tokens = np.zeros((3, 2, 8), dtype=np.int64)
    tokens[:, 1] = [9, 8, 7, 6, 5, 4, 3, 2]
    current = np.array([[7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5, 6, 7]])
    result = solve(LoadTrace(tokens), topology, current)
    assert result.placement.physical_to_logical[0].tolist() == current[0].tolist()
    assert result.moves > 0
    (reason,) = [reason for reason in result.reasons if reason.code == "no_data"]
    assert reason.places == ((0, -1),)


def test_experts_that_peak_together_are_parted():
    """Sums are equal, slices are not: the objective is the mean over slices of the hottest rank."""
    tokens = np.array([[[10, 10, 0, 0]], [[0, 0, 10, 10]]])
    topology = Topology.uniform(ranks=2, slots_per_rank=2)
    result = solve(LoadTrace(tokens), topology, [[0, 1, 2, 3]])
    assert result.objective_start == 2.0
    assert result.objective == 1.0


def test_a_slower_rank_gets_less():
    """Cost is tokens over speed."""
    topology = Topology.uniform(ranks=2, slots_per_rank=3, speeds=(3.0, 1.0))
    trace = one_slice([6, 6, 6, 2, 2, 2])
    assert evaluate(solve(trace, topology).placement, trace, topology).rank_load.tolist() == [[[18.0, 6.0]]]


def test_weighted_keeps_the_live_shares_where_nothing_is_better():
    """A live map whose own shares balance it is left as it is, shares included."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2)
    current = Placement([[0, 1, 0, 2]], [[0.25, 1.0, 0.75, 1.0]])
    result = solve(one_slice([8, 5, 1]), topology, current, dispatch="weighted")
    assert result.moves == 0
    assert result.objective == 1.0
    assert result.placement.shares.tolist() == [[0.25, 1.0, 0.75, 1.0]]


def test_many_slices_are_chosen_not_averaged_and_told():
    """Of more slices than the search weighs an even choice is taken; the objective counts all."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2)
    tokens = np.random.default_rng(6).integers(0, 50, (300, 1, 4))
    result = solve(LoadTrace(tokens), topology, [[0, 1, 2, 3]], effort="fast")
    assert "slices_chosen" in [reason.code for reason in result.reasons]
    assert result.objective == pytest.approx(
        evaluate(result.placement, LoadTrace(tokens), topology).mean_ratio
    )
    assert result.objective <= result.objective_start


# --- work and determinism -----------------------------------------------------------------------------------------


def hard_case():
    tokens = np.rint(np.random.default_rng(7).lognormal(3, 1, (6, 2, 24))).astype(np.int64)
    return LoadTrace(tokens), Topology.uniform(ranks=6, slots_per_rank=5), np.tile(np.arange(30) % 24, (2, 1))


def test_should_stop_gives_a_valid_truncated_result():
    """Stopped at once or later: a valid map, never worse, and the reason."""
    trace, topology, current = hard_case()
    for after in (0, 5):
        asked = iter([False] * after)
        result = solve(trace, topology, current, should_stop=lambda asked=asked: next(asked, True))
        assert "truncated" in [reason.code for reason in result.reasons]
        assert violations(result.placement, topology, 24) == []
        assert result.objective <= result.objective_start
    cold = solve(trace, topology, should_stop=lambda: True)
    assert violations(cold.placement, topology, 24) == []


def test_evaluations_bound_the_work_deterministically():
    """No evaluation, no search: the current map stays; more never finds less."""
    trace, topology, current = hard_case()
    results = [
        solve(trace, topology, current, limits=Limits(evaluations=n, slack=0.0)) for n in (0, 20_000, 10**9)
    ]
    assert results[0].moves == 0
    assert results[0].objective > results[1].objective >= results[2].objective


def test_a_solve_stopped_midway_keeps_what_it_found():
    """Asked between chunks of proposals, by any thread: the answer is better than the start, and marked."""
    trace, topology, current = hard_case()
    asked = iter([False] * 4)
    result = solve(
        trace, topology, current, effort="thorough", limits=Limits(slack=0.0),
        should_stop=lambda: next(asked, True), threads=1,
    )  # fmt: skip
    assert "truncated" in [reason.code for reason in result.reasons]
    assert result.objective < result.objective_start


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"dispatch": "?"}, "unknown"),
        ({"cost": "flops"}, "unknown"),
        ({"effort": "huge"}, "effort 'huge' is unknown: use one of fast, normal, thorough"),
        ({"traffic_weight": 0.5}, "traffic_weight is 0.5, but the trace carries no routes"),
    ],
)
def test_what_is_not_built_is_refused_by_name(options, part):
    """No option is quietly ignored."""
    with pytest.raises(UnsupportedError, match=part):
        solve(one_slice([1, 1]), Topology.uniform(ranks=2, slots_per_rank=1), **options)


def test_slots_that_cannot_hold_the_experts_are_infeasible():
    """The message says the smallest change that fits, counting live ranks only."""
    topology = Topology.uniform(ranks=4, slots_per_rank=2, dead=frozenset({0}))
    with pytest.raises(
        InfeasibleError, match=r"3 live ranks have 6 slots for 8 experts.*at least 3 slots per rank"
    ):
        solve(one_slice([1] * 8), topology)


def test_a_current_map_of_another_shape_is_refused():
    """Layers and slots must be those of the trace and the topology."""
    with pytest.raises(MapError, match=r"\[1, 3\], expected \[1 layers, 2 slots\]"):
        solve(one_slice([1, 1]), Topology.uniform(ranks=2, slots_per_rank=1), [[0, 1, 0]])
