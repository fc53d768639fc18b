"""The compiled search: what it stores stays what the row says, and what it weighs is what a change leads to."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement import kernel
from placement.kernel import ARRIVALS, COOLING, SPARE, TEMPERATURE, VALUE
from placement.kernel_anneal import anneal, level
from placement.kernel_moves import weigh_copy, weigh_swap
from placement.kernel_state import make_state
from placement.packing import pack
from placement.replicas import replica_counts


@st.composite
def states(draw, live=False):
    """A packed layer of uneven ranks and speeds, with few slices (float64) or many (float32), and its state."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks = draw(st.integers(2, 4))
    sizes = rng.integers(1, 5, ranks).tolist()
    experts = min(draw(st.integers(2, 9)), sum(sizes))
    speeds = tuple(rng.choice([0.5, 1.0, 2.0], ranks).tolist())
    slices = draw(st.sampled_from([1, 3, 9]))
    layer = layer_of(rng.integers(0, 50, (slices, experts)) + 1, sizes, speeds)
    loads = layer.loads[:, :-1].mean(axis=0)
    row = pack(layer, replica_counts(loads, layer.capacity()), loads)
    kept = layer.slots if live else 0
    return layer, make_state(layer, row, seed=draw(st.integers(0, 99)), live=row if live else None, kept=kept)


def smooth(layer, row):
    """The smooth maximum, from nothing but the formula."""
    return float((((layer.costs(row) ** 16).sum(axis=1)) ** (1 / 16) * layer.weights).sum())


def valid(layer, row):
    pairs = [
        (r, e) for r, e in zip(layer.rank_of_slot.tolist(), row.tolist(), strict=True) if e < layer.experts
    ]
    return len(pairs) == len(set(pairs)) and {e for _, e in pairs} == set(range(layer.experts))


def close(state):
    return 1e-9 if state.loads.dtype == np.float64 else 1e-4


def close_after(layer, state, new):
    """``close``, and what is lost when the 16th powers of hot ranks are taken off a total in the state's digits."""
    old, left = ((layer.costs(row) ** 16).sum(axis=1) for row in (state.row, new))
    return close(state) + np.finfo(state.loads.dtype).eps * (old / left).max()


@given(states(live=True))
@settings(deadline=None)
def test_after_any_proposals_the_state_is_that_of_its_row(case):
    """Costs, powers, counts, holders, spare slots, blocked pairs, arrivals and value equal a fresh state's."""
    layer, state = case
    first = state.row.copy()
    state.now[[TEMPERATURE, COOLING]] = 0.5, 1.0
    anneal(state, 300, len(layer.weights), 100, 20)
    assert valid(layer, state.row)
    again = make_state(layer, state.row, seed=0, live=first, kept=layer.slots)
    for name in ("cost", "unit", "total"):
        assert np.allclose(getattr(state, name), getattr(again, name), rtol=close(state), atol=close(state))
    for name in ("counts", "blocked", "home"):
        assert getattr(state, name).tolist() == getattr(again, name).tolist()
    assert [state.clock[at] for at in (ARRIVALS, SPARE)] == [again.clock[at] for at in (ARRIVALS, SPARE)]
    assert {*state.spare[: state.clock[SPARE]]} == {*again.spare[: again.clock[SPARE]]}
    for expert in range(layer.experts):
        at, copies = expert * layer.ranks, state.counts[expert]
        assert sorted(state.holders[at : at + copies]) == sorted(again.holders[at : at + copies])
    assert state.now[VALUE] == pytest.approx(smooth(layer, state.row), rel=close(state))


@given(states(live=True))
@settings(deadline=None)
def test_kept_rows_have_the_moves_and_the_value_they_are_kept_for(case):
    """Of few slices the objective itself, of many the smooth maximum."""
    layer, state = case
    first = state.row.copy()
    state.now[[TEMPERATURE, COOLING]] = 0.2, 1.0
    anneal(state, 300, len(layer.weights), 100, 20)
    measure = layer.value if len(layer.weights) < kernel.FEW_SLICES else lambda row: smooth(layer, row)
    for moves in np.flatnonzero(np.isfinite(state.kept_values)):
        row = state.kept_rows[moves].astype(np.int64)
        assert valid(layer, row)
        assert (layer.holds(row) & ~layer.holds(first)).sum() == moves
        assert state.kept_values[moves] == pytest.approx(measure(row), rel=close(state))


