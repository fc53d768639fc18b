"""Two maps of one pool: what differs, and what stays in its slot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.formats.neutral import NeutralMap
from eplb.formats.same_pool import differing_slots, in_place
from placement import Placement


def neutral(rows, ranks=2, experts=None, shares=None):
    table = np.array(rows)
    experts = int(table.max()) + 1 if experts is None else experts
    return NeutralMap(ranks, 1, table.shape[1] // ranks, experts, None, Placement(table, shares))


def rows_of(found):
    return found.placement.physical_to_logical.tolist()


def test_io_04_maps_of_different_pools_are_not_compared():
    """Slots can only differ within one pool."""
    one = neutral([[0, 1, 2, 3]])
    for other, part in (
        (neutral([[0, 1, 2, 3]], ranks=4), "ranks is 2 in one, 4"),
        (neutral([[0, 1, 2, 0]], experts=3), "experts is 4 in one, 3"),
        (neutral([[0, 1, 2, 3]] * 2), "1 layers in one, 2"),
        (neutral([[0, 1, 2, 3, 0, 1]]), "slots_per_rank is 2 in one, 3"),
    ):
        with pytest.raises(FileError, match=part):
            differing_slots(one, other)


def test_staying_experts_keep_their_position():
    """A running engine rejects a layer in which one moves; shares go where their copies go."""
    current = neutral([[0, 1, 2, 3, 0, 1]])
    target = neutral([[2, 0, 3, 1, 0, 2]], shares=[[0.25, 0.5, 1.0, 1.0, 0.5, 0.75]])
    kept = in_place(target, current)
    assert rows_of(kept) == [[0, 3, 2, 2, 0, 1]]
    assert kept.placement.shares.tolist() == [[0.5, 1.0, 0.25, 0.75, 0.5, 1.0]]
    assert rows_of(in_place(current, current)) == rows_of(current)


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_in_place_changes_only_the_order_within_a_rank(seed):
    """Any two maps of one pool: same experts on each rank, and whoever stays keeps the slot."""
    rng = np.random.default_rng(seed)

    def drawn():
        ranks = [rng.permutation(5)[:3] for _ in range(3)]
        return np.concatenate(ranks)

    target, current = (neutral([drawn(), drawn()], ranks=3, experts=5) for _ in range(2))
    kept = in_place(target, current).placement.physical_to_logical.reshape(2, 3, 3)
    was = target.placement.physical_to_logical.reshape(2, 3, 3)
    live = current.placement.physical_to_logical.reshape(2, 3, 3)
    assert (np.sort(kept, axis=2) == np.sort(was, axis=2)).all()
    for layer in range(2):
        for rank in range(3):
            for place, expert in enumerate(live[layer, rank].tolist()):
                assert expert not in was[layer, rank] or kept[layer, rank, place] == expert
