"""The schedule: real picks in an order that follows from the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_world import DOMAINS, TOP_K, recording

from eplb.errors import ReplayError
from eplb.replay.arrivals import Arrival
from eplb.replay.mix import Mix
from eplb.replay.schedule import ScheduleOptions, schedule

HELD = recording()


def serve(seed=0, ranks=4, **given):
    return list(
        schedule(
            HELD, ScheduleOptions(**{"steps": 40, "window_steps": 4, "running": 6, **given}), ranks, seed
        )
    )


@given(
    seed=st.integers(0, 9),
    running=st.integers(1, 9),
    ranks=st.integers(1, 5),
    times=st.integers(1, 20),
    kind=st.sampled_from(["stationary", "switch", "ramp", "daily"]),
)
@settings(max_examples=20)
def test_every_token_is_counted_once_in_every_layer(seed, running, ranks, times, kind):
    """Pairs of a layer are tokens x top-k for each rank and step, and a full batch serves its size in each step."""
    for steps in serve(seed, ranks, running=running, requests_per_sequence=times, mix=Mix(kind)):
        assert (steps.tokens.sum(axis=3) == steps.batch[:, :, None] * TOP_K).all()
        assert (steps.batch.sum(axis=1) == running * times).all()


def test_equal_seeds_give_equal_steps_and_others_do_not():
    """The order follows from the seed alone."""
    one, two, other = serve(3), serve(3), serve(4)
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(one, two, strict=True))
    assert any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(one, other, strict=True))


def test_after_a_switch_the_load_is_that_of_the_second_domain():
    """``law`` prefers the first experts, ``math`` the last ones."""
    windows = serve(mix=Mix("switch"), first=DOMAINS[:1], second=DOMAINS[1:], steps=120)
    early, late = (sum(w.routed().sum(axis=(0, 1)) for w in part) for part in (windows[:5], windows[-5:]))
    assert early[:4].sum() > early[4:].sum()
    assert late[:4].sum() < late[4:].sum()


def test_no_sequence_is_served_more_often_than_asked():
    """Where the sequences are used up the run is refused, and more passes let it go on."""
    with pytest.raises(
        ReplayError, match=r"all 60 sequences of '.*' were served by step \d+; give fewer steps"
    ):
        serve(steps=400)
    assert len(serve(steps=400, passes=4)) == 100


def test_parts_of_a_window_are_its_steps():
    """What the daemon sees step by step is what others see window by window."""
    window = serve()[2]
    parts = list(window.parts(3))
    assert [len(part.batch) for part in parts] == [3, 1]
    assert [part.first_step for part in parts] == [8, 11]
    assert np.array_equal(np.concatenate([part.tokens for part in parts]), window.tokens)
    assert np.concatenate([part.end_ms for part in parts]).tolist() == window.end_ms.tolist()


def test_a_request_is_served_from_its_arrival_on_and_not_longer_than_it_generated():
    """Steps without a request are none, the clock goes on, and the run ends with the arrivals."""
    arrivals = (Arrival(0.0, 2), Arrival(0.5, 3), Arrival(60.0, 3))
    windows = serve(window_steps=1, step_ms=1000, arrivals=arrivals, requests_per_sequence=1)
    assert [int(window.batch.sum()) for window in windows] == [1, 2, 1, 1, 1, 1, 1]
    assert [int(window.end_ms[0]) for window in windows] == [1000, 2000, 3000, 4000, 61001, 62001, 63001]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"steps": 3}, "3 steps are less than one window of 4"),
        ({"running": 0}, "running is 0"),
        ({"running": 10**9}, "running is 1000000000, must be at most"),
        ({"first": ("law",), "second": ("law",)}, "'law' is in both groups"),
        ({"first": ("art",)}, "no domain 'art'"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(given, words):
    """The message names the number or the domain."""
    with pytest.raises(ReplayError, match=words):
        serve(**given)
