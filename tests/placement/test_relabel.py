"""Relabelling: a new map is said in the old one's ranks and slots, so that least moves."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.relabel import keep_slots, relabel


def moves(layer, row, current):
    return int((layer.holds(row) & ~layer.holds(current)).sum())


def test_the_same_groups_on_other_ranks_need_no_move():
    """A map whose ranks are only renamed comes back as it was."""
    layer = layer_of([1, 2, 3, 4, 5, 6], [2, 2, 2])
    current = np.array([0, 1, 2, 3, 4, 5])
    renamed = np.array([5, 4, 1, 0, 3, 2])
    assert keep_slots(layer, relabel(layer, renamed, current), current).tolist() == current.tolist()


def test_ranks_of_another_size_or_speed_keep_their_groups():
    """Groups go only to ranks with as many slots and the same speed."""
    layer = layer_of([1, 2, 3, 4, 5], [2, 2, 1], [1.0, 2.0, 1.0])
    row = np.array([2, 3, 0, 1, 4])
    assert relabel(layer, row, np.array([0, 1, 2, 3, 4])).tolist() == row.tolist()


@given(st.integers(0, 2**32))
@settings(deadline=None)
def test_groups_are_kept_whole_and_moves_never_rise(seed):
    """The set of groups is the same, and no more slots change than without relabelling."""
    rng = np.random.default_rng(seed)
    layer = layer_of(np.ones(8), [2] * 4)
    current, row = rng.permutation(8), rng.permutation(8)
    named = relabel(layer, row, current)
    groups = lambda r: {frozenset(pair) for pair in r.reshape(4, 2).tolist()}  # noqa: E731
    assert groups(named) == groups(row)
    best = min(
        moves(layer, row.reshape(4, 2)[list(order)].ravel(), current)
        for order in itertools.permutations(range(4))
    )
    assert best <= moves(layer, named, current) <= min(moves(layer, row, current), 2 * best)


def test_kept_experts_keep_their_slot():
    """Within a rank only the slots of arrivals change, gaps included."""
    layer = layer_of(np.ones(7), [3, 3])
    current = np.array([0, 1, 2, 3, 7, 5])
    assert keep_slots(layer, np.array([2, 6, 0, 5, 4, 3]), current).tolist() == [0, 6, 2, 3, 4, 5]
