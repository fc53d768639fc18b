"""Neighbours: every weighed step leads to the smooth maximum that was promised, and stays valid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.neighbours import View
from placement.packing import pack
from placement.replicas import replica_counts


@st.composite
def views(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks = draw(st.integers(2, 4))
    sizes = rng.integers(1, 4, ranks).tolist()
    experts = draw(st.integers(2, max(2, sum(sizes))))
    experts = min(experts, sum(sizes))
    speeds = tuple(rng.choice([0.5, 1.0, 2.0], ranks).tolist())
    layer = layer_of(rng.integers(0, 50, (draw(st.integers(1, 3)), experts)) + 1, sizes, speeds)
    loads = layer.loads[:, :-1].mean(axis=0)
    row = pack(layer, replica_counts(loads, layer.capacity()), loads)
    return View(layer, row)


def taken(view, step):
    row = view.row.copy()
    row[list(step.slots)] = step.experts
    return row


def all_swaps(view, rank):
    """Values of every exchange between ``rank`` and another rank, weighed one by one."""
    layer, row = view.layer, view.row
    for i in np.flatnonzero(layer.rank_of_slot == rank):
        for j in np.flatnonzero(layer.rank_of_slot != rank):
            new = row.copy()
            new[[i, j]] = row[[j, i]]
            if valid(layer, new) and row[i] != row[j]:
                yield View(layer, new).value


def all_copies(view, rank):
    """Values of every new copy of an expert of ``rank`` and of every other copy in a slot of it, weighed one by one."""
    layer, row = view.layer, view.row
    own = layer.rank_of_slot == rank
    for expert in range(layer.experts):
        for j in np.flatnonzero(row != expert):
            new = row.copy()
            new[j] = expert
            if (own[j] or expert in row[own]) and valid(layer, new):
                yield View(layer, new).value


def valid(layer, row):
    pairs = [
        (r, e) for r, e in zip(layer.rank_of_slot.tolist(), row.tolist(), strict=True) if e < layer.experts
    ]
    return len(pairs) == len(set(pairs)) and {e for _, e in pairs} == set(range(layer.experts))


@given(views())
@settings(deadline=None)
def test_the_best_swap_and_copy_are_the_best_of_all(view):
    """The value is that of the new row and no other exchange or copy of the rank is better."""
    free = np.zeros((view.layer.experts + 1, view.layer.ranks), dtype=bool)
    for rank in range(view.layer.ranks):
        for step, every in (
            (view.best_swap(rank, free, 0.0), list(all_swaps(view, rank))),
            (view.best_copy(rank, free, 0.0), list(all_copies(view, rank))),
        ):
            assert (step is None) == (not every)
            if step is not None:
                assert valid(view.layer, taken(view, step))
                assert View(view.layer, taken(view, step)).value == pytest.approx(step.value, rel=1e-5)
                assert step.value == pytest.approx(min(every), rel=1e-5)


def test_a_barred_pair_is_not_created_unless_it_leads_below_the_best():
    """The bar holds against equal or worse maps only."""
    layer = layer_of([9, 5, 4, 1], [2, 2])
    view = View(layer, np.array([0, 1, 2, 3]))
    barred = np.ones((5, 2), dtype=bool)
    assert view.best_swap(0, barred, 0.0) is None
    step = view.best_swap(0, barred, view.value)
    assert step is not None
    assert step.value < view.value


def test_an_empty_slot_takes_an_expert_or_a_copy():
    """A gap is a place to move to."""
    layer = layer_of([6, 3, 3, 4], [3, 2])
    view = View(layer, np.array([0, 1, 2, 3, 4]))
    free = np.zeros((5, 2), dtype=bool)
    move = view.best_swap(0, free, 0.0)
    assert move is not None
    assert (move.slots, move.experts) == ((1, 4), (4, 1))
    copy = view.best_copy(0, free, 0.0)
    assert copy is not None
    assert (copy.slots, copy.experts) == ((4,), (0,))


def test_one_rank_has_no_neighbour():
    """With one rank there is nothing to exchange or to copy."""
    view = View(layer_of([3, 2], [2]), np.array([0, 1]))
    free = np.zeros((3, 1), dtype=bool)
    assert view.best_swap(0, free, 0.0) is None
    assert view.best_copy(0, free, 0.0) is None
