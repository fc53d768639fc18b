"""From picks to counts: padding, filler, shared experts and bad ids never become load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_examples import pool, recorder

from collectors import Kind, Phase, PoolFacts, StepPicks, count_routed
from collectors.checks import Refusal


def test_col_01_padding_rows_of_a_batch_are_not_load():
    """Only the real rows of a filled-up batch are counted."""
    picks = [[1, 2], [1, 3], [2, 3], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1]]
    counted = count_routed(picks, 4, real_rows=3)
    assert counted.counts.tolist() == [0, 2, 2, 2]
    assert (int(counted.counts.sum()), counted.tokens, counted.padding_rows) == (6, 3, 5)


def test_rows_marked_as_padding_are_not_load():
    """A row of -1 only is padding; a single -1 is a bad id."""
    counted = count_routed([[-1, -1], [0, 1], [2, -1]], 4)
    assert counted.counts.tolist() == [1, 1, 0, 0]
    assert (counted.padding_rows, counted.bad_rows, counted.bad_ids, counted.tokens) == (1, 1, 1, 1)


def test_col_03_a_filler_chunk_is_not_load():
    """A copy of a chunk that only keeps collectives aligned is counted apart."""
    picks = StepPicks(pool(model_layers=(0,), top_k=1))
    chunks = [[0, 0, 1, 2], [3, 3, 1, 0], []]
    for chunk in chunks:
        filler = not chunk
        picks.add(0, np.array(chunk or chunks[0]).reshape(-1, 1), filler=filler)
    assert picks.counts.tolist() == [[3, 2, 1, 2]]
    assert (int(picks.counts.sum()), picks.filler_rows) == (8, 4)


def test_an_empty_chunk_counts_nothing():
    """No rows are no tokens, whatever type an empty list has."""
    counted = count_routed(np.zeros((0, 2)), 4)
    assert (counted.counts.tolist(), counted.tokens) == ([0, 0, 0, 0], 0)


def test_col_06_a_fused_shared_expert_is_counted_apart():
    """Its id lies past the routed experts; an id past both refuses the row without wrap-around."""
    picks = [[1, 5, 8], [2, 5, 8], [7, 0, 8], [9, 0, 8]]
    counted = count_routed(picks, 8, shared_experts=1)
    assert counted.counts.tolist() == [1, 1, 1, 0, 0, 2, 0, 1]
    assert (int(counted.counts.sum()), counted.shared, counted.bad_ids, counted.bad_rows) == (6, 3, 1, 1)
    gathered = StepPicks(pool(experts=8, slots_per_rank=4), shared_experts=1)
    gathered.add(5, picks)
    assert gathered.counts.tolist() == [[0] * 8, [1, 1, 1, 0, 0, 2, 0, 1]]
    assert (gathered.shared.tolist(), gathered.refused["bad_id"]) == ([0, 3], 1)


def test_col_07_counts_without_a_layer_go_to_no_layer():
    """A hook without layer context fills `unattributed`, and a dense layer is refused."""
    picks = StepPicks(pool(model_layers=tuple(range(3, 43)), top_k=1))
    for layer, tokens in ((3, 5), (42, 7), (None, 9), (1, 2)):
        picks.add(layer, np.zeros((tokens, 1), dtype=np.int64))
    per_row = picks.counts.sum(axis=1)
    assert len(per_row) == 40
    assert (per_row[0], per_row[39], per_row.sum()) == (5, 7, 12)
    assert (picks.unattributed, picks.refused["dense_layer"]) == (9, 1)


@pytest.mark.parametrize(
    ("reason", "picks", "real_rows"),
    [
        ("wrong_type", [[0.0, 1.0]], None),
        ("wrong_shape", [0, 1], None),
        ("bad_rows", [[0, 1]], 2),
        ("bad_rows", [[0, 1]], -1),
    ],
)
def test_picks_that_are_none_are_refused_by_name(reason, picks, real_rows):
    """A refusal is a value with a sentence, and gathering counts it."""
    refusal = count_routed(picks, 4, real_rows=real_rows)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    gathered = StepPicks(pool())
    gathered.add(3, picks, real_rows=real_rows)
    assert gathered.refused == {reason: 1}
    assert not gathered.counts.any()


@given(st.data())
def test_counts_conserve_picks(data):
    """Counts plus shared picks are the rows that were counted times k; every row is in one of four heaps."""
    k = data.draw(st.integers(1, 4))
    ids = st.one_of(st.just(-1), st.integers(-3, 12), st.integers(0, 8))
    rows = data.draw(st.lists(st.lists(ids, min_size=k, max_size=k), min_size=1, max_size=10))
    counted = count_routed(rows, 8, real_rows=data.draw(st.integers(0, len(rows))), shared_experts=1)
    assert int(counted.counts.sum()) + counted.shared == counted.tokens * k
    assert counted.tokens + counted.bad_rows + counted.padding_rows == len(rows)
    assert (counted.counts >= 0).all()


def test_gathered_picks_are_what_the_recorder_takes():
    """A forward gathered layer by layer records as one step, and the next one begins at 0."""
    facts = pool()
    rec, picks = recorder(facts=facts), StepPicks(facts)
    for step in range(2):
        for layer in facts.model_layers:
            picks.add(layer, [[0, 1], [2, 3], [0, 3]])
        rec.record_step(step, Phase.DECODE, picks.counts, 3)
        picks.clear()
    assert not rec.refused
    assert rec.snapshot(0).totals[0].counts.tolist() == [[4, 2, 2, 4]] * 2


def test_picks_in_slots_have_the_width_of_the_slots():
    """Physical picks are counted over all slots of the group."""
    picks = StepPicks(pool(), Kind.ROUTED_SLOTS)
    picks.add(3, [[0, 5]])
    assert picks.counts.tolist() == [[1, 0, 0, 0, 0, 1], [0] * 6]


@pytest.mark.parametrize(
    ("layer", "ids", "rows"),
    [(3, [[1], [2, 3]], None), (3, [[1, 2]], 2.5), ([], [[1, 2]], None), (3, object(), None)],
    ids=["ragged", "half a row", "layer that is no number", "no array"],
)
def test_a_hook_that_hands_over_anything_else_is_counted_and_not_raised_at(layer, ids, rows):
    """Nothing that an engine's hook can pass raises; the counts stay as they were."""
    facts = PoolFacts("p", ranks=1, nodes=1, slots_per_rank=4, experts=4, top_k=2, model_layers=(3,))
    picks = StepPicks(facts)
    picks.add(layer, ids, real_rows=rows)
    assert picks.counts.sum() == 0
    assert sum(picks.refused.values()) == 1
