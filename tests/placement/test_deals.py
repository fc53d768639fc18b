"""Deals: points of a frontier under ``nearest`` carry the value of the deal that the engine makes for their very map."""

import numpy as np
import pytest

from placement import LoadTrace, Placement, Topology, evaluate, solve
from placement.deals import MOST_DEALT, change
from placement.objective import Objective

TOPOLOGY = Topology.uniform(ranks=6, slots_per_rank=4)


def case(layers=3):
    """One node, so that every rank without a copy is dealt; few sources, so that the deal matters."""
    rng = np.random.default_rng(7)
    tokens = rng.integers(1, 90, (4, layers, 16))
    return LoadTrace(tokens, source_tokens=rng.integers(0, 5, (6, layers, 16)))


def test_the_change_leads_from_the_mean_over_deals_to_the_deal():
    """One plus the other is what evaluate says, which depends on the order of layers."""
    trace = case()
    rng = np.random.default_rng(1)
    rows = np.stack([rng.permutation(np.arange(24) % 16) for _ in range(3)])
    mean = Objective("nearest", "tokens", trace, TOPOLOGY, dealt=False)
    alone = np.mean([mean.layer(at).value(row.astype(np.int32)) for at, row in enumerate(rows)])
    deal = Objective("nearest", "tokens", trace, TOPOLOGY)
    exact = evaluate(Placement(rows), trace, TOPOLOGY, dispatch="nearest").mean_ratio
    assert alone + change(Placement(rows), deal, mean, np.full(3, 1 / 3)) == pytest.approx(exact, rel=1e-12)
    assert alone != pytest.approx(exact, rel=1e-6)


def test_points_of_a_frontier_fall_and_score_what_they_claim():
    """From a live map: no more points than are valued as a whole, each one below the one before."""
    trace = case(layers=8)
    live = np.tile(np.arange(24) % 16, (8, 1))
    result = solve(trace, TOPOLOGY, live, dispatch="nearest", effort="fast")
    assert 2 <= len(result.frontier) <= MOST_DEALT
    values = [point.objective for point in result.frontier]
    assert values == sorted(values, reverse=True)
    for point in result.frontier:
        made = result.at(point.moves)
        same = [other for other in result.frontier if other.moves == point.moves][-1]
        assert evaluate(made, trace, TOPOLOGY, dispatch="nearest").mean_ratio == pytest.approx(same.objective)
