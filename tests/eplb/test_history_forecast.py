"""Rules of how much each moment counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.history.forecast import effective, expected_mix, moment_weights, recency, trust

MINUTE_S = 60.0


def mix_after(labels, horizon_s=MINUTE_S):
    """Expected mix when the last moment is the window's."""
    labels = np.array(labels)
    now = np.arange(len(labels)) == len(labels) - 1
    return expected_mix(labels, np.arange(len(labels)) * MINUTE_S, np.ones(len(labels)), now, horizon_s)


def test_a_day_counts_half_and_nothing_vanishes():
    """A hyperbola in age."""
    assert recency(np.array([0.0, 100.0, 300.0, -5.0]), 100.0).tolist() == [1.0, 0.5, 0.25, 1.0]


def test_a_regime_that_lasts_is_expected_to_last():
    """Long stretches of two regimes: nearly all weight to that of now."""
    mix = mix_after([0] * 40 + [1] * 40 + [0] * 40)
    assert mix[0] > 0.9
    assert mix.sum() == pytest.approx(1.0)


def test_a_regime_that_is_always_followed_by_another_announces_it():
    """A B A B, one moment each: after A comes B."""
    mix = mix_after([0, 1] * 30 + [0])
    assert mix[1] > 0.9


def test_without_a_past_the_average_is_expected():
    """A regime that has never been seen before is followed by what is usual."""
    mix = mix_after([0, 0, 0, 0, 0, 0, 1])
    assert mix[0] == pytest.approx(6 / 7)


def test_many_more_moments_of_the_same_regime_are_trusted_more():
    """Between nothing and everything, and more with more moments."""
    rng = np.random.default_rng(0)

    def trust_of(each):
        points = np.rint(rng.normal(0, 1000, (2 * each, 20)))
        points[each:, 0] += 5000
        distances = np.square(points[:, None] - points[None]).sum(axis=2).astype(np.int64)
        labels = np.repeat([0, 1], each)
        return trust(distances, labels, np.ones(2 * each)).mean()

    few, many = trust_of(4), trust_of(100)
    assert 0 <= few < many < 1
    assert many > 0.9


def test_one_regime_alone_and_a_single_moment_are_not_trusted_apart():
    """They have no centre of their own; the weight goes to all moments."""
    distances = np.square(np.subtract.outer([0, 10, 20], [0, 10, 20])).astype(np.int64)
    assert trust(distances, np.zeros(3, dtype=np.int64), np.ones(3)).tolist() == [0.0]
    assert trust(distances, np.array([0, 0, 1]), np.ones(3))[1] == 0.0


def test_trusted_regimes_have_their_expected_share_and_mistrusted_ones_that_of_all():
    """Full trust: the mix itself. None: as much as the moments count anyway."""
    labels, base = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 2.0, 4.0])
    mix = np.array([0.9, 0.1])
    full = moment_weights(labels, mix, np.ones(2), base)
    assert full.tolist() == pytest.approx([0.225, 0.225, 0.45, 0.1])
    none = moment_weights(labels, mix, np.zeros(2), base)
    assert none.tolist() == pytest.approx([0.125, 0.125, 0.25, 0.5])


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 999))
def test_weights_are_a_whole(moments, regimes, seed):
    """At least 0 and 1 in sum, for any labels, times and ages."""
    rng = np.random.default_rng(seed)
    labels = np.unique(rng.integers(0, regimes, moments), return_inverse=True)[1].astype(np.int64)
    times = np.sort(rng.integers(0, 10_000, moments)).astype(float)
    fade = recency(times[-1] - times, 500.0)
    points = rng.integers(0, 100, (moments, 3))
    distances = np.square(points[:, None] - points[None]).sum(axis=2)
    mix = expected_mix(labels, times, fade, times == times[-1], 300.0)
    weights = moment_weights(labels, mix, trust(distances, labels, fade), fade)
    assert mix.sum() == pytest.approx(1.0)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()


def test_the_effective_number_is_kish_s():
    """Equal weights count in full, one heavy weight as little more than one."""
    assert effective(np.full(7, 0.3)) == pytest.approx(7.0)
    assert effective(np.array([1.0, 1e-9])) == pytest.approx(1.0)
    assert effective(np.zeros(3)) == 0.0
