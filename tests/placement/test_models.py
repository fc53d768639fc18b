"""Models: every name is known in one place, and a solve refuses what it can only score."""

import pytest

from placement import UnsupportedError
from placement.models import (
    COST,
    COST_SCORED,
    DISPATCH,
    DISPATCH_SCORED,
    check_cost,
    check_dispatch,
    check_models,
)


def test_whatever_a_solve_minimises_can_be_scored():
    """The lists of a solve are the first part of those of evaluate."""
    assert DISPATCH_SCORED[: len(DISPATCH)] == DISPATCH
    assert COST_SCORED[: len(COST)] == COST
    for name in DISPATCH_SCORED:
        check_dispatch(name)
    for name in COST_SCORED:
        check_cost(name)


@pytest.mark.parametrize(
    ("dispatch", "cost", "part"),
    [("nearby", "tokens", "dispatch 'nearby' is unknown: use one of even, weighted"), ("even", "flops", "cost 'flops' is unknown")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_those_that_can_be_used(dispatch, cost, part):
    """No model is quietly taken for another."""
    with pytest.raises(UnsupportedError, match=part):
        check_models(dispatch, cost)


def test_what_a_solve_cannot_minimise_is_told_from_what_does_not_exist():
    """A model that evaluate knows is named as such."""
    for name in set(DISPATCH_SCORED) - set(DISPATCH):
        with pytest.raises(UnsupportedError, match=f"{name}' can be evaluated but not yet minimised"):
            check_models(name, "tokens")
    for name in set(COST_SCORED) - set(COST):
        with pytest.raises(UnsupportedError, match=f"{name}' can be evaluated but not yet minimised"):
            check_models("even", name)
