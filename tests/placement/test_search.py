"""Search: it ends at its goal and within its budget, keeps every good row, and pays for moves only what they are worth."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.search import GAIN, Halt, Task, Track, cool_down, proposals, walk_away, walk_back


def task(count=3000, goal=1.0, evaluations=10**9, ask=None):
    return Task(count, evaluations, goal, 0, Halt(ask))


def walked(layer, row, **options):
    track = Track(layer, layer.holds(row))
    track.note(row, layer.value(row))
    walk_away(row, track, row, task(**options))
    return track


def test_sol_11_two_equally_hot_ranks_do_not_stall_it():
    """SOL-11: ranks at 10, 10, 2, 2 come to at most 7 in two exchanges, which are four moves."""
    layer = layer_of([6, 4, 6, 4, 1, 1, 1, 1], [2] * 4)
    track = walked(layer, np.arange(8))
    assert min(value for moves, value, _ in track.pareto() if moves <= 4) * 24 / 4 <= 7


def test_the_start_is_kept_with_zero_moves():
    """The track begins with the row that was given, whatever follows."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    row = np.array([0, 1, 2, 3])
    moves, value, kept = walked(layer, row).pareto()[0]
    assert (moves, value, kept.tolist()) == (0, layer.value(row), row.tolist())


def test_a_row_at_its_goal_is_left_alone():
    """Nothing is searched once the goal is reached."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    row = np.array([0, 1, 2, 3])
    assert cool_down(layer, [row], task(goal=2.0)).tolist() == row.tolist()
    assert layer.value(cool_down(layer, [row], task())) == 1.0


def test_without_proposals_or_evaluations_nothing_moves():
    """The budget of a search counts both."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    row = np.array([0, 1, 2, 3])
    assert cool_down(layer, [row], task(count=0, evaluations=0)).tolist() == row.tolist()
    assert len(walked(layer, row, count=0).rows) == 1


def test_halt_asks_until_the_first_yes():
    """A yes stays a yes, and is remembered."""
    answers = iter([False, True, False])
    halt = Halt(lambda: next(answers))
    assert [bool(halt) for _ in range(3)] == [False, True, True]
    assert halt.asked
    assert not Halt(None)


def test_a_halted_search_returns_what_it_has():
    """Asked before the first proposal: the row as it was."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    row = np.array([0, 1, 2, 3])
    assert cool_down(layer, [row], task(ask=lambda: True)).tolist() == row.tolist()


def test_efforts_rise_and_many_slices_cost_proposals():
    """fast < normal < thorough; of 128 slices half as many as of 64."""
    few, many = (layer_of(np.ones((slices, 4)), [2, 2]) for slices in (64, 128))
    counts = [proposals(few, effort, cold=True) for effort in ("fast", "normal", "thorough")]
    assert counts == sorted(set(counts))
    assert proposals(many, "normal", cold=True) * 2 == counts[1]


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 9]))
@settings(deadline=None, max_examples=30)
def test_the_track_rises_in_moves_and_falls_in_objective(seed, slices):
    """Every kept row is valid, counts its own moves and has the objective it claims, walking away and back."""
    rng = np.random.default_rng(seed)
    layer = layer_of(rng.integers(1, 40, (slices, 6)), [3, 3, 2])
    row = np.array([0, 1, 2, 3, 4, 5, 0, 1])
    track = walked(layer, row)
    walk_back(cool_down(layer, [row], task()), track, row, task())
    line = track.pareto()
    for (moves, value, _), (next_moves, next_value, _) in pairwise(line):
        assert moves < next_moves
        assert value > next_value + GAIN / 2
    for moves, value, kept in line:
        assert layer.value(kept) == value
        assert track.moves(kept) == moves
        assert set(kept.tolist()) == set(range(6))


def test_few_moves_mend_small_noise():
    """From a levelled map under 2 % noise, a sixth of the slots bring back what the noise cost."""
    rng = np.random.default_rng(5)
    loads = np.rint(1e5 * rng.lognormal(0, 0.5, 64))
    even = layer_of(loads, [9] * 8)
    row = cool_down(even, [np.arange(72) % 64], task(count=20_000))
    layer = layer_of(np.rint(loads * np.exp(0.02 * rng.standard_normal(64))), [9] * 8)
    track = walked(layer, row, count=100_000)
    assert layer.value(row) > 1.005
    assert min(moves for moves, value, _ in track.pareto() if value <= 1.005) <= 12


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_rank_or_one_slot_each_has_nothing_to_search(ranks):
    """No exchange helps: the row comes back."""
    layer = layer_of([3, 2], [2] if ranks == 1 else [1, 1])
    row = np.array([0, 1])
    assert cool_down(layer, [row], task()).tolist() == [0, 1]
    assert list(walked(layer, row).rows) == [0]
