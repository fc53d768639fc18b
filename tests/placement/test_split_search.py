"""Split search: levelled shares are feasible and close to the best ones, and the rows it finds are valid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement import LoadTrace, Placement, Topology, evaluate, solve, violations
from placement.kernel import TEMPERATURE
from placement.search import Task
from placement.split_search import _Walk, cool_split, walk_split


def random_layer(seed, slices):
    """Uneven slots and speeds, and a row of 8 experts on 14 slots without twins."""
    rng = np.random.default_rng(seed)
    layer = layer_of(rng.integers(1, 200, (slices, 8)), [4, 3, 4, 3], [1.0, 0.5, 1.25, 1.0])
    row = np.concatenate([[0, 1, 2, 3], [4, 5, 6], [7, 0, 1, 2], rng.permutation([3, 4, 5])])
    return layer, row


def exact(layer, row, seed, slices):
    """The value that the maximum flow proves."""
    rng = np.random.default_rng(seed)
    trace = LoadTrace(rng.integers(1, 200, (slices, 8))[:, None])
    topology = Topology((4, 3, 4, 3), (0,) * 4, (1.0, 0.5, 1.25, 1.0))
    return evaluate(Placement([row]), trace, topology, dispatch="optimal").mean_ratio


@given(st.integers(0, 2**32), st.sampled_from([3, 16]))
@settings(deadline=None, max_examples=20)
def test_levelled_shares_are_never_better_than_the_flow_and_nearly_as_good(seed, slices):
    """At the start, and after many exchanges, refused ones included: what is stored fits the row."""
    layer, row = random_layer(seed, slices)
    walk = _Walk(layer, row, Task(2000, 10**9, 0.0, seed), None)
    for _ in range(2):
        best = exact(layer, walk.state.row, seed, slices)
        assert best - 1e-3 <= walk.value() <= best * 1.02
        walk.state.now[TEMPERATURE] = 0.01
        walk.run(2000, 0)


def test_the_loads_of_all_copies_stay_those_of_their_experts():
    """After thousands of exchanges the ranks' costs still add up to all load."""
    layer, row = random_layer(1, 16)
    walk = _Walk(layer, row, Task(2000, 10**9, 0.0, 1), None)
    walk.state.now[TEMPERATURE] = 0.05
    walk.run(20_000, 0)
    costs = walk.state.cost.reshape(layer.ranks, -1)[:, :16] / layer.inverse_speed[:, None]
    assert costs.sum(axis=0) == pytest.approx(layer.loads.sum(axis=1), rel=1e-4)


def test_rows_on_the_way_have_rising_moves_and_the_live_one_is_first():
    """Every row holds all experts without twins."""
    layer, row = random_layer(5, 16)
    found = list(walk_split(layer, row, row, Task(40_000, 10**9, 0.0, 3)))
    assert (found[0] == row).all()
    for one in found:
        assert sorted(set(one.tolist())) == list(range(8))
        assert (layer.holds(one).sum(axis=1)[:-1] == np.bincount(one, minlength=8)).all()


def test_a_map_for_split_batches_beats_one_for_even_shares():
    """The excess falls by more than a twentieth beside that of the map tuned for even shares, split in the same way."""
    rng = np.random.default_rng(8)
    tokens = np.rint(rng.lognormal(3, 1.2, (20, 1, 24))).astype(np.int64)
    topology, trace = Topology.uniform(ranks=6, slots_per_rank=5), LoadTrace(tokens)
    plain = solve(trace, topology).placement
    split = solve(trace, topology, dispatch="optimal")
    assert violations(split.placement, topology, 24) == []
    even = evaluate(plain, trace, topology, dispatch="optimal").mean_ratio
    assert split.objective - 1 < 0.95 * (even - 1)


def test_equal_input_gives_equal_rows():
    """Rows do not depend on what ran before."""
    layer, row = random_layer(2, 16)
    task = Task(20_000, 10**9, 0.0, 9)
    assert (cool_split(layer, row, task) == cool_split(layer, row, task)).all()
