"""Draws: the same name gives the same numbers on any machine, and they are spread as they should be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.generate.draws import MOST_EXPONENT, Draws, exponential, logarithm

GOLDEN = [23757, 57033, 62741, 50471, 7660]


def test_a_stream_is_its_name():
    """Fixed for good: a change of these numbers changes every trace that was ever made with a seed."""
    assert Draws(7, 1).uniform(5).tolist() == GOLDEN
    assert Draws(7, 1).uniform(5).tolist() == Draws(7, 1).uniform(8)[:5].tolist()
    assert Draws(7, 2).uniform(5).tolist() != GOLDEN


def test_uniform_numbers_are_uniform():
    """All 16 bits are used and the mean is in the middle."""
    drawn = Draws(0).uniform(100_000)
    assert drawn.min() < 10
    assert drawn.max() > 65525
    assert drawn.mean() == pytest.approx(32767.5, rel=0.01)


def test_normal_numbers_have_mean_0_and_variance_1():
    """And the tails of a normal one: 2.3 % above two standard deviations."""
    drawn = Draws(0).normals(400, 250)
    assert drawn.mean() == pytest.approx(0.0, abs=0.01)
    assert drawn.var() == pytest.approx(1.0, rel=0.01)
    assert (drawn > 2.0).mean() == pytest.approx(0.02275, rel=0.05)


@given(st.floats(-MOST_EXPONENT, MOST_EXPONENT))
def test_the_exponential_is_the_exponential(x):
    """Without a library function in it."""
    assert float(exponential(np.array(x))) == pytest.approx(float(np.exp(x)), rel=1e-12)


def test_the_exponential_stays_finite():
    """Beyond its range it is cut."""
    assert exponential(np.array([1e9, -1e9])).tolist() == exponential(np.array([40.0, -40.0])).tolist()


@given(st.floats(1e-15, 1e15))
def test_the_logarithm_is_the_logarithm(x):
    """As exact as the exponential that it is made of."""
    assert logarithm(x) == pytest.approx(float(np.log(x)), rel=1e-12, abs=1e-12)
