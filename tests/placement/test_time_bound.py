"""Time bound: no map is cheaper under a roofline, whatever its copies and however they share."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import Limits, LoadTrace, Placement, Roofline, Topology, evaluate, solve

NUMBERS = st.sampled_from([0.5, 1.0, 3.0, 10.0])
ROOFLINES = st.builds(
    Roofline, NUMBERS, NUMBERS, NUMBERS, idle_us=st.sampled_from([0.0, 0.5, 2.0]), free_tokens=st.sampled_from([0.0, 5.0, 100.0])
)  # fmt: skip


def all_maps(topology, experts):
    """Every row without violations, int [rows, slots]."""
    held = [itertools.combinations(range(experts), min(size, experts)) for size in topology.slots_of_rank]
    rows = []
    for parts in itertools.product(*map(list, held)):
        if len(set(sum(parts, ()))) == experts:
            gaps = zip(parts, topology.slots_of_rank, strict=True)
            rows.append(sum(((*part, *(-1,) * (size - len(part))) for part, size in gaps), ()))
    return rows


@given(
    ROOFLINES,
    st.sampled_from([(2, 2), (2, 3), (1, 2, 2), (2, 2, 2)]),
    st.sampled_from(["even", "optimal"]),
    st.integers(0, 2**32),
    st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_nothing_is_below_the_bound(cost, sizes, dispatch, seed, counted):
    """Against every map of small pools, steps counted or expected: bound <= best of all maps <= what a solve finds."""
    rng = np.random.default_rng(seed)
    topology = Topology(sizes, (0,) * len(sizes), tuple(rng.choice([0.5, 1.0, 1.25], len(sizes))))
    experts = int(rng.integers(max(sizes), min(sum(sizes), 4) + 1))
    tokens = rng.integers(0, 30, (2, 1, experts)) ** int(rng.integers(1, 4)) + (np.arange(experts) == 0)
    facts = {
        "weights": [1.0, 2.0],
        "steps_per_slice": [1, 1] if counted else [7, 3],
        "batch_tokens": [20.5, 90.0],
    }
    rows = all_maps(topology, experts)
    many = LoadTrace(np.repeat(tokens, len(rows), axis=1), **facts)
    best = evaluate(Placement(rows), many, topology, dispatch=dispatch, cost=cost).layer_ratio().min()
    trace = LoadTrace(tokens, **facts)
    result = solve(
        trace,
        topology,
        dispatch=dispatch,
        cost=cost,
        limits=Limits(slack=0.0, evaluations=200),
        effort="fast",
    )
    assert result.bound <= best + 1e-9
    assert best <= result.objective + 1e-9


def test_spare_slots_raise_the_mean_and_a_hot_copy_binds():
    """Idle slots cost too; and an expert of all tokens costs what one of its copies does, said as such."""
    cost = Roofline(base_us=1.0, activated_us=3.0, token_us=1.0, idle_us=2.0)
    spare = solve(
        LoadTrace([[[5, 5]]], steps_per_slice=[1]), Topology.uniform(ranks=2, slots_per_rank=2), cost=cost
    )
    assert spare.bound > 1.0
    assert spare.bound_reason.code == "mean"
    hot = solve(
        LoadTrace([[[50, 1]]], steps_per_slice=[1]), Topology.uniform(ranks=2, slots_per_rank=1), cost=cost
    )
    assert hot.bound_reason.code == "replica_granularity"
    assert hot.bound == pytest.approx(hot.objective)
