"""Flow: exact min-max shares, equal to a linear programme and to brute force, with the set that proves them."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp

from placement.flow import MOST_INSTANCES, MOST_UNITS, hosting, least_worst, level, whole_speeds


@st.composite
def instances(draw, most=4):
    """Rows that serve every expert, loads and speeds: several instances on one group of ranks, gaps and twins at times."""
    slots_of_rank = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    ranks, slots = len(slots_of_rank), sum(slots_of_rank)
    experts = draw(st.integers(1, min(slots, 6)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.integers(-1, experts, (draw(st.integers(1, most)), slots))
    for row in rows:
        row[rng.permutation(slots)[:experts]] = np.arange(experts)
    loads = rng.integers(0, draw(st.sampled_from([1, 5, 1000])) + 1, (len(rows), experts))
    speed = np.array(draw(st.lists(st.sampled_from([1, 2, 5]), min_size=ranks, max_size=ranks)))
    return rows, np.repeat(np.arange(ranks), slots_of_rank), loads, speed


def held(rows, rank_of_slot, loads, speed):
    """The pairs of rows."""
    return hosting(rows, rank_of_slot, loads.shape[1], len(speed))


def rank_loads(pairs, part, loads, speed):
    """Load / speed of every rank, float64 [instances, ranks]."""
    result = np.zeros((len(loads), len(speed)))
    np.add.at(result, (pairs.instance, pairs.rank), part * loads[pairs.instance, pairs.expert])
    return result / speed


def worst_of_linear_programme(row, rank_of_slot, loads, speed):
    """Least costliest rank by GLOP."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    top = solver.NumVar(0, solver.infinity(), "top")
    homes = [
        sorted({int(r) for r, e in zip(rank_of_slot, row, strict=True) if e == x}) for x in range(len(loads))
    ]
    sent = {(x, r): solver.NumVar(0, solver.infinity(), "") for x, at in enumerate(homes) for r in at}
    for x, at in enumerate(homes):
        solver.Add(sum(sent[x, r] for r in at) == float(loads[x]))
    for r in range(len(speed)):
        solver.Add(sum(v for (_, at), v in sent.items() if at == r) <= top * float(speed[r]))
    solver.Minimize(top)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return top.solution_value()


def worst_of_all_sets(row, rank_of_slot, loads, speed):
    """max over sets X of w(X) / s(N(X)), by trying all of them, exactly."""
    best = Fraction(0)
    for size in range(1, len(loads) + 1):
        for chosen in itertools.combinations(range(len(loads)), size):
            near = {int(r) for r, e in zip(rank_of_slot, row, strict=True) if e in chosen}
            best = max(best, Fraction(int(loads[list(chosen)].sum()), int(speed[list(near)].sum())))
    return best


def test_the_vector_of_the_field_notes():
    """a(8) on {0,1}, b(6) on {1}, c(4) on {0}, d(3) on {2}: X = {a, b, c}, T* = 9, mean 7."""
    rows, ranks = np.array([[0, 2, 0, 1, 3, -1]]), np.repeat(np.arange(3), 2)
    pairs = hosting(rows, ranks, 4, 3)
    loads, speed = np.array([[8, 6, 4, 3]]), np.ones(3, dtype=np.int64)
    flow = least_worst(pairs, loads, speed)
    assert rank_loads(pairs, flow.part, loads, speed).tolist() == [[9.0, 9.0, 3.0]]
    assert flow.bottleneck_experts.tolist() == [[True, True, True, False]]
    assert flow.bottleneck_ranks.tolist() == [[True, True, False]]


@given(instances())
@settings(deadline=None, max_examples=150)
def test_the_costliest_rank_is_that_of_the_certificate_and_no_set_proves_more(problem):
    """T* = w(X) / s(N(X)) for the named X, equal to the largest over all sets and to the linear programme."""
    rows, rank_of_slot, loads, speed = problem
    pairs = held(*problem)
    flow = least_worst(pairs, loads, speed)
    worst = rank_loads(pairs, flow.part, loads, speed).max(axis=1)
    for at, row in enumerate(rows):
        exact = worst_of_all_sets(row, rank_of_slot, loads[at], speed)
        assert worst[at] == pytest.approx(float(exact), rel=1e-12)
        assert worst[at] == pytest.approx(
            worst_of_linear_programme(row, rank_of_slot, loads[at], speed), rel=1e-6
        )
        experts = np.flatnonzero(flow.bottleneck_experts[at])
        near = {int(r) for r, e in zip(rank_of_slot, row, strict=True) if e in experts}
        if loads[at].any():
            assert near == set(np.flatnonzero(flow.bottleneck_ranks[at]).tolist())
            assert Fraction(int(loads[at][experts].sum()), int(speed[list(near)].sum())) == exact


