"""The continuous batch: deterministic, dropless, and no sequence twice."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.demo.batch import Batch
from eplb.demo.errors import SequencesUsedUp
from eplb.demo.routing import Routing


def routing(first: list[int], second: list[int]) -> Routing:
    """Routing of two domains whose sequences have the given lengths."""
    lengths = np.array([*first, *second])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    picks = np.zeros((int(offsets[-1]), 1, 1), dtype=np.uint8)
    domain_of = np.array([0] * len(first) + [1] * len(second), dtype=np.int8)
    return Routing("test", picks, offsets, domain_of, ("law", "science"), (0,), 2)


def served(batch: Batch, steps: int, shift_step: int = -1) -> list[list[tuple[int, int]]]:
    """(sequence, position) of every request, step by step."""
    result = []
    for step in range(steps):
        if step:
            batch.advance()
        if step == shift_step:
            batch.shift()
        tokens = batch.tokens()
        result.append(list(zip(tokens.sequences.tolist(), tokens.positions.tolist(), strict=True)))
    return result


LENGTHS = st.lists(st.integers(1, 9), min_size=60, max_size=60)


@given(first=LENGTHS, second=LENGTHS, shift_step=st.integers(1, 12), seed=st.integers(0, 5))
def test_no_token_is_served_twice_and_every_sequence_runs_from_its_start_to_its_end(
    first, second, shift_step, seed
):
    """Over any run each sequence gives its tokens once, in order and without a gap, to one request."""
    pool = routing(first, second)
    steps = served(Batch(pool, 4, seed), 14, shift_step)
    seen = [token for step in steps for token in step]
    assert len(seen) == len(set(seen))
    for request in range(4):
        for before, after in pairwise([step[request] for step in steps]):
            ended = before[1] + 1 == pool.length(before[0])
            assert after[1] == 0 if ended else after == (before[0], before[1] + 1)


def test_two_batches_with_one_seed_and_one_shift_are_equal():
    """Every process follows the batch by itself, so equal seeds must give equal tokens."""
    pool = routing([3, 5, 2, 7] * 20, [4, 6] * 30)
    assert served(Batch(pool, 8, 3), 20, 5) == served(Batch(pool, 8, 3), 20, 5)
    assert served(Batch(pool, 8, 3), 20, 5) != served(Batch(pool, 8, 4), 20, 5)


def test_requests_in_flight_at_the_shift_run_to_their_end():
    """After the shift only ended requests are replaced, by sequences of the second domain."""
    batch = Batch(routing([6] * 40, [6] * 40), 4, 0)
    steps = served(batch, 12, shift_step=2)
    assert steps[5] == [(sequence, 5) for sequence, _ in steps[0]]
    assert all(sequence >= 40 for sequence, _ in steps[6])
    assert all(sequence >= 40 for sequence, _ in steps[-1])


def test_an_empty_domain_is_an_error_that_names_it_and_nothing_is_replayed():
    """Running out says which domain ran out, when, and what to do."""
    batch = Batch(routing([2] * 5, [2] * 9), 4, 0)
    with pytest.raises(SequencesUsedUp, match=r"all 5 sequences of 'law' were used by step 2.*longer trace"):
        served(batch, 10)


def test_a_request_lives_on_rank_request_modulo_ranks():
    """The ranks' parts are disjoint and together the whole batch."""
    tokens = Batch(routing([9] * 10, [9]), 8, 0).tokens()
    parts = [tokens.of_rank(rank, 3) for rank in range(3)]
    assert [len(part.sequences) for part in parts] == [3, 3, 2]
    assert parts[1].sequences.tolist() == tokens.sequences[[1, 4, 7]].tolist()
