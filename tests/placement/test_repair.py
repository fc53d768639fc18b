"""Repair: live maps are read as they are and mended with few changes, each told."""

import numpy as np
from hypothesis import given, settings
from solver_inputs import layer_of, one_slice, problems_with_map

from placement import Limits, LoadTrace, Placement, Topology, solve, violations
from placement.repair import mend, read_row


def codes(result):
    return [reason.code for reason in result.reasons]


def test_a_good_row_is_left_alone():
    """Nothing to mend, nothing changed."""
    layer = layer_of([5, 4, 3, 2], [2, 2])
    assert mend(layer, np.array([0, 3, 1, 2])).tolist() == [0, 3, 1, 2]


def test_the_first_twin_stays_and_the_second_makes_room():
    """The lost expert takes the second twin's slot; every other slot is kept."""
    layer = layer_of([5, 4, 3], [2, 2])
    assert mend(layer, np.array([0, 0, 1, 0])).tolist() == [0, 2, 1, 0]


def test_a_lost_expert_takes_the_place_of_the_copy_that_burdens_least():
    """Without an empty slot the coldest copy goes."""
    layer = layer_of([50, 4, 3], [2, 2])
    assert mend(layer, np.array([0, 1, 0, 1])).tolist() == [0, 2, 0, 1]


def test_a_gap_gets_the_hottest_expert_that_does_not_make_its_rank_the_hottest():
    """The empty slot relieves the hot rank."""
    layer = layer_of([10, 4, 1], [2, 2])
    assert mend(layer, np.array([0, 1, 2, 3])).tolist() == [0, 1, 2, 0]


def test_unknown_ids_and_dead_slots_are_read_as_nothing():
    """Only live slots are read, and ids outside the model are empty."""
    row = read_row(np.array([0, 9, -1, 1, -7], dtype=np.int32), np.array([0, 1, 3, 4]), 2)
    assert row.tolist() == [0, 2, 1, 2]


def test_pln_09_a_dead_rank_is_evacuated_and_the_lost_expert_is_told():
    """PLN-09: only ranks 0, 1, 3 are used, all experts are placed, and expert 7 must be loaded again."""
    topology = Topology.uniform(ranks=4, slots_per_rank=3, dead=frozenset({2}))
    current = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 3, 6]]
    result = solve(one_slice([4] * 8), topology, current)
    row = result.placement.physical_to_logical[0]
    assert row[6:9].tolist() == [-1, -1, -1]
    assert set(row[row >= 0].tolist()) == set(range(8))
    (reload,) = [reason for reason in result.reasons if reason.code == "reload"]
    assert reload.places == ((0, 7),)
    assert "repaired_dead_rank" in codes(result)
    assert violations(result.placement, topology, 8) == []


def test_pln_11_a_dead_rank_is_evacuated_without_any_load_and_nothing_else_moves():
    """PLN-11: counts may be missing just then; the plan repairs, optimises nothing and says no_data."""
    topology = Topology.uniform(ranks=4, slots_per_rank=3, dead=frozenset({1}))
    current = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 6]]
    result = solve(LoadTrace(np.zeros((1, 1, 8), dtype=np.int64)), topology, current)
    assert violations(result.placement, topology, 8) == []
    assert "no_data" in codes(result)
    assert [point.moves for point in result.frontier] == [3]  # experts 3, 4 and 5 had no other copy
    assert result.moves == 3


def test_repairs_are_counted_as_moves_and_told():
    """Twin, gap, unknown id and lost expert each give a reason; the moves are the slots that changed."""
    topology = Topology.uniform(ranks=2, slots_per_rank=3)
    result = solve(one_slice([3, 3, 3, 3]), topology, [[0, 0, 1, 2, -1, 8]])
    assert {"repaired_twin", "repaired_gap", "repaired_unknown_expert", "repaired_missing_expert"} <= set(
        codes(result)
    )
    assert result.frontier[0].moves == 3
    assert result.moves >= 3


def test_repairs_are_made_even_above_the_limit_of_moves():
    """A broken map is not left broken to save moves, and the result says so."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2)
    result = solve(one_slice([3, 3, 3, 3]), topology, [[0, 0, 1, 2]], limits=Limits(moves=0))
    assert result.moves == 1
    assert "repairs_exceed_moves" in codes(result)
    assert violations(result.placement, topology, 4) == []


def test_a_broken_layer_without_load_is_repaired_too():
    """No data is no reason to leave an expert without a slot."""
    topology = Topology.uniform(ranks=2, slots_per_rank=2)
    result = solve(LoadTrace(np.zeros((1, 1, 4), dtype=np.int64)), topology, [[0, 0, 1, 2]])
    assert result.placement.physical_to_logical.tolist() == [[0, 3, 1, 2]]
    assert {"no_data", "repaired_twin"} <= set(codes(result))


@given(problems_with_map())
@settings(deadline=None, max_examples=100)
def test_a_mended_row_has_no_violations_and_keeps_every_good_slot(case):
    """For any live row: valid afterwards, and a slot that was good and not needed for a lost expert stays."""
    topology, trace, rows = case
    small, live_slots = topology.live()
    layer = layer_of(trace.tokens[:, 0], small.slots_of_rank, small.speeds)
    row = read_row(rows[0].astype(np.int32), live_slots, trace.experts)
    mended = mend(layer, row)
    shown = Placement(np.where(mended == trace.experts, -1, mended)[None])
    assert violations(shown, small, trace.experts) == []
    lost = trace.experts - len(set(row.tolist()) - {trace.experts})
    pairs = list(zip(layer.rank_of_slot.tolist(), row.tolist(), strict=True))
    good = [slot for slot, pair in enumerate(pairs) if pair[1] < trace.experts and pair not in pairs[:slot]]
    assert sum(int(mended[slot] != row[slot]) for slot in good) <= lost
