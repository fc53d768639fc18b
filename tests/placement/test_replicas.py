"""Replica counts: the greedy is optimal, capped by ranks, and agrees with trying everything."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.packing import deal
from placement.replicas import least_largest_copy, replica_counts


def fits(counts, capacity):
    """Gale-Ryser: the counts can be laid on the ranks without twins."""
    ordered = sorted(counts, reverse=True)
    return all(sum(ordered[:k]) <= sum(min(c, k) for c in capacity) for k in range(1, len(ordered) + 1))


@st.composite
def small(draw):
    experts = draw(st.integers(1, 4))
    ranks = draw(st.integers(1, 4))
    capacity = draw(st.lists(st.integers(1, experts), min_size=ranks, max_size=ranks))
    while sum(capacity) < experts:
        capacity.append(experts)
    loads = draw(st.lists(st.integers(0, 20), min_size=experts, max_size=experts))
    return np.array(loads, dtype=np.float64), np.array(capacity)


def test_the_vector_of_the_field_notes():
    """Loads 10 6 3 1 on 6 slots: copies 2 2 1 1, largest copy 5."""
    loads = np.array([10.0, 6.0, 3.0, 1.0])
    assert replica_counts(loads, np.array([3, 3])).tolist() == [2, 2, 1, 1]
    assert least_largest_copy(loads[None], 6, 2).tolist() == [5.0]


def test_copies_are_capped_by_ranks():
    """One expert with all the load gets one copy a rank; the rest of the slots goes to the others."""
    assert replica_counts(np.array([9.0, 0.0, 0.0]), np.array([2, 2, 2])).tolist() == [3, 2, 1]


def test_equal_loads_spread_copies_evenly():
    """Without load at a cold start no expert gets two copies more than another."""
    counts = replica_counts(np.zeros(5), np.array([3, 3, 3]))
    assert sorted(counts.tolist()) == [1, 2, 2, 2, 2]


@given(small())
@settings(deadline=None)
def test_the_greedy_is_optimal_on_uneven_ranks_too(case):
    """Against every count vector that fits: none has a smaller largest copy."""
    loads, capacity = case
    counts = replica_counts(loads, capacity)
    assert counts.sum() == capacity.sum()
    assert fits(counts, capacity)
    choices = itertools.product(range(1, len(capacity) + 1), repeat=len(loads))
    best = min(
        max(loads / np.array(choice))
        for choice in choices
        if sum(choice) == capacity.sum() and fits(choice, capacity)
    )
    assert max(loads / counts) == best


@given(small())
@settings(deadline=None)
def test_dealing_fits_every_count_vector_of_the_greedy(case):
    """The fallback places exactly the copies asked for, within the slots."""
    loads, capacity = case
    counts = replica_counts(loads, capacity)
    has = deal(counts, capacity)
    assert (has.sum(axis=1) == counts).all()
    assert (has.sum(axis=0) <= capacity).all()


def test_the_bound_stops_where_the_mean_binds():
    """Copies are not split further once they are below what is enough."""
    assert least_largest_copy(np.array([[8.0, 1.0]]), 6, 3, enough=4.0).tolist() == [4.0]
    assert least_largest_copy(np.array([[8.0, 1.0]]), 6, 3).tolist() == [8.0 / 3]


@given(small(), st.data())
@settings(deadline=None)
def test_copies_to_begin_with_are_kept_and_the_counts_still_fit(case, data):
    """One expert starts with any number of copies that leaves the others a slot each."""
    loads, capacity = case
    chosen = data.draw(st.integers(0, len(loads) - 1))
    least = np.ones(len(loads), dtype=np.int64)
    least[chosen] = data.draw(
        st.integers(1, min(len(capacity), int(capacity.sum()) - len(loads) + 1)), label="copies"
    )
    counts = replica_counts(loads, capacity, least)
    assert (counts >= least).all()
    assert counts.max() <= len(capacity)
    assert fits(counts.tolist(), capacity.tolist())
