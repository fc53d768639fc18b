"""Replica choice: shares are honoured and engines' rules are theirs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.demo.dispatch import Dispatcher, Source, hash_row, replicas_of

ROW = np.array(
    [0, 1, 2, 0, 3, 4, 0, 5, 6, 7, 1, 2], dtype=np.int32
)  # 4 ranks x 3 slots, expert 0 three times


def dispatcher(rule: str, rank: int = 0, nodes: int = 2, shares: list[float] | None = None) -> Dispatcher:
    """One layer of 8 experts on 4 ranks x 3 slots."""
    made = Dispatcher(rule, Source(rank, 4, nodes, 3), experts=8, layers=1)
    made.rebuild(0, ROW, shares)
    return made


@given(
    weights=st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3),
    rank=st.integers(0, 3),
    batches=st.lists(st.integers(1, 9), min_size=20, max_size=60),
)
def test_each_source_honours_the_shares_at_every_length(weights, rank, batches):
    """However the tokens fall into steps, a replica is never more than 3 tokens from its share."""
    shares = np.zeros(12)
    shares[[0, 3, 6]] = np.array(weights) / sum(weights)
    made = dispatcher("weighted", rank, shares=shares.tolist())
    got = np.zeros(12)
    for rows in batches:
        got += np.bincount(made.choose(0, np.zeros((rows, 1), dtype=np.uint8)).ravel(), minlength=12)
    assert np.abs(got - shares * sum(batches)).max() < 3


def test_sources_are_spread_within_one_step():
    """When each of 4 ranks sends one token to an expert of 3 replicas, they do not meet at one replica."""
    slots = {
        int(dispatcher("weighted", rank).choose(0, np.zeros((1, 1), dtype=np.uint8))[0, 0])
        for rank in range(4)
    }
    assert len(slots) >= 2


@given(
    picks=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    rule=st.sampled_from(["weighted", "hash_row", "nearest"]),
)
def test_every_rule_sends_a_token_to_a_slot_that_holds_its_expert(picks, rule):
    """No rule ever names a slot of another expert."""
    array = np.array(picks, dtype=np.uint8)[:, None]
    assert ROW[dispatcher(rule).choose(0, array)].tolist() == array.tolist()


@pytest.mark.parametrize(
    ("replicas", "rows", "share"),
    [
        (2, 1, 1.00),
        (2, 3, 0.67),
        (2, 8, 0.50),
        (3, 2, 1.00),
        (3, 8, 0.50),
        (3, 64, 0.36),
        (4, 2, 0.50),
        (4, 5, 0.40),
    ],
)
def test_hash_row_gives_the_first_replica_the_share_known_of_the_engine(replicas, rows, share):
    """Shares of replica 0 by batch size, as they are known of vLLM's rule."""
    chosen = hash_row(rows, np.full((rows, 1), replicas))
    assert round(float((chosen == 0).mean()), 2) == share


def test_nearest_prefers_the_own_rank_then_the_own_node_then_deals():
    """Expert 0 lies on ranks 0, 1 and 2, expert 1 on ranks 0 and 3, expert 7 on rank 3 only."""
    to_expert = {
        rank: [
            int(dispatcher("nearest", rank).choose(0, np.array([[e]], dtype=np.uint8))[0, 0])
            for e in (0, 1, 7)
        ]
        for rank in range(4)
    }
    assert to_expert[1] == [3, 1, 9]  # own slot; the one on the node; the only one
    assert to_expert[3] == [6, 10, 9]


def test_unusable_shares_fall_back_to_even_ones():
    """All-zero shares must not send everything to one replica."""
    made = dispatcher("weighted", shares=[0.0] * 12)
    got = np.bincount(made.choose(0, np.zeros((300, 1), dtype=np.uint8)).ravel(), minlength=12)
    assert got[[0, 3, 6]].min() > 90


def test_a_rebuilt_layer_follows_the_new_row():
    """After a switch no token goes to a slot of the old map."""
    made = dispatcher("weighted")
    row = np.roll(ROW, 1)
    made.rebuild(0, row)
    picks = np.arange(8, dtype=np.uint8)[:, None]
    assert row[made.choose(0, picks)].tolist() == picks.tolist()


def test_replicas_are_listed_lowest_slot_first_and_empty_slots_are_left_out():
    """Replica 0 is the lowest slot."""
    assert replicas_of(np.array([1, -1, 0, 1]), 2) == [[2], [0, 3]]
