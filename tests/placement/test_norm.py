"""The smooth maximum: between the maximum and a little above, falling whenever a hot rank cools."""

import numpy as np

from placement.norm import POWER, power, root, smooth_max


def test_power_and_root_are_inverse():
    """The 16th root of the 16th power is the value."""
    values = np.array([0.0, 0.5, 1.0, 7.25])
    assert np.allclose(root(power(values)), values, rtol=1e-14)
    assert np.allclose(power(values), values**POWER, rtol=1e-14)


def test_rounding_below_zero_counts_as_zero():
    """A difference of powers that rounds below 0 does not become NaN."""
    assert root(np.array([-1e-18, 0.0])).tolist() == [0.0, 0.0]


def test_smooth_max_replaces_one_rank_at_a_time():
    """Each candidate is the 16-norm with that rank's cost replaced."""
    costs = np.array([[1.0, 2.0, 0.5], [3.0, 1.0, 1.0]])
    new = np.array([[2.5, 1.0], [2.0, 4.0]])
    weights = np.array([0.25, 0.75])
    got = smooth_max(costs, np.array([0, 2]), new, weights)
    want = []
    for at, rank in enumerate((0, 2)):
        changed = costs.copy()
        changed[:, rank] = new[:, at]
        want.append(float(((changed**16).sum(axis=1) ** (1 / 16) * weights).sum()))
    assert np.allclose(got, want, rtol=1e-12)
