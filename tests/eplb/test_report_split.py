"""What is held out: evenly, by kind, always reproducibly, and never everything."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eplb.report.split import held_out


def test_half_of_each_kind_is_held_out_in_turn():
    """Planned and held-out slices alternate within a kind, wherever its slices stand."""
    kinds = ["a", "b", "a", "b", "a", "a", "b", "b"]
    assert held_out(kinds, 0.5).tolist() == [False, False, True, True, False, True, False, True]


def test_one_slice_is_planned_on_and_nothing_is_held_out():
    """There is no plan without a slice."""
    assert held_out(["a"], 0.9).tolist() == [False]
    assert held_out(["a", "a"], 0.0).tolist() == [False, False]


def test_a_kind_with_one_slice_does_not_upset_the_count():
    """Counting goes on from kind to kind, so that many small kinds are held out in part too."""
    assert held_out(list("abcdef"), 0.5).sum() == 3


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=60), st.floats(0.01, 0.99))
def test_the_part_held_out_is_as_asked_and_neither_side_is_empty(kinds, fraction):
    """Within one slice of the asked number."""
    held = held_out(kinds, fraction)
    assert 1 <= held.sum() <= len(kinds) - 1
    assert abs(held.sum() - fraction * len(kinds)) <= 1
    assert np.array_equal(held, held_out(kinds, fraction))
