"""Rules of the watchdog: what counts as progress, what is said when there is none, and when it is over."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_world import Loop

from eplb.decisions import Code
from eplb.errors import StoreError
from eplb.watchdog import Patience, Progress, Seen, observe

PATIENCE = Patience(moving_s=100.0, wanted_s=300.0, solver_failures=3)


def play(*cycles):
    """The states after each of the cycles."""
    progress, states = Progress(), []
    for seen in cycles:
        progress = observe(progress, seen, PATIENCE)
        states.append(progress)
    return states


def moving(time_s, place="wave 1", waiting=(15,), **facts):
    return Seen(time_s * 1000, moving=True, place=(place,), waiting=waiting, **facts)


def wanted(time_s, **facts):
    return Seen(time_s * 1000, wanted=True, **facts)


def test_a_plan_that_stands_still_is_said_with_the_ranks_it_waits_for():
    """100 s at one place, not one second less."""
    states = play(moving(10), moving(109), moving(110))
    assert [state.stalled for state in states] == [False, False, True]
    assert states[-1].ranks == (15,)
    assert states[-1].sentence == "the plan in flight has not moved on for 100 s; it waits for rank 15"


def test_every_wave_sets_the_clock_back():
    """Progress is another place, and it ends a stall."""
    states = play(moving(0), moving(120), moving(130, "wave 2"), moving(229, "wave 2"), moving(230, "wave 2"))
    assert [state.stalled for state in states] == [False, True, False, False, True]


def test_offers_that_are_refused_for_ever_are_no_progress():
    """Each new offer sets its own clock back, but no wave goes live: the clock of the wish runs on."""
    cycles = []
    for time_s in range(0, 320, 40):
        cycles += [wanted(time_s, solved=True), moving(time_s + 10, f"plan {time_s}"), wanted(time_s + 20)]
    states = play(*cycles)
    assert states[-1].sentence == "a better placement has been wanted for 300 s and none went live"
    assert [state.stalled for state in states].index(True) == len(states) - 1


def test_a_wave_that_goes_live_sets_both_clocks_back():
    """A long plan with progress is no stall."""
    cycles = [moving(90 * n, f"wave {n}", advanced=True) for n in range(10)]
    assert not any(state.stalled for state in play(*cycles))


def test_a_solver_that_fails_three_times_in_a_row_is_said():
    """A plan in between counts the failures anew, whatever the gate said of it."""
    in_a_row = play(*(wanted(n, solver_failed=True) for n in range(3)))
    broken = play(
        wanted(0, solver_failed=True), wanted(1, solver_failed=True), wanted(2, solved=True), wanted(3, solver_failed=True)
    )  # fmt: skip
    assert [state.stalled for state in in_a_row] == [False, False, True]
    assert not any(state.stalled for state in broken)


def test_a_stall_ends_when_nothing_is_wanted_any_more():
    """A balanced pool has no stall, and the next wish starts with a fresh clock."""
    states = play(wanted(0), wanted(300), Seen(301_000), wanted(302))
    assert [state.stalled for state in states] == [False, True, False, False]


def test_a_store_clock_that_steps_back_starts_the_wait_anew():
    """Time that never passed is no stall, and none lasts for ever."""
    states = play(moving(1000), moving(500), moving(599), moving(600))
    assert [state.stalled for state in states] == [False, False, False, True]


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans(), st.integers(0, 2)), max_size=60))
def test_nothing_stands_still_in_silence(cycles):
    """Whatever happened: a plan at one place, or a wish without a live wave, for the limit, is always said."""
    progress, time_s = Progress(), 0
    place, place_s, wish_s = None, 0, None
    for gap_s, is_moving, is_wanted, where in cycles:
        time_s += gap_s
        seen = Seen(time_s * 1000, moving=is_moving, wanted=is_wanted, place=(where,) if is_moving else ())
        progress = observe(progress, seen, PATIENCE)
        wish_s = (time_s if wish_s is None else wish_s) if is_moving or is_wanted else None
        place_s = place_s if is_moving and place == where else time_s
        place = where if is_moving else None
        still = is_moving and time_s - place_s >= PATIENCE.moving_s
        assert progress.stalled == (still or (wish_s is not None and time_s - wish_s >= PATIENCE.wanted_s))


@pytest.mark.parametrize("count", [9, 40])
def test_many_ranks_are_counted_not_listed(count):
    """The first eight are named."""
    last = play(moving(0, waiting=tuple(range(count))), moving(100, waiting=tuple(range(count))))[-1]
    assert last.sentence.endswith(f"ranks 0, 1, 2, 3, 4, 5, 6, 7 and {count - 8} more")
    assert len(last.ranks) == count


def test_cycles_that_fail_for_long_are_a_stall_too():
    """A leader that renews its lease and comes no further would block its pool in silence."""
    loop, load = Loop([[0, 1], [2, 3]], ranks=2, experts=4, progress_s=70.0), np.full(4, 30.0)
    loop.serve(load, 5)
    health = loop.store.health

    def refuses():
        raise StoreError("the store refuses INFO")

    loop.store.health = refuses
    assert {decision["code"] for decision in loop.serve(load, 14)} == {Code.CYCLE_FAILED}
    assert loop.snapshots[-1].rebalance.stalled_s == 0.0
    loop.serve(load, 2)
    assert loop.snapshots[-1].rebalance.stalled_s == pytest.approx(10.0)
    loop.store.health = health
    assert loop.cycle(load)["code"] != Code.CYCLE_FAILED
    assert loop.snapshots[-1].rebalance.stalled_s == 0.0
