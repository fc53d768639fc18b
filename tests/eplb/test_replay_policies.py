"""The policies that need no daemon."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.replay.changes import holds
from eplb.replay.policies import EveryN, Never, Oracle, greedy_row, onto
from eplb.replay.schedule import Steps
from placement import Topology

TOPOLOGY = Topology.uniform(ranks=2, slots_per_rank=2)
START = np.array([[0, 1, 2, 3]], dtype=np.int32)
SWAPPED = np.array([[0, 2, 1, 3]], dtype=np.int32)


def window(index):
    tokens = np.full((2, 1, 1, 4), index, dtype=np.int64)
    return Steps(index, 2 * index, tokens, tokens.sum(axis=(2, 3)), np.arange(2))


def test_never_keeps_the_map_of_the_start():
    """Whatever it serves."""
    policy = Never(START)
    policy.seen(window(0))
    assert policy.map_for(window(1)) is START


def test_every_n_plans_on_the_newest_windows_and_never_on_the_one_to_come():
    """Every 3 windows from a memory of 2: windows 1 and 2 before window 3, windows 4 and 5 before window 6."""
    asked = []

    def plan(slices):
        asked.append(slices[:, 0, 0].tolist())
        return SWAPPED

    policy = EveryN("every:3", plan, START, TOPOLOGY, every=3, memory=2)
    maps = []
    for index in range(7):
        maps.append(policy.map_for(window(index)).tolist())
        policy.seen(window(index))
    assert asked == [[1, 1, 2, 2], [4, 4, 5, 5]]
    assert maps[:3] == [START.tolist()] * 3
    assert holds(np.array(maps[3]), 4, TOPOLOGY).sum() == 4


def test_the_oracle_plans_on_the_very_load_that_it_serves():
    """Which is why its moves are free and its ratio is no promise."""
    asked = []
    policy = Oracle(lambda slices: asked.append(slices[0, 0, 0]) or SWAPPED)
    assert policy.map_for(window(5)) is SWAPPED
    assert asked == [5]
    assert policy.free


@given(seed=st.integers(0, 50), ranks=st.integers(2, 5))
def test_a_fresh_map_that_only_names_ranks_otherwise_moves_nothing(seed, ranks):
    """``onto`` finds the renaming, and never changes who lies together."""
    rng = np.random.default_rng(seed)
    topology = Topology.uniform(ranks=ranks, slots_per_rank=3)
    live = rng.permutation(3 * ranks).astype(np.int32)[None]
    renamed = live.reshape(ranks, 3)[rng.permutation(ranks)].reshape(1, -1)
    slices = np.ones((1, 1, 3 * ranks), dtype=np.int64)
    assert onto(live, renamed, slices, topology).tolist() == live.tolist()


def test_greedy_gives_copies_to_the_hottest_and_packs_the_heaviest_first():
    """Loads 10, 6, 3, 1 on 6 slots: copies 2, 2, 1, 1; ranks of 3 slots get 5 + 3 + 3 and 5 + 3 + 1."""
    row = greedy_row(np.array([10.0, 6.0, 3.0, 1.0]), ranks=2, slots_per_rank=3)
    assert np.bincount(row).tolist() == [2, 2, 1, 1]
    assert sorted(sum({0: 5, 1: 3, 2: 3, 3: 1}[e] for e in part) for part in row.reshape(2, 3).tolist()) == [
        9,
        11,
    ]


@pytest.mark.parametrize("rows", [[[0, 0, 1, 2]], [[0, -1, 1, 2]]])
def test_twins_and_empty_slots_are_kept(rows):
    """A published balancer may leave them, and they are its own to answer for."""
    fresh = np.array(rows, dtype=np.int32)
    named = onto(START, fresh, np.ones((1, 1, 4), dtype=np.int64), TOPOLOGY)
    assert sorted(named[0].tolist()) == sorted(fresh[0].tolist())
