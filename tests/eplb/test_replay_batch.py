"""The continuous batch under the replay and the demo."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eplb.replay.batch import NOBODY, Batch, Request


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=30), places=st.integers(1, 5))
def test_every_token_is_served_once_and_in_order(lengths, places):
    """Each request runs from its first to its last position on one place, and every place is full while requests wait."""
    waiting = [Request(at, 2, 2 + length) for at, length in enumerate(lengths)]
    batch = Batch(places, lambda: waiting.pop(0) if waiting else None)
    served = []
    while batch.running:
        assert batch.running == places or not waiting
        busy = batch.sequences != NOBODY
        served += list(zip(batch.sequences[busy].tolist(), batch.positions[busy].tolist(), strict=True))
        batch.advance()
    assert sorted(served) == [
        (at, position) for at, length in enumerate(lengths) for position in range(2, 2 + length)
    ]
    for at in range(len(lengths)):
        positions = [position for sequence, position in served if sequence == at]
        assert positions == sorted(positions)


def test_a_place_stays_free_until_somebody_comes():
    """``admit`` may answer None; ``fill`` asks again."""
    waiting = []
    batch = Batch(2, lambda: waiting.pop() if waiting else None)
    assert batch.running == 0
    waiting.append(Request(7, 0, 1))
    batch.fill()
    assert batch.sequences.tolist() == [7, NOBODY]
    batch.advance()
    assert np.all(batch.sequences == NOBODY)
