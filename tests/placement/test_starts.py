"""Starts: one packed row, and for a coarse layer one for every number of copies of its hottest expert."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.starts import FEW_SLOTS, coarse, packed, starts


def copies_of(layer, rows, expert):
    return [int(layer.replicas(row)[expert]) for row in rows]


@given(st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=4))
@settings(deadline=None, max_examples=50)
def test_every_start_is_valid_and_its_counts_are_its_own(seed, sizes):
    """Each expert is somewhere, none twice on a rank, every slot that can be filled is; no two rows have equal counts."""
    rng = np.random.default_rng(seed)
    layer = layer_of(rng.integers(1, 50, rng.integers(1, sum(sizes) + 1)), sizes)
    rows = starts(layer)
    for row in rows:
        held = layer.holds(row)
        assert held[:-1].any(axis=1).all()
        assert held.sum() == (row < layer.experts).sum() == layer.capacity().sum()
    assert len({tuple(layer.replicas(row).tolist()) for row in rows}) == len(rows)
    assert rows[0].tolist() == packed(layer).tolist()


def test_a_dominant_expert_starts_with_every_number_of_copies():
    """16 experts on 4 ranks of 5 slots: 4 spare slots give it up to 4 copies, as many as there are ranks."""
    layer = layer_of([90, *range(1, 16)], [5] * 4)
    assert sorted(set(copies_of(layer, starts(layer), 0))) == [1, 2, 3, 4]


@pytest.mark.parametrize(("slices", "slots"), [(2, 5), (1, FEW_SLOTS // 4 + 1)])
def test_several_slices_or_many_slots_start_once(slices, slots):
    """There annealing itself moves copies in steps that are small."""
    layer = layer_of(np.arange(1, 16 * slices + 1).reshape(slices, 16), [slots] * 4)
    assert not coarse(layer)
    assert len(starts(layer)) == 1
