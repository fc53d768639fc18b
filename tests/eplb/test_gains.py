"""Rules of the record of past plans: correction, half-life, and what a new leader reads back."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.gains import (
    KEPT_MS,
    LEAST_CORRECTION,
    MOST_CORRECTION,
    MOST_OUTCOMES,
    Departure,
    Gains,
    Outcome,
    half_life_s,
    read_gains,
)
from eplb.plain import plain

GAINS = st.floats(0.001, 2.0)


def record_of(*pairs):
    """A record of plans by (promised, realised)."""
    gains = Gains()
    for number, (promised, brought) in enumerate(pairs):
        gains = gains.with_outcome(Outcome(f"p{number}", 1000 * number, promised, brought))
    return gains


@pytest.mark.parametrize(
    ("pairs", "factor"),
    [
        ([], 1.0),
        ([(0.2, 0.2)], 1.0),
        ([(0.2, 0.0)], 2 / 3),
        ([(0.2, 0.1)] * 2, 0.75),
        ([(0.2, 0.1)] * 6, 5 / 8),
        ([(0.2, -5.0)], LEAST_CORRECTION),
        ([(0.2, 9.0)], MOST_CORRECTION),
        ([(0.2, math.nan)], 1.0),
    ],
)
def test_a_promise_is_corrected_by_what_was_delivered(pairs, factor):
    """Two plans that kept their word are assumed, so that one surprise moves the factor by a third."""
    assert record_of(*pairs).correction == pytest.approx(factor)


@given(st.lists(st.tuples(GAINS, st.floats(-2.0, 2.0)), max_size=20), GAINS)
def test_delivering_less_never_raises_the_correction(pairs, less):
    """Monotone and bounded, whatever the record."""
    better = record_of(*pairs)
    worse = record_of(*((promised, brought - less) for promised, brought in pairs))
    assert LEAST_CORRECTION <= worse.correction <= better.correction + 1e-12 <= MOST_CORRECTION + 1e-9
    assert len(better.outcomes) <= MOST_OUTCOMES


def test_news_of_a_plan_replace_what_was_known_of_it():
    """One entry a plan, the newest last."""
    gains = record_of((0.2, 0.2), (0.3, 0.3)).with_outcome(Outcome("p0", 0, 0.2, 0.2, half_life_s=60.0))
    assert [outcome.plan_id for outcome in gains.outcomes] == ["p1", "p0"]
    assert gains.outcomes[-1].half_life_s == 60.0


@given(st.floats(0.1, 1.0), st.floats(10.0, 1e5), st.floats(0.3, 3.0))
def test_the_half_life_of_an_exponential_is_found(first, half_life, halvings):
    """Two points of a decay give its half-life back."""
    later = first * 2.0**-halvings
    assert half_life_s(first, later, halvings * half_life, 0.0) == pytest.approx(half_life, rel=1e-6)


@pytest.mark.parametrize(("first", "later"), [(0.2, 0.2), (0.2, 0.19), (0.2, 0.4), (0.0, 0.0), (-0.1, -0.2)])
def test_a_gain_that_has_not_fallen_beyond_noise_has_no_half_life(first, later):
    """A gain within its error, one that grew, and one that never was."""
    assert half_life_s(first, later, 100.0, 0.02) == math.inf


def test_a_gain_that_is_gone_has_a_finite_half_life():
    """Below the noise it counts as fallen to the noise; without noise to a 64th."""
    assert half_life_s(0.4, -0.3, 120.0, 0.1) == pytest.approx(60.0)
    assert half_life_s(0.4, -0.3, 120.0, 0.0) == pytest.approx(20.0)


def test_the_half_life_is_the_median_and_plans_put_back_do_not_count():
    """One plan that faded at once does not end the horizon of all."""
    gains = Gains()
    for number, (half_life, back) in enumerate([(60.0, False), (600.0, False), (6000.0, False), (1.0, True)]):
        gains = gains.with_outcome(
            Outcome(f"p{number}", 0, 0.2, 0.2, half_life_s=half_life, rolled_back=back)
        )
    assert gains.half_life_s == 600.0


def test_a_plan_of_another_day_counts_no_more():
    """Promises that were kept badly yesterday, and gains that faded in minutes, do not close the gate today."""
    bad = Outcome("a", 1000, 0.2, 0.02, half_life_s=60.0)
    gains = Gains().with_outcome(bad).with_outcome(Outcome("b", 5000, 0.2, 0.02, half_life_s=60.0))
    assert gains.recent(KEPT_MS + 999) is gains
    assert [outcome.plan_id for outcome in gains.recent(KEPT_MS + 1000).outcomes] == ["b"]
    later = gains.recent(KEPT_MS + 5000)
    assert (later.correction, later.half_life_s) == (1.0, math.inf)


def test_slowdown_is_counted_by_byte():
    """4 s for 2 GB and nothing for 2 GB are 1 s for each GB."""
    gains = (
        Gains()
        .with_outcome(Outcome("a", 0, 0.1, bytes=2_000, slowdown_s=4.0))
        .with_outcome(Outcome("b", 1, 0.1, bytes=2_000))
        .with_outcome(Outcome("shares", 2, 0.1, bytes=0, slowdown_s=1.0))
    )
    assert gains.slowdown_s_per_byte == pytest.approx(0.001)


def test_what_left_is_known_by_time():
    """Only plans since a time bar what they took."""
    gains = (
        Gains().with_departure(Departure(1000, ((0, 1, 2),))).with_departure(Departure(5000, ((0, 3, 4),)))
    )
    assert gains.left_since(1000) == ((0, 1, 2), (0, 3, 4))
    assert gains.left_since(1001) == ((0, 3, 4),)


def test_a_new_leader_reads_the_record_back_from_the_log():
    """Outcomes, news of them and departures, through the words of JSON; damaged and foreign records are passed over."""
    first = Outcome("p1", 1000, 0.2, math.nan, bytes=7)
    news = Outcome("p1", 1000, 0.2, 0.1, error=0.01, half_life_s=math.inf, bytes=7, slowdown_s=0.5)
    gone = Departure(1000, ((0, 1, 2), (3, 4, 5)))
    log = [
        json.dumps(plain(body), separators=(",", ":")).encode()
        for body in (
            {"code": "balanced", "outcome": None, "departed": None},
            {"outcome": first, "departed": gone},
            {"outcome": news, "departed": None},
        )
    ]
    log += [
        b'{"outcome":{"plan_id":',
        b'{"outcome":{"plan_id":"x"}}',
        b'{"departed":{"places":[[1]]}}',
        b'{"departed":{"places":[],"applied_ms":Infinity}}',
        b'{"outcome":{' + b'"a":{' * 100_000,
        b"\xff",
    ]
    assert read_gains(log) == Gains((news,), (gone,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("applied_ms", 10**400),
        ("applied_ms", -1),
        ("bytes", 10**400),
        ("predicted", 1e308),
        ("realised", -1e308),
        ("slowdown_s", math.nan),
        ("half_life_s", math.inf),
    ],
)
def test_a_number_that_no_daemon_writes_is_passed_over(name, value):
    """Arithmetic with it would fail in every cycle, for as long as the log holds it."""
    body = plain(Outcome("p1", 1000, 0.2, 0.1, bytes=7))
    assert read_gains([b'{"outcome":' + json.dumps(body).encode() + b"}"]).outcomes
    record = b'{"outcome":' + json.dumps({**body, name: value}).encode() + b"}"
    assert b'"outcome":{' in record
    assert read_gains([record]) == Gains()


def test_a_departure_with_a_place_that_no_pool_has_is_passed_over():
    """Places are compared with those of a plan, as whole numbers of 64 bits."""
    assert read_gains([b'{"departed":{"places":[[0,1,%d]],"applied_ms":5}}' % 10**30]) == Gains()
