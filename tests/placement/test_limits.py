"""Limits: what cannot be is refused."""

import pytest

from placement import Limits, PlacementError


@pytest.mark.parametrize(
    "wrong",
    [{"slack": -0.1}, {"slack": float("nan")}, {"moves": -1}, {"evaluations": -1}, {"bytes_per_expert": -1}],
)
def test_limits_below_zero_are_refused(wrong):
    """Each names itself and its value."""
    with pytest.raises(PlacementError, match=next(iter(wrong))):
        Limits(**wrong)
