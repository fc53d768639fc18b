"""Search: walks do not stall, keep every good row on the way, and stay within their budget."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.search import Budget, Track, walk


def walked(layer, row, steps=50, goal=1.0, should_stop=None):
    track = Track(layer, layer.holds(row))
    budget = Budget(steps, should_stop)
    walk(layer, row, track, budget, goal=goal)
    return track, budget


def test_sol_11_two_equally_hot_ranks_do_not_stall_it():
    """SOL-11: ranks at 10, 10, 2, 2 come to at most 7, and the first two exchanges reach it."""
    layer = layer_of([6, 4, 6, 4, 1, 1, 1, 1], [2] * 4)
    row = np.array([0, 1, 2, 3, 4, 5, 6, 7])
    track, _ = walked(layer, row)
    assert min(value for moves, value, _ in track.pareto() if moves <= 4) * 24 / 4 <= 7
    short, _ = walked(layer, row, steps=2)
    assert short.best()[0] * 24 / 4 <= 7


def test_the_start_is_kept_with_zero_moves():
    """The track begins with the row that was given, whatever follows."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    row = np.array([0, 1, 2, 3])
    track, _ = walked(layer, row)
    moves, value, kept = track.pareto()[0]
    assert (moves, value, kept.tolist()) == (0, layer.value(row), row.tolist())


def test_a_walk_ends_at_its_goal_and_at_its_budget():
    """No step is taken once the goal is reached, and none beyond the budget."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    _, at_goal = walked(layer, np.array([0, 3, 1, 2]), steps=9)
    assert at_goal.steps == 9
    _, spent = walked(layer, np.array([0, 1, 2, 3]), steps=3, goal=0.5)
    assert spent.steps == 0
    assert not spent.truncated


def test_should_stop_ends_the_walk_and_is_told():
    """The question is asked before every step."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    answers = iter([False, False, True])
    _, budget = walked(layer, np.array([0, 1, 2, 3]), goal=0.5, should_stop=lambda: next(answers))
    assert budget.truncated
    assert budget.steps == 48


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_the_track_rises_in_moves_and_falls_in_objective(seed):
    """Every kept row is valid, counts its own moves and has the objective it claims."""
    rng = np.random.default_rng(seed)
    layer = layer_of(rng.integers(1, 40, (3, 6)), [3, 3, 2])
    row = np.array([0, 1, 2, 3, 4, 5, 0, 1])
    track, _ = walked(layer, row, steps=25)
    line = track.pareto()
    for (moves, value, kept), (next_moves, next_value, _) in pairwise(line):
        assert moves < next_moves
        assert value > next_value
        assert layer.value(kept) == value
        assert track.moves(kept) == moves
        assert set(kept.tolist()) == set(range(6))
