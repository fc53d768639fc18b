"""The course of a run: golden transitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from eplb.demo.batch import Batch
from eplb.demo.director import Command, Direction, Limits, Stage, StepFact, advance
from eplb.demo.errors import RunStalled
from eplb.demo.routing import Routing

LIMITS = Limits(warm_up_steps=2, settle_steps=1, reading_steps=3, wait_steps=10, drain_steps=10)


def fact_of(step: int, ratio: float = 2.0, version: int = 0, second: int = 0, **changes) -> StepFact:
    """A step of four requests under a map whose digest moves with its version."""
    return StepFact(
        step, ratio, version, second, 4, **{"live_digest": 100 + version, "shift_step": -1, **changes}
    )


def drive(
    version_at: dict[int, int],
    drained_at: int,
    steps: int = 60,
    ratios: dict[int, float] | None = None,
    waves_at: tuple[int, ...] = (),
):
    """Feed steps to the director: (stage after the step, commands of the step), and the last state.

    ``waves_at`` steps at which the map changes and its version does not. The domain changes two steps after the order.
    """
    state, log, version, shift_step = Direction(), [], 0, -1
    for step in range(steps):
        version = version_at.get(step, version)
        digest = 100 + version + 1000 * sum(step >= wave for wave in waves_at)
        fact = fact_of(
            step,
            (ratios or {}).get(step, 2.0),
            version,
            4 if step >= drained_at else 0,
            live_digest=digest,
            shift_step=shift_step if step >= shift_step else -1,
        )
        state, commands = advance(state, fact, LIMITS, "balanced: nothing to do")
        shift_step = step + 2 if Command.SHIFT in commands else shift_step
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


def test_a_wave_that_changes_the_map_under_a_reading_starts_it_again():
    """The version moves with the last wave only; the map that is served moves with each."""
    _, state = drive({}, drained_at=99, steps=9, ratios={3: 9.0, 4: 9.0}, waves_at=(5,))
    assert state.readings == {"start": 2.0}
    assert state.stage is Stage.PLACING


def test_a_reading_of_a_kept_map_that_changes_after_all_is_not_called_kept():
    """What the summary says of a reading holds for the map that was read."""
    state = Direction(stage=Stage.PLACED, base_digest=100, kept=("placed",))
    state, _ = advance(state, fact_of(0), LIMITS)
    assert state.kept == ("placed",)
    state, _ = advance(state, fact_of(1, live_digest=7), LIMITS)
    assert (state.kept, state.ratios, state.base_digest) == ((), (), 7)


def test_waiting_for_a_placement_has_a_limit_that_names_the_daemons_last_decision():
    """The error says what the daemon decided last and why."""
    with pytest.raises(RunStalled, match=r"no new placement.*balanced: nothing to do"):
        drive({}, drained_at=99)


def test_draining_has_a_limit():
    """Requests that never end are an error, not an endless run."""
    with pytest.raises(RunStalled, match="4 requests of the first domain are still in flight 10 steps"):
        drive({10: 1}, drained_at=99)


def test_draining_is_counted_from_the_change_itself_not_from_the_order():
    """Ranks hear the order some steps later; until then only the wait for it is limited."""
    state, _ = advance(Direction(stage=Stage.DRAINING), fact_of(9), replace(LIMITS, drain_steps=2))
    assert state.stage is Stage.DRAINING
    with pytest.raises(RunStalled, match="have not changed the domain 10 steps"):
        advance(state, fact_of(10), LIMITS)


@pytest.mark.parametrize("longest", [3, 700])
def test_the_longest_sequence_may_run_to_its_end(longest):
    """A request admitted in the last step before the change still gets its whole sequence: the limit follows from the trace."""
    lengths = [longest, 2, 2, 2, *[longest] * 4]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    picks = np.zeros((int(offsets[-1]), 1, 1), dtype=np.uint8)
    routing = Routing("t", picks, offsets, np.repeat([0, 1], 4).astype(np.int8), ("a", "b"), (0,), 1)
    batch = Batch(routing, 4, 0)
    state, step = Direction(stage=Stage.DRAINING), 0
    limits = replace(LIMITS, drain_steps=routing.longest(0) + 1)
    while state.stage is Stage.DRAINING:
        if step:
            batch.advance()
        if step == 1:
            batch.shift()
        second = int(routing.domain_of[batch.tokens().sequences].sum())
        state, _ = advance(state, fact_of(step, second=second, shift_step=1 if step else -1), limits)
        step += 1
    assert state.stage is Stage.SHIFTED
    assert step == longest + 1


def test_the_shifted_reading_waits_until_the_last_request_of_the_first_domain_is_done():
    """A mixed batch is not read."""
    log, _ = drive({10: 1}, drained_at=22, steps=23)
    assert log[21][0] is Stage.DRAINING
    assert log[22][0] is Stage.SHIFTED


def test_steps_are_paced_only_while_a_placement_is_awaited_and_the_solver_works():
    """The solver gets the cores; a reading is never paced."""
    waiting = Direction(stage=Stage.PLACING)
    fact = fact_of(1, planning=True)
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
            state, fact_of(step, 1.1, 1, 4, content=content), replace(limits, wait_steps=99)
        )
    assert state.stage is Stage.REPLACED
    assert state.kept == ("replaced",)
    assert commands == (Command.PAUSE,)