@given(instances(), st.booleans())
@settings(deadline=None)
def test_parts_of_every_expert_sum_to_one(problem, levelled):
    """Nothing is lost, nothing is negative, and the pairs are those of the map."""
    rows, _, loads, _ = problem
    pairs = held(*problem)
    flow = (level if levelled else least_worst)(pairs, loads, problem[3])
    assert (flow.part >= 0).all()
    total = np.zeros(loads.shape)
    np.add.at(total, (pairs.instance, pairs.expert), flow.part)
    assert total == pytest.approx(np.ones(loads.shape))
    assert pairs.slots_of_pair.sum() == (rows >= 0).sum()


@given(instances())
@settings(deadline=None, max_examples=150)
def test_levelled_loads_are_the_least_in_sorted_order(problem):
    """Below the costliest set the rest is solved as if it were alone: no expert has a cooler rank that it leaves unused."""
    rows, _, loads, speed = problem
    pairs = held(*problem)
    flow = level(pairs, loads, speed)
    cost = rank_loads(pairs, flow.part, loads, speed)
    assert cost.max(axis=1) == pytest.approx(
        rank_loads(pairs, least_worst(pairs, loads, speed).part, loads, speed).max(axis=1)
    )
    for at in range(len(rows)):
        for expert in np.flatnonzero(loads[at]):
            mine = np.flatnonzero((pairs.instance == at) & (pairs.expert == expert))
            used = mine[flow.part[mine] > 1e-12]
            assert cost[at, pairs.rank[used]].max() <= cost[at, pairs.rank[mine]].min() * (1 + 1e-9) + 1e-12


def test_instances_do_not_touch_each_other():
    """More instances than one network takes give what each gives alone."""
    rng = np.random.default_rng(1)
    rows = np.array([[0, 1, 0, 2, 1, 2]] * (MOST_INSTANCES + 3))
    loads = rng.integers(0, 50, (len(rows), 3))
    ranks, speed = np.repeat(np.arange(3), 2), np.array([1, 2, 1])
    together = least_worst(hosting(rows, ranks, 3, 3), loads, speed).part.reshape(len(rows), -1)
    for at in (0, MOST_INSTANCES - 1, MOST_INSTANCES, MOST_INSTANCES + 2):
        alone = least_worst(hosting(rows[at : at + 1], ranks, 3, 3), loads[at : at + 1], speed)
        pairs = hosting(rows[at : at + 1], ranks, 3, 3)
        both = [
            rank_loads(pairs, part, loads[at : at + 1], speed).max() for part in (together[at], alone.part)
        ]
        assert both[0] == pytest.approx(both[1], rel=1e-12)


def test_huge_loads_lose_only_their_last_digits():
    """Totals near int64 are scaled down, not overflown."""
    pairs = hosting(np.array([[0, 1, 0, 2]]), np.array([0, 0, 1, 1]), 3, 2)
    loads = np.array([[2**61, 2**59, 3]])
    flow = least_worst(pairs, loads, np.ones(2, dtype=np.int64))
    assert loads.sum() > MOST_UNITS
    cost = rank_loads(pairs, flow.part, loads.astype(float), np.ones(2))
    assert cost[0, 0] == pytest.approx(cost[0, 1], rel=1e-9)


def test_speeds_become_whole_numbers_that_keep_their_ratio():
    """Equal speeds become 1, dead ranks 0; other speeds are kept to 2^-16 of the fastest."""
    assert whole_speeds(np.array([0.7, 0.7])).tolist() == [1, 1]
    assert whole_speeds(np.array([1.0, 0.5, 0.0, 1.25])).tolist() == [4, 2, 0, 5]
    odd = np.array([1.0, 0.3333, 1e-9])
    assert (whole_speeds(odd) >= 1).all()
    assert whole_speeds(odd)[:2] / whole_speeds(odd)[0] == pytest.approx(odd[:2], rel=1e-4)
