"""Rules of the bounded sample."""

from collections import Counter

import numpy as np
import pytest
from history_world import SHAPE

from eplb.history.moments import MOMENT_MS, MOMENT_STEPS
from eplb.history.reservoir import FIRST_BAND_MS, Reservoir

WEEK_MS = 7 * 86_400_000


def reservoir(most_moments=64, most_bytes=10**9, keep_ms=WEEK_MS, seed=0):
    return Reservoir(SHAPE, most_moments=most_moments, most_bytes=most_bytes, keep_ms=keep_ms, seed=seed)


def add(kept, minute, steps, run_id=9):
    """Steps of one minute, their numbers as counts."""
    numbers = np.array(steps, dtype=np.int64)
    tokens = np.ones((len(steps), *SHAPE), dtype=np.int64) * (1 + numbers[:, None, None])
    kept.add(minute * MOMENT_MS, np.full(len(steps), run_id, dtype=np.uint64), numbers, tokens)


def keys(kept):
    return [step.key for moment in kept.moments for step in moment.steps]


def fill(minutes, **bounds):
    """Two steps a minute, thinned every minute."""
    kept = reservoir(**bounds)
    for minute in range(minutes):
        add(kept, minute, [2 * minute, 2 * minute + 1])
        kept.thin(minute * MOMENT_MS)
    return kept


def test_a_step_is_never_held_twice():
    """Not in its minute, and not in a later one; another run's step of the same number is another step."""
    kept = reservoir()
    add(kept, 1, [1, 2])
    add(kept, 1, [2, 3])
    add(kept, 2, [1, 2, 3, 4])
    assert sorted(keys(kept)) == [(9, 1), (9, 2), (9, 3), (9, 4)]
    add(kept, 3, [1], run_id=8)
    assert (8, 1) in keys(kept)


def test_the_steps_kept_of_a_minute_do_not_depend_on_how_they_came():
    """All at once or one by one: the same ones, no more than the bound."""
    at_once, one_by_one = reservoir(), reservoir()
    add(at_once, 1, list(range(50)))
    for step in range(50):
        add(one_by_one, 1, [step])
    assert sorted(keys(at_once)) == sorted(keys(one_by_one))
    assert len(keys(at_once)) == MOMENT_STEPS


def test_a_step_without_a_count_says_nothing():
    """It is left out."""
    kept = reservoir()
    kept.add(
        0, np.ones(1, dtype=np.uint64), np.ones(1, dtype=np.int64), np.zeros((1, *SHAPE), dtype=np.int64)
    )
    assert not kept.moments


def test_all_stay_while_they_fit():
    """And no longer than they are to be kept."""
    assert len(fill(60).moments) == 60
    kept = fill(60, keep_ms=20 * MOMENT_MS)
    assert [moment.number for moment in kept.moments] == list(range(40, 60))


@pytest.mark.parametrize("most", [8, 30, 64])
def test_the_bound_is_used_to_the_last_moment(most):
    """Neither above nor below it once there are enough."""
    assert len(fill(400, most_moments=most).moments) == most


def test_every_band_of_age_has_its_part():
    """Bands twice as long hold about as many moments: recent ones are dense, old ones thin."""
    kept = fill(1270, most_moments=70)
    first = FIRST_BAND_MS // MOMENT_MS
    bands = Counter(int(np.log2((1269 - moment.number) // first + 1)) for moment in kept.moments)
    assert len(bands) == 7
    # A band that the next one has just taken from is still filling up.
    assert min(bands.values()) >= 70 // 7 - 3
    assert max(bands.values()) <= 70 // 7 + 1


def test_within_a_band_every_minute_has_the_same_chance():
    """Over many seeds, the two halves of an old band keep as much."""
    halves = Counter()
    for seed in range(60):
        kept = reservoir(most_moments=20, seed=seed)
        for minute in range(150):
            add(kept, minute, [minute])
            kept.thin(minute * MOMENT_MS)
        halves.update(moment.number < 40 for moment in kept.moments if moment.number < 80)
    assert halves[True] / halves.total() == pytest.approx(0.5, abs=0.1)


def test_bytes_are_bounded():
    """Whatever the number of moments."""
    all_of_them = fill(64)
    kept = fill(64, most_bytes=all_of_them.bytes // 3)
    assert 0 < kept.bytes <= all_of_them.bytes // 3


def test_the_same_steps_leave_the_same_sample():
    """And another seed another one."""
    assert keys(fill(300, most_moments=20)) == keys(fill(300, most_moments=20))
    assert keys(fill(300, most_moments=20)) != keys(fill(300, most_moments=20, seed=1))


def test_moments_ahead_of_a_clock_that_went_back_are_dropped():
    """They would never grow old."""
    kept = fill(100, most_moments=200)
    kept.thin(50 * MOMENT_MS)
    assert max(moment.number for moment in kept.moments) == 51
