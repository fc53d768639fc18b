"""How much a wave may bring: one expert more after a wave that nobody felt, half after one that slowed the steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from window_world import World, deliver, facts_of

from collectors.facts import Kind
from eplb.migration.pace import STEPS_MIN, Pace, Pacer, PaceRules, after_wave, first_pace
from eplb.window import Window

RULES = PaceRules(least_bytes=10, most_bytes=80, slowdown=0.5)
QUIET = np.full(20, 1000.0)


def test_the_first_wave_may_be_whole():
    assert first_pace(RULES) == Pace(80)


def test_a_wave_that_nobody_felt_adds_one_expert_up_to_the_whole_wave():
    pace = Pace(65)
    for limit in (75, 80, 80):
        pace = after_wave(pace, RULES, QUIET, QUIET * 1.5)
        assert pace.limit_bytes == limit


def test_a_wave_that_slowed_the_steps_halves_down_to_one_expert():
    pace = Pace(80)
    for limit in (40, 20, 10, 10):
        pace = after_wave(pace, RULES, QUIET, QUIET * 1.51)
        assert pace.limit_bytes == limit
    assert "halved" in pace.sentence
    assert "1.51 ms during the last wave, 1.00 ms before" in pace.sentence


def test_one_slow_step_in_twenty_five_is_not_felt_and_three_are():
    for slow, limit in ((1, 50), (3, 20)):
        during = np.concatenate([np.full(slow, 9000.0), np.full(25 - slow, 1000.0)])
        assert after_wave(Pace(40), RULES, QUIET, during).limit_bytes == limit


@given(st.integers(0, STEPS_MIN - 1), st.booleans())
def test_too_few_timed_steps_judge_nothing(timed, first):
    few = np.concatenate([np.full(timed, 9000.0), np.full(30, np.nan)])
    before, during = (few, QUIET) if first else (QUIET, few)
    pace = after_wave(Pace(40), RULES, before, during)
    assert pace.limit_bytes == 40
    assert "too few steps" in pace.sentence


@given(st.lists(st.floats(0.5, 3.0), max_size=40))
def test_the_limit_stays_between_one_expert_and_the_whole_wave(slowdowns):
    pace = first_pace(RULES)
    for factor in slowdowns:
        pace = after_wave(pace, RULES, QUIET, QUIET * factor)
        assert RULES.least_bytes <= pace.limit_bytes <= RULES.most_bytes


def serve(world, window, steps, step_us):
    for _ in range(steps):
        world.serve(tokens=[3, 1], step_us=step_us)
    deliver(window, world.publish_all())
    return window.view(world.time_ms)


def test_waves_are_compared_with_the_steps_before_the_plan():
    """A slow first wave is halved; the second is judged by its own steps, not by the first one's."""
    world = World(facts_of(ranks=2, experts=3), Kind.RECEIVED_SLOTS)
    window = Window(world.facts)
    world.add_maps(window)
    pacer = Pacer(RULES)
    assert pacer.turn(serve(world, window, 10, 1000.0), offers=True) == 80
    assert pacer.turn(serve(world, window, 10, 5000.0), offers=True) == 40
    assert pacer.turn(serve(world, window, 10, 1000.0), offers=False) == 50
    assert pacer.turn(serve(world, window, 10, 9000.0), offers=True) == 50
