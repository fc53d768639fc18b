"""Against the exact optimum of CP-SAT: the bound is below it, and a solve reaches it or comes within a stated gap."""

import numpy as np
import pytest
from exact import optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import best_max, one_slice

from placement import Limits, LoadTrace, Topology, solve, violations

GAP = 0.02
"""Most by which a solve with default effort may be above the optimum of a small layer."""


FLAT_GAP = 0.01
"""The same for a single slice, whatever its skew."""


def check(loads, topology):
    """Solve, compare with the optimum, and return how far above it the solve is."""
    trace = LoadTrace(np.array(loads)[:, None])
    result = solve(trace, topology, limits=Limits(slack=0.0))
    exact = optimum(loads, topology)
    assert violations(result.placement, topology, trace.experts) == []
    assert result.bound <= exact.best + 1e-5
    assert exact.floor <= result.objective + 1e-5
    return result.objective / exact.floor - 1


def skewed(seed, slices, experts):
    return np.rint(np.random.default_rng(seed).lognormal(3, 1, (slices, experts))).astype(int) + 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("experts", "slots", "slices"), [(8, 2, 1), (8, 2, 4), (8, 3, 1), (8, 3, 3), (16, 4, 1)]
)
def test_four_ranks(experts, slots, slices, seed):
    """8 experts with 0 and 4 redundant slots, 16 with 0: one slice and several."""
    topology = Topology.uniform(ranks=4, slots_per_rank=slots)
    assert check(skewed(seed, slices, experts), topology) <= GAP


def test_sixteen_experts_with_redundancy():
    """16 experts and 4 redundant slots on 4 ranks, where perfect balance is in reach."""
    assert check(skewed(0, 1, 16), Topology.uniform(ranks=4, slots_per_rank=5)) <= GAP


def dominated(seed, experts, part):
    """One slice whose first expert has ``part`` of the load of all others together."""
    loads = skewed(seed, 1, experts)
    loads[0, 0] = max(1, int(part * loads[0, 1:].sum()))
    return loads


@pytest.mark.parametrize(("seed", "part"), [(3, 1.0), (4, 3.0)])
def test_sixteen_experts_of_which_one_dominates(seed, part):
    """The number of copies of the hot expert is part of the optimum, and greedy counts are not always it."""
    assert check(dominated(seed, 16, part), Topology.uniform(ranks=4, slots_per_rank=5)) <= FLAT_GAP


@given(
    st.integers(0, 2**32),
    st.integers(5, 8),
    st.sampled_from([0.1, 0.3, 0.5, 1.0, 3.0]),
    st.sampled_from([(3, 3), (2, 4), (3, 4), (4, 2)]),
)
@settings(deadline=None, max_examples=60)
def test_one_slice_comes_within_a_hundredth_of_every_map(seed, experts, part, pool):
    """A small pool of one slice, with an expert of any weight, against all maps."""
    ranks, slots = pool
    loads = dominated(seed, min(experts, ranks * slots), part)[0]
    topology = Topology.uniform(ranks=ranks, slots_per_rank=slots)
    result = solve(one_slice(loads), topology, limits=Limits(slack=0.0))
    best = best_max(loads, ranks, slots) * ranks / loads.sum()
    assert result.objective <= best * (1 + FLAT_GAP)
    assert best <= result.objective + 1e-9


@pytest.mark.parametrize("seed", range(2))
def test_uneven_slots_and_speeds(seed):
    """Slower and smaller ranks are used as the optimum uses them."""
    topology = Topology((3, 2, 3, 2), (0, 0, 1, 1), (1.0, 0.5, 1.25, 1.0))
    assert check(skewed(seed, 2, 8), topology) <= GAP


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("slots", [2, 3])
def test_whole_groups(slots, seed):
    """4 groups of 2 experts on 2 nodes: the choice of nodes is part of the optimum."""
    topology = Topology.uniform(
        ranks=4, nodes=2, slots_per_rank=slots, expert_groups=4, policy="hierarchical"
    )
    assert check(skewed(seed, 2, 8), topology) <= 0.05


def test_every_slot_matters():
    """The oracle itself: one hot expert, copied to both ranks, beside the others."""
    exact = optimum([[8, 2, 2]], Topology.uniform(ranks=2, slots_per_rank=2))
    assert (exact.best, exact.floor) == (pytest.approx(1.0), pytest.approx(1.0, abs=1e-3))
