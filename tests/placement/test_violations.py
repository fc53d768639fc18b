"""Placement and violations: any map can be looked at, and each fault is named with its place."""

import numpy as np
import pytest

from placement import MapError, Placement, Topology, violations

PAIR = Topology.uniform(ranks=2, slots_per_rank=2)


def codes(rows, topology=PAIR, experts=None):
    return [
        (v.code, v.layer, v.rank, v.slot, v.expert) for v in violations(Placement(rows), topology, experts)
    ]


def test_a_good_map_has_none():
    """Every expert once a rank at most, all placed, nothing empty."""
    assert codes([[0, 1, 1, 2]], experts=3) == []


def test_each_fault_is_listed_with_its_place():
    """Twins, gaps, unknown ids and lost experts, layer by layer."""
    assert codes([[0, 0, 1, -1], [0, 1, 2, 7]], experts=3) == [
        ("twin", 0, 0, 1, 0),
        ("gap", 0, 1, 3, -1),
        ("missing_expert", 0, -1, -1, 2),
        ("unknown_expert", 1, 1, 3, 7),
    ]


def test_a_dead_rank_serves_nothing():
    """A copy on a dead rank does not count, and its empty slots are no gap."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2, dead=frozenset({1}))
    assert codes([[0, 1, 1, -1]], topology, 2) == [("dead_rank", 0, 1, 2, 1)]


def test_an_empty_slot_that_nothing_can_fill_is_no_gap():
    """A rank that holds every expert may have slots over."""
    assert codes([[0, -1, 0, -1]], experts=1) == []


def test_a_map_of_another_width_is_one_violation():
    """Without a common width no place can be named."""
    assert codes([[0, 1, 2]]) == [("wrong_width", -1, -1, -1, -1)]


@pytest.mark.parametrize(
    ("rows", "shares"),
    [
        ([[0.0, 1.0]], None),
        ([0, 1], None),
        ([[2**40]], None),
        ([[0, 1]], [[1.0]]),
        ([[0, 1]], [[1.0, -0.5]]),
        ([[0, 1]], [[1.0, float("nan")]]),
    ],
)
def test_what_is_not_a_map_is_refused(rows, shares):
    """Floats, wrong dimensions, ids outside int32 and impossible shares are a MapError."""
    with pytest.raises(MapError):
        Placement(rows, shares)


def test_replicas_counts_copies_by_layer():
    """Unknown and empty slots are not counted."""
    assert Placement([[0, 0, 1, -1], [2, 2, 2, 9]]).replicas(3).tolist() == [[2, 1, 0], [0, 0, 3]]


def test_a_map_is_int32_and_read_only():
    """The solver's and the file's maps cannot be written to."""
    rows = Placement(np.zeros((1, 2), dtype=np.int64)).physical_to_logical
    assert rows.dtype == np.int32
    assert not rows.flags.writeable
