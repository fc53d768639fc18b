"""Rules of the thrash guard: what comes, what left, and what of a plan may not be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eplb.thrash import arrivals, busiest_moves, departures, share_undone, without_returns

LAYERS, RANKS, WIDTH, EXPERTS = 3, 3, 2, 5
MAPS = st.lists(
    st.lists(st.integers(-1, EXPERTS - 1), min_size=RANKS * WIDTH, max_size=RANKS * WIDTH),
    min_size=LAYERS,
    max_size=LAYERS,
).map(lambda rows: np.array(rows, dtype=np.int32))


def test_coming_and_going_are_by_rank_not_by_slot():
    """Within a rank nothing comes or goes."""
    base, target = np.array([[0, 1, 2, 3]], dtype=np.int32), np.array([[1, 0, 2, 0]], dtype=np.int32)
    assert arrivals(base, target, 2) == ((0, 1, 0),)
    assert departures(base, target, 2) == ((0, 1, 3),)


@given(MAPS, MAPS)
def test_what_leaves_on_the_way_there_arrives_on_the_way_back(base, target):
    """Departures are the arrivals of the reverse."""
    gone = departures(base, target, WIDTH)
    assert gone == arrivals(target, base, WIDTH)
    assert share_undone(gone, gone) == (1.0 if gone else 0.0)


@given(MAPS, MAPS, MAPS)
def test_no_expert_comes_back_to_a_rank_that_it_left(first, second, third):
    """Whatever the maps, a plan without its returns brings none back; its other layers are as planned."""
    left = departures(first, second, WIDTH)
    kept, layers = without_returns(second, third, left, WIDTH)
    assert not set(arrivals(second, kept, WIDTH)) & set(left)
    others = [layer for layer in range(LAYERS) if layer not in layers]
    assert np.array_equal(kept[others], third[others])
    assert np.array_equal(kept[list(layers)], second[list(layers)])


def test_the_stall_counts_the_busiest_rank_of_every_layer():
    """Two experts to one rank of layer 0, one each to two ranks of layer 2: 2 + 1."""
    assert busiest_moves(((0, 1, 4), (0, 1, 5), (2, 0, 1), (2, 1, 1))) == 3
    assert busiest_moves(()) == 0
