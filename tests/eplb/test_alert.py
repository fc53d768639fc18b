"""The alert on imbalance: one event when it begins, one when it ends, none for a burst."""

from __future__ import annotations

import io
import json

import structlog
from hypothesis import given
from hypothesis import strategies as st
from snapshots import reading, snapshot

from eplb.alert import HOLD_S, AlertRule, AlertState, Excess, log_event, observe, worst_excess
from eplb.log import configure_logging

RULE = AlertRule(recoverable_excess=0.3, for_s=600.0, keep_s=300.0)


def replay(values, step_s=60.0, rule=RULE):
    """Events of a series of readings (a number, or None for no reading): [(time in seconds, event)]."""
    state, events = AlertState(), []
    for number, value in enumerate(values):
        excess = None if value is None else Excess("decode", value)
        state, event = observe(state, excess, number * step_s, rule)
        if event:
            events.append((number * step_s, event))
    return events


def names(events):
    return [(time_s, event.name) for time_s, event in events]


def test_imbalance_that_lasts_is_one_event_and_its_end_another():
    """High after ten minutes; cleared five minutes of memory and five minutes of keeping after the last reading above."""
    events = replay([0.45] * 30 + [0.02] * 60)

    assert names(events) == [(600.0, "imbalance_high"), (29 * 60 + HOLD_S + 300, "imbalance_cleared")]
    assert events[0][1].phase == "decode"
    assert events[0][1].recoverable_excess == 0.45
    assert events[1][1].worst == 0.45
    assert events[1][1].duration_s == events[1][0]


def test_a_burst_is_silent():
    """Two minutes above are remembered for five, which is less than ten."""
    assert replay([0.02] * 5 + [0.9] * 2 + [0.02] * 60) == []


def test_the_threshold_itself_is_not_above():
    """As in the rule: greater than."""
    assert replay([0.3] * 60) == []


def test_one_quiet_reading_does_not_start_the_wait_anew():
    """max_over_time of five minutes: readings above every fourth minute are a condition that lasts."""
    assert names(replay([0.8, 0.0, None, 0.0] * 5)) == [(600.0, "imbalance_high")]


def test_a_condition_that_returns_while_the_alert_is_kept_is_the_same_one():
    """No second event."""
    gap = [0.0] * 8
    events = replay([0.5] * 20 + gap + [0.5] * 20)

    assert names(events) == [(600.0, "imbalance_high")]


def test_an_idle_pool_ends_the_alert():
    """No reading counts as not above."""
    assert [name for _, name in names(replay([0.5] * 20 + [None] * 20))] == [
        "imbalance_high",
        "imbalance_cleared",
    ]


def test_without_a_wait_the_first_reading_counts():
    """for_s 0 is for trials."""
    rule = AlertRule(0.3, 0.0, 0.0)

    assert names(replay([0.5, 0.5], rule=rule)) == [(0.0, "imbalance_high")]


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=200),
    st.floats(1, 400),
    st.floats(0, 900),
    st.floats(0, 900),
)
def test_events_alternate_and_begin_with_high(values, step_s, for_s, keep_s):
    """Whatever the readings: high, cleared, high, cleared, ... and never high below the threshold."""
    events = replay(values, step_s, AlertRule(0.3, for_s, keep_s))

    found = [event.name for _, event in events]
    assert found == ["imbalance_high", "imbalance_cleared"] * (len(found) // 2) + ["imbalance_high"] * (
        len(found) % 2
    )
    assert all(event.worst > 0.3 for _, event in events)
    assert all(event.duration_s >= for_s for _, event in events)


@given(st.lists(st.floats(0, 0.3), max_size=100))
def test_no_reading_above_means_no_event(values):
    """The alert has no other cause."""
    assert replay(values, 300.0) == []


def test_the_worst_phase_is_judged():
    """One alert a pool."""
    found = worst_excess(
        snapshot(reading([[3, 1]], phase="prefill"), reading([[9, 1]], phase="decode")), coverage=0.9
    )

    assert found == Excess("decode", 0.8)


def test_ranks_that_are_missing_are_no_imbalance():
    """Below the coverage, and without load, there is nothing to judge."""
    assert worst_excess(snapshot(reading([[9, 1]]), coverage=0.8), coverage=0.9) is None
    assert worst_excess(snapshot(reading([[0, 0]])), coverage=0.9) is None
    assert worst_excess(snapshot(reading([[9, 1]], recoverable_excess=float("nan"))), coverage=0.9) is None


def test_the_event_is_one_structured_line():
    """Named after the alert, with the pool, the phase and both numbers."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    try:
        [(_, event)] = replay([0.45] * 12)
        log_event(structlog.get_logger(), "a", event, RULE)
    finally:
        structlog.reset_defaults()

    [line] = stream.getvalue().splitlines()
    written = json.loads(line)
    assert written.pop("time").endswith("Z")
    assert written == {
        "event": "imbalance_high",
        "level": "warning",
        "pool": "a",
        "phase": "decode",
        "recoverable_excess": 0.45,
        "threshold": 0.3,
        "worst": 0.45,
        "duration_s": 600.0,
    }
