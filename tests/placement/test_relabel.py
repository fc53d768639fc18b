"""Relabelling: a new map is said in the old one's ranks and slots, so that least moves."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.relabel import assign, keep_slots, relabel


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
    """The set of groups is the same, and no naming of the ranks changes fewer slots."""
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
    assert moves(layer, named, current) == best


@st.composite
def gains(draw):
    """A square table of gains with many ties, at times huge and below 0."""
    size = draw(st.integers(1, 5))
    value = st.one_of(st.integers(0, 2), st.integers(-(2**46), 2**46))
    rows = st.lists(value, min_size=size, max_size=size)
    return np.array(draw(st.lists(rows, min_size=size, max_size=size)))


@given(gains())
@settings(deadline=None)
def test_an_assignment_is_the_best_of_all_and_names_as_little_anew_as_it_can(gain):
    """Against every order of the columns: the largest sum, and of those that reach it most rows at their own number."""
    target = assign(gain).tolist()
    size = len(gain)
    assert sorted(target) == list(range(size))

    def worth(order):
        total = sum(int(gain[row, column]) for row, column in enumerate(order))
        return total, sum(row == column for row, column in enumerate(order))

    assert worth(target) == max(map(worth, itertools.permutations(range(size))))


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=200)
def test_no_group_goes_to_a_rank_of_another_make(seed):
    """Whatever would be kept by it: every rank keeps the number of experts that it has slots for."""
    rng = np.random.default_rng(seed)
    sizes, speeds = rng.choice([1, 2], 6), rng.choice([0.5, 1.0, 1.0, 1.0], 6)
    layer = layer_of(np.ones(int(sizes.sum())), sizes, speeds)
    current, row = rng.permutation(layer.slots), rng.permutation(layer.slots)
    named = relabel(layer, row, current)
    ends = np.cumsum(sizes)[:-1]
    kinds = list(zip(sizes.tolist(), speeds.tolist(), strict=True))
    groups = [
        sorted((kind, sorted(part.tolist())) for kind, part in zip(kinds, np.split(some, ends), strict=True))
        for some in (row, named)
    ]
    assert groups[0] == groups[1]


def test_kept_experts_keep_their_slot():
    """Within a rank only the slots of arrivals change, gaps included."""
    layer = layer_of(np.ones(7), [3, 3])
    current = np.array([0, 1, 2, 3, 7, 5])
    assert keep_slots(layer, np.array([2, 6, 0, 5, 4, 3]), current).tolist() == [0, 6, 2, 3, 4, 5]
