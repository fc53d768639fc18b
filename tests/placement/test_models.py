"""Models: every name is known in one place, and what a map can be scored with can be minimised."""

import numpy as np
import pytest

from placement import LoadTrace, Topology, UnsupportedError, evaluate, solve
from placement.models import COST, DISPATCH, check_cost, check_dispatch


@pytest.mark.parametrize("cost", COST)
@pytest.mark.parametrize("dispatch", DISPATCH)
def test_whatever_can_be_scored_can_be_minimised(dispatch, cost):
    """The objective of a solve is the score of its map."""
    trace = LoadTrace(np.arange(12).reshape(2, 1, 6), steps_per_slice=[1, 1], batch_tokens=[4.0, 9.0])
    topology = Topology.uniform(ranks=2, slots_per_rank=4)
    result = solve(trace, topology, dispatch=dispatch, cost=cost, effort="fast")
    score = evaluate(result.placement, trace, topology, dispatch=dispatch, cost=cost)
    assert result.objective == pytest.approx(score.mean_ratio, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "part"),
    [({"dispatch": "nearby"}, "dispatch 'nearby' is unknown: use one of even, weighted"), ({"cost": "flops"}, "cost 'flops' is unknown: use one of tokens, roofline"), ({"effort": "huge"}, "effort 'huge' is unknown")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_those_that_can_be_used(options, part):
    """No model is quietly taken for another."""
    with pytest.raises(UnsupportedError, match=part):
        solve(LoadTrace([[[1, 1]]]), Topology.uniform(ranks=1, slots_per_rank=2), **options)


def test_names_are_checked_where_they_are_used():
    """The lists and the checks agree."""
    for name in DISPATCH:
        check_dispatch(name)
    for name in COST:
        check_cost(name)
    with pytest.raises(UnsupportedError, match="tensor_parallel is 0"):
        check_dispatch("even", 0)
