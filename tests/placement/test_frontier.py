"""Frontier: all layers' paths make one line of maps, best gain per move first."""

import numpy as np
import pytest
from solver_inputs import layer_of

from placement.frontier import Path, Stop, merge

LAYER = layer_of([4, 3, 2, 1], [2, 2])
ROWS = [np.array(row) for row in ([0, 1, 2, 3], [0, 2, 1, 3], [0, 3, 1, 2])]


def path(*stops):
    return Path(
        LAYER, ROWS[0], tuple(Stop(moves, value, ROWS[at]) for at, (moves, value) in enumerate(stops))
    )


def line(paths, weights=None):
    share = np.full(len(paths), 1 / len(paths)) if weights is None else np.array(weights)
    return merge(tuple(paths), share, np.arange(4), 4)


def test_the_layer_that_gains_most_per_move_goes_first():
    """Layer 1 gains 0.4 a move, layer 0 gains 0.1 a move."""
    frontier = line([path((0, 1.5), (2, 1.3)), path((0, 1.9), (1, 1.5))])
    assert frontier.choice.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert frontier.moves.tolist() == [0, 1, 3]
    assert frontier.objective == pytest.approx([1.7, 1.5, 1.4])


def test_a_stop_above_the_hull_is_passed_on_the_way():
    """A small first gain that leads to a large one is kept, in order, and does not delay the large one."""
    frontier = line([path((0, 1.5), (1, 1.49), (2, 1.0)), path((0, 1.4), (1, 1.3))])
    assert frontier.choice.tolist() == [[0, 0], [1, 0], [2, 0], [2, 1]]


def test_weights_of_layers_set_the_order():
    """A layer that counts nothing comes last."""
    frontier = line([path((0, 3.0), (1, 1.0)), path((0, 1.4), (1, 1.3))], [0.0, 1.0])
    assert frontier.choice.tolist() == [[0, 0], [0, 1], [1, 1]]
    assert frontier.objective.tolist() == [1.4, 1.3, 1.3]


def test_within_and_cheapest_pick_points():
    """The last point that is affordable; the first that is good enough, or else the last allowed."""
    frontier = line([path((1, 1.5), (3, 1.3), (4, 1.2))])
    assert [frontier.within(moves) for moves in (0, 1, 3, 9)] == [0, 0, 1, 2]
    assert frontier.cheapest(1.3, 2) == 1
    assert frontier.cheapest(1.3, 0) == 0


def test_every_point_is_a_map_in_the_terms_of_the_live_one():
    """Kept experts keep their slot; shares are 1 over the copies."""
    placement = line([path((0, 1.5), (2, 1.3), (4, 1.1))]).placement(2)
    assert placement.physical_to_logical.tolist() == [[0, 3, 2, 1]]
    assert placement.shares is not None
    assert placement.shares.tolist() == [[1.0] * 4]
