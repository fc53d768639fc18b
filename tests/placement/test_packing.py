"""Packing: copies land once a rank, slots are exact, and dead ends are opened."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import layer_of

from placement.packing import pack
from placement.replicas import replica_counts


def packed(layer):
    loads = layer.loads[:, :-1].mean(axis=0)
    return pack(layer, replica_counts(loads, layer.capacity()), loads)


def test_sol_01_no_rank_gets_a_copy_twice():
    """SOL-01: the hot expert's two copies land on two ranks."""
    row = packed(layer_of([16, 38, 35, 9], [2, 2, 2])).reshape(3, 2)
    assert all(len(set(rank.tolist())) == 2 for rank in row)
    assert set(row.ravel().tolist()) == {0, 1, 2, 3}


def test_experts_that_peak_together_are_kept_apart():
    """Two experts of equal sums: those of the same slices go to different ranks."""
    loads = [[10, 10, 0, 0], [0, 0, 10, 10]]
    row = packed(layer_of(loads, [2, 2])).reshape(2, 2)
    assert {frozenset(rank.tolist()) for rank in row} <= {
        frozenset(p) for p in ((0, 2), (0, 3), (1, 2), (1, 3))
    }


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
@settings(deadline=None)
def test_every_packing_is_exact(seed, ranks, slots, experts):
    """Full slots, no twins, every expert placed, for any counts that the greedy gives, on uneven ranks too."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, slots + 1, ranks)
    experts = min(experts, int(sizes.sum()))
    layer = layer_of(rng.integers(0, 9, (2, experts)), sizes.tolist())
    row = packed(layer)
    for rank, capacity in enumerate(layer.capacity()):
        held = row[layer.rank_of_slot == rank]
        held = held[held < experts]
        assert len(held) == len(set(held.tolist())) == capacity
    assert set(row.tolist()) >= set(range(experts))


def test_a_dead_end_is_opened_by_an_exchange():
    """The last copies meet a rank that holds them already: a placed copy makes way and all counts still fit."""
    layer = layer_of([[1, 9, 9, 9, 9, 9]], [3, 3, 3])
    counts = np.array([3, 1, 1, 1, 1, 2])
    row = pack(layer, counts, np.array([1.0, 50.0, 40.0, 30.0, 20.0, 10.0]))
    assert np.bincount(row, minlength=6).tolist() == counts.tolist()
    assert all(len(set(rank.tolist())) == 3 for rank in row.reshape(3, 3))