@given(states())
@settings(deadline=None)
def test_a_weighed_swap_leads_to_the_value_it_says(case):
    """Every legal exchange of two slots."""
    layer, state = case
    for slot, one in enumerate(state.row.tolist()):
        for other, two in enumerate(state.row.tolist()):
            new = state.row.copy()
            new[[slot, other]] = two, one
            ranks = layer.rank_of_slot[[slot, other]]
            if ranks[0] != ranks[1] and one != two and valid(layer, new):
                value = weigh_swap(state, int(ranks[0]), int(ranks[1]), one, two)
                assert value == pytest.approx(smooth(layer, new), rel=close_after(layer, state, new))


@given(states())
@settings(deadline=None)
def test_a_weighed_copy_leads_to_the_value_it_says(case):
    """Every legal new copy, on ranks that hold both experts too."""
    layer, state = case
    for slot in range(layer.slots):
        for comes in range(layer.experts):
            new = state.row.copy()
            new[slot] = comes
            if new[slot] != state.row[slot] and valid(layer, new):
                value = weigh_copy(state, slot, comes)
                assert value == pytest.approx(smooth(layer, new), rel=close_after(layer, state, new))


def test_forbidden_pairs_are_never_created():
    """An expert that has a home node never leaves it."""
    layer, state = _with_homes()
    state.now[[TEMPERATURE, COOLING]] = 5.0, 1.0
    anneal(state, 2000, 1, 100, 0)
    nodes = layer.node_of_rank[layer.rank_of_slot]
    assert (nodes == layer.home[state.row]).all()
    assert state.clock[kernel.VERSION] > 100


def _with_homes():
    layer = layer_of([1, 2, 3, 4, 5, 6], [2, 2, 2, 2])
    home = np.array([0, 0, 0, 1, 1, 1])
    layer = replace(layer, node_of_rank=np.array([0, 0, 1, 1]), home=home)
    return layer, make_state(layer, np.array([0, 1, 2, 0, 3, 4, 5, 3]), seed=1)


def test_sol_11_levelling_passes_ties_between_hottest_ranks():
    """SOL-11: 10, 10, 2, 2 comes to 7 or less in two swaps."""
    layer = layer_of([6, 4, 6, 4, 1, 1, 1, 1], [2] * 4)
    state = make_state(layer, np.arange(8), seed=0)
    level(state, 2)
    assert layer.value(state.kept_rows[0].astype(np.int64)) * 24 / 4 <= 7


@given(states())
@settings(deadline=None)
def test_levelling_never_heats_the_hottest_rank(case):
    """One slice: every swap leaves both its ranks below the old maximum, and no such swap is left at the end."""
    layer, state = case
    if len(layer.weights) > 1:
        return
    before = layer.value(state.row)
    level(state, 1000)
    assert valid(layer, state.row)
    assert layer.value(state.row) <= before + 1e-12
    assert level(state, 1) == 0


def test_the_random_numbers_are_splitmix64():
    """Published values for seed 1234567."""
    random = np.array([1234567], dtype=np.uint64)
    got = [int(kernel.draw(random)) for _ in range(3)]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("rise", [0.0, 0.1, 0.5, 1.0, 3.0])
def test_a_rise_is_taken_about_as_often_as_boltzmann_says(rise):
    """Chance exp(-rise) at temperature 1, within 3 standard deviations of 20 000 draws and the form's own 2 %."""
    random = np.array([7], dtype=np.uint64)
    taken = sum(kernel.accepts(rise, 1.0, np.uint64(kernel.draw(random))) for _ in range(20_000)) / 20_000
    want = math.exp(-rise)
    assert abs(taken - want) <= 3 * math.sqrt(want * (1 - want) / 20_000) + 0.02 * want


def test_a_fall_is_always_taken_and_a_huge_rise_never():
    """Also at temperature 0."""
    bits = np.uint64(2**63)
    assert kernel.accepts(-1.0, 0.0, bits)
    assert not kernel.accepts(1e9, 1e-9, bits)
    assert not kernel.accepts(1.0, 0.0, np.uint64(0))


@pytest.mark.parametrize("size", [1, 7, 8, 48])
def test_the_ordered_sum_is_a_sum(size):
    """Fixed order, same total."""
    values = np.random.default_rng(size).random(size)
    assert kernel.ordered(values, np.uintp(size)) == pytest.approx(math.fsum(values), rel=1e-14)
