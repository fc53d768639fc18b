"""Rules of which slices the solver gets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eplb.history.choice import choose

WEIGHTS = arrays(np.float64, st.integers(1, 60), elements=st.floats(1e-6, 1.0))


@given(WEIGHTS, st.integers(1, 60))
def test_no_more_than_asked_in_order_and_none_twice(weights, most):
    """At least one, weights above 0."""
    places, chosen = choose(weights, most)
    assert 1 <= len(places) <= most
    assert (np.diff(places) > 0).all()
    assert (chosen > 0).all()


@given(WEIGHTS)
def test_all_are_taken_as_they_are_where_they_fit(weights):
    """Nothing is lost without need."""
    places, chosen = choose(weights, len(weights))
    assert places.tolist() == list(range(len(weights)))
    assert chosen.tolist() == weights.tolist()


def test_slices_of_weight_0_are_never_taken():
    """Even where there is room for them."""
    assert choose(np.array([0.0, 1.0, 0.0, 2.0]), 4)[0].tolist() == [1, 3]


def test_heavy_slices_are_taken_and_light_ones_thinned_evenly():
    """Ten light ones share the room that two heavy ones leave; every stretch keeps its weight."""
    weights = np.concatenate([np.full(50, 0.01), [5.0, 5.0], np.full(50, 0.01)])
    places, chosen = choose(weights, 12)
    assert len(places) == 12
    assert {50, 51} <= set(places.tolist())
    assert chosen[places < 50].sum() == pytest.approx(0.5)
    assert chosen[places > 51].sum() == pytest.approx(0.5)
    assert chosen[(places == 50) | (places == 51)].tolist() == [5.0, 5.0]
