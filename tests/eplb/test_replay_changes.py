"""What a change of map brings to the ranks."""

import numpy as np
import pytest

from eplb.replay.changes import Undone, holds, stall_s
from eplb.start_map import start_map
from placement import Topology

TOPOLOGY = Topology.uniform(ranks=2, slots_per_rank=2)


def held(*rows):
    return holds(np.array(rows, dtype=np.int32), 3, TOPOLOGY)


def test_engines_start_with_experts_in_order_over_and_over():
    """Redundant slots begin again at expert 0."""
    assert start_map(1, 3, TOPOLOGY.slots).tolist() == [[0, 1, 2, 0]]


def test_a_rank_holds_an_expert_once_whatever_its_slots():
    """Twins and empty slots are allowed in a map."""
    assert held([0, 0, 2, -1])[0].tolist() == [[True, False, False], [False, False, True]]


def test_layers_arrive_one_after_the_other_each_as_long_as_its_busiest_rank():
    """Two layers with at most 3 and 1 arrivals of 10 bytes over 20 bytes a second."""
    assert stall_s(np.array([[3, 2], [0, 1]]), 10, 20.0) == pytest.approx(4 * 10 / 20)


def test_a_move_is_undone_when_its_expert_leaves_the_rank_again_in_time():
    """Within 2 windows: there, back (2 moves undone) and there again (2 more); what leaves after 5 windows is a new decision."""
    undone, a, b = Undone(2), held([0, 1, 2, 0]), held([0, 2, 2, 1])
    undone.note(1, a, b)
    assert undone.count == 0
    undone.note(3, b, a)
    assert undone.count == 2
    undone.note(4, a, b)
    assert undone.count == 4
    undone.note(9, b, a)
    assert undone.count == 4
