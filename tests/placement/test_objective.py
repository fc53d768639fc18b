"""Objective: what a solve reports is what evaluate says, for every dispatch rule and cost model, from nothing and from a live map."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import one_slice, problems_with_map

from placement import (
    Dispatch,
    Limits,
    LoadTrace,
    Placement,
    Roofline,
    Topology,
    evaluate,
    solve,
    violations,
)
from placement.layer import make_layer
from placement.models import COST, DISPATCH
from placement.objective import Objective

ROOFLINE = Roofline(base_us=20.0, activated_us=10.0, token_us=0.1)


def with_facts(trace, topology, seed):
    """The same tokens with what the rules and the roofline ask for: steps, batches, counts by source rank."""
    rng = np.random.default_rng(seed)
    return LoadTrace(
        trace.tokens,
        weights=trace.weights,
        steps_per_slice=rng.integers(1, 4, trace.slices),
        batch_tokens=rng.uniform(1, 80, trace.slices),
        source_tokens=rng.integers(0, 9, (topology.ranks, trace.layers, trace.experts)),
    )


@given(problems_with_map(), st.sampled_from(DISPATCH), st.sampled_from(COST), st.integers(0, 2**32))
@settings(deadline=None, max_examples=80)
def test_every_point_has_the_score_that_it_claims(case, dispatch, cost, seed):
    """From any live map: twins, gaps, unknown ids and dead ranks; valid maps are never made worse."""
    topology, trace, rows = case
    trace = with_facts(trace, topology, seed)
    model = {"dispatch": dispatch, "cost": cost}
    result = solve(trace, topology, rows, **model, effort="fast", limits=Limits(moves=3))
    assert violations(result.placement, topology, trace.experts) == []
    if np.isnan(result.objective):
        return
    assert evaluate(result.placement, trace, topology, **model).mean_ratio == pytest.approx(
        result.objective, rel=1e-9
    )
    assert result.objective >= result.bound - 1e-9
    for one, two in pairwise(result.frontier):
        assert one.moves <= two.moves
        assert one.objective >= two.objective
    last = result.frontier[-1]
    assert evaluate(result.at(last.moves), trace, topology, **model).mean_ratio == pytest.approx(
        last.objective, rel=1e-9
    )
    if result.objective_start is None:
        return
    known = np.where((rows < 0) | (rows >= trace.experts), -1, rows)
    start = evaluate(Placement(known), trace, topology, **model).mean_ratio
    assert start == pytest.approx(result.objective_start, rel=1e-9)
    if not violations(Placement(rows), topology, trace.experts):
        assert result.objective <= result.objective_start


@pytest.mark.parametrize("cost", COST)
@pytest.mark.parametrize("dispatch", DISPATCH)
def test_a_map_for_the_rule_is_not_worse_than_one_for_even_tokens(dispatch, cost):
    """A cold start in the objective that counts finds at least what the plain one finds, by its own start from it."""
    rng = np.random.default_rng(4)
    tokens = np.rint(rng.lognormal(2, 1.2, (10, 2, 16))).astype(np.int64)
    topology = Topology.uniform(ranks=4, slots_per_rank=5, nodes=2)
    trace = with_facts(LoadTrace(tokens), topology, 5)
    plain = solve(trace, topology, effort="fast").placement
    result = solve(trace, topology, plain, dispatch=dispatch, cost=cost, limits=Limits(slack=0.0))
    before = evaluate(plain, trace, topology, dispatch=dispatch, cost=cost).mean_ratio
    assert result.objective_start == pytest.approx(before, rel=1e-9)
    assert result.objective <= before
    if cost == "roofline":
        assert result.objective < before - 1e-3


def test_reasons_of_the_score_stand_in_the_result():
    """What was assumed for a rule is said by a solve as by evaluate."""
    trace, topology = one_slice([6, 2, 2]), Topology.uniform(ranks=2, slots_per_rank=2)
    for dispatch in DISPATCH:
        result = solve(trace, topology, dispatch=dispatch, effort="fast")
        for reason in evaluate(result.placement, trace, topology, dispatch=dispatch).reasons:
            assert reason in result.reasons


def test_settings_of_a_rule_and_an_own_roofline_are_taken():
    """A ``Dispatch`` and a ``Roofline`` object mean to a solve what they mean to evaluate."""
    trace = LoadTrace([[[40, 3, 2, 1]], [[9, 8, 7, 1]]], steps_per_slice=[1, 1])
    topology = Topology.uniform(ranks=4, slots_per_rank=2)
    model = {"dispatch": Dispatch("per_source", tensor_parallel=2), "cost": ROOFLINE}
    result = solve(trace, topology, [[0, 1, 2, 3, 0, 1, 2, 3]], **model)
    assert evaluate(result.placement, trace, topology, **model).mean_ratio == pytest.approx(result.objective)


def test_in_decode_the_spare_slots_take_the_copies_that_hurt_least():
    """Copies of busy experts are read on two ranks in each step; those of experts without tokens cost next to nothing."""
    tokens = np.array([[[30, 28, 27, 26, 0, 0]], [[25, 31, 29, 24, 0, 0]]])
    trace = LoadTrace(tokens, steps_per_slice=[1, 1])
    topology = Topology.uniform(ranks=2, slots_per_rank=4)
    plain = solve(trace, topology).placement
    result = solve(trace, topology, cost="roofline")
    copies = result.placement.replicas(6)[0]
    assert copies[:4].tolist() == [1, 1, 1, 1]
    assert copies[4:].tolist() == [2, 2]
    assert result.objective < evaluate(plain, trace, topology, cost="roofline").mean_ratio - 0.1


def test_prices_are_the_cost_of_a_row_where_tokens_do_not_come_free():
    """Without free tokens a rank's time is the sum over its copies: the search and evaluate then agree on even shares."""
    rng = np.random.default_rng(2)
    trace = LoadTrace(
        rng.integers(0, 60, (5, 1, 6)), steps_per_slice=[2, 1, 3, 2, 2], batch_tokens=[20.5] * 5
    )
    topology = Topology((3, 4, 2), (0, 0, 0), (1.0, 0.5, 1.25))
    objective = Objective("even", ROOFLINE, trace, topology, dealt=False)
    layer = make_layer(trace.tokens[:, 0], trace.slice_weights(), topology)
    prices = objective.prices(layer, 0, 256)
    priced = type(layer)(
        layer.loads, layer.weights, layer.rank_of_slot, layer.first_slot, layer.inverse_speed, layer.node_of_rank,
        prices=prices,
    )  # fmt: skip
    for _ in range(5):
        row = np.concatenate([rng.permutation(6), rng.integers(0, 6, 3)])
        assert priced.value(row) == pytest.approx(objective.layer(0).value(row.astype(np.int32)), rel=1e-12)


@given(st.sampled_from(DISPATCH), st.sampled_from(COST), st.integers(0, 2**32), st.booleans())
@settings(deadline=None, max_examples=30)
def test_groups_stay_whole_whatever_the_rule(dispatch, cost, seed, cold):
    """Two nodes of two ranks, four groups of three experts: no row of any search mixes two choices of home nodes."""
    rng = np.random.default_rng(seed)
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=4, expert_groups=4, policy="hierarchical")
    trace = with_facts(LoadTrace(rng.integers(0, 40, (9, 2, 12))), topology, seed)
    rows = None if cold else np.stack([rng.permutation(np.arange(16) % 12) for _ in range(2)])
    limits = Limits(evaluations=20_000, slack=0.0)
    result = solve(trace, topology, rows, dispatch=dispatch, cost=cost, limits=limits)
    for point in result.frontier:
        assert violations(result.at(point.moves), topology, 12) == []
    score = evaluate(result.placement, trace, topology, dispatch=dispatch, cost=cost)
    assert score.mean_ratio == pytest.approx(result.objective, rel=1e-9)
