"""The course of a run: golden transitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eplb.demo.director import Command, Direction, Limits, Stage, StepFact, advance
from eplb.demo.errors import RunStalled

LIMITS = Limits(warm_up_steps=2, settle_steps=1, reading_steps=3, wait_steps=10, drain_steps=10)


def drive(
    version_at: dict[int, int], drained_at: int, steps: int = 60, ratios: dict[int, float] | None = None
):
    """Feed steps to the director: (stage after the step, commands of the step), and the last state."""
    state, log, version = Direction(), [], 0
    for step in range(steps):
        version = version_at.get(step, version)
        fact = StepFact(step, (ratios or {}).get(step, 2.0), version, 4 if step >= drained_at else 0, 4)
        state, commands = advance(state, fact, LIMITS, "balanced: nothing to do")
        log.append((state.stage, commands))
        if state.stage is Stage.DONE:
            break
    return log, state


def test_the_run_takes_four_readings_and_steers_the_daemon_between_them():
    """Warm up, read, resume until a map is live, pause, read, shift, drain, read, resume, pause, read, stop."""
    log, state = drive({10: 1, 30: 2}, drained_at=20)
    commands = [(step, command) for step, (_, given) in enumerate(log) for command in given]
    assert commands == [
        (6, Command.RESUME),
        (10, Command.PAUSE),
        (14, Command.SHIFT),
        (24, Command.RESUME),
        (30, Command.PAUSE),
        (34, Command.STOP),
    ]
    stages = [stage for i, (stage, _) in enumerate(log) if i == 0 or stage is not log[i - 1][0]]
    assert stages == list(Stage)
    assert state.steps_read == {"start": 3, "placed": 3, "shifted": 3, "replaced": 3}


def test_a_reading_is_the_mean_over_its_own_steps_only():
    """Warm-up and settling steps do not count."""
    _, state = drive(
        {}, drained_at=99, steps=7, ratios={0: 9.0, 1: 9.0, 2: 9.0, 3: 9.0, 4: 1.0, 5: 2.0, 6: 3.0}
    )
    assert state.readings == {"start": 2.0}


def test_a_map_that_changes_under_a_reading_starts_it_again():
    """A reading belongs to one map."""
    _, state = drive({5: 1}, drained_at=99, steps=9, ratios={3: 9.0, 4: 9.0, 6: 1.0, 7: 1.0, 8: 1.0})
    assert state.readings == {"start": 1.0}
    assert state.stage is Stage.PLACING


def test_waiting_for_a_placement_has_a_limit_that_names_the_daemons_last_decision():
    """The error says what the daemon decided last and why."""
    with pytest.raises(RunStalled, match=r"no new placement.*balanced: nothing to do"):
        drive({}, drained_at=99)


def test_draining_has_a_limit():
    """Requests that never end are an error, not an endless run."""
    with pytest.raises(RunStalled, match="4 requests of the first domain"):
        drive({10: 1}, drained_at=99)


def test_the_shifted_reading_waits_until_the_last_request_of_the_first_domain_is_done():
    """A mixed batch is not read."""
    log, _ = drive({10: 1}, drained_at=22, steps=23)
    assert log[21][0] is Stage.DRAINING
    assert log[22][0] is Stage.SHIFTED


def test_steps_are_paced_only_while_a_placement_is_awaited_and_the_solver_works():
    """The solver gets the cores; a reading is never paced."""
    waiting = Direction(stage=Stage.PLACING)
    fact = StepFact(1, 2.0, 0, 0, 4, planning=True)
    eased, commands = advance(waiting, fact, LIMITS)
    assert commands == (Command.EASE,)
    assert advance(eased, replace(fact, step=2), LIMITS)[1] == ()
    assert advance(eased, replace(fact, step=2, planning=False), LIMITS)[1] == (Command.FULL,)
    assert advance(eased, replace(fact, step=2, map_version=1), LIMITS)[1] == (Command.PAUSE, Command.FULL)
    assert advance(Direction(stage=Stage.DRAINING), fact, LIMITS)[1] == ()


def test_a_daemon_that_finds_nothing_worth_moving_for_long_ends_the_wait():
    """A pool that is balanced already is a result, not an error; the reading says that the map was kept."""
    state = Direction(stage=Stage.REPLACING, base_version=1)
    limits = replace(LIMITS, content_steps=5)
    for step, content in enumerate([True, True, False, True, True, True, True, True, True]):
        assert state.stage is Stage.REPLACING
        state, commands = advance(
            state, StepFact(step, 1.1, 1, 4, 4, content=content), replace(limits, wait_steps=99)
        )
    assert state.stage is Stage.REPLACED
    assert state.kept == ("replaced",)
    assert commands == (Command.PAUSE,)
