"""Every state that ranks, daemons, store and faults can reach keeps the rules; without any one guard some rule breaks."""

import pytest

from eplb.protocol import ALL_GUARDS
from eplb.protocol.check.controls import CONTROLS, TOGETHER, without
from eplb.protocol.check.explore import NO_WAY_ON, explore
from eplb.protocol.check.world import ALL_FAULTS, Bounds


@pytest.mark.slow
def test_with_all_guards_every_reachable_state_of_two_ranks_keeps_the_rules_and_has_a_way_to_an_end():
    found = explore(ALL_FAULTS, ALL_GUARDS)
    print(
        f"{found.states} states, depth {found.depth}, {found.steps} steps, {found.seconds:.1f} s of one core"
    )
    assert (found.wrong, found.path) == ("", ())
    assert found.complete
    assert found.states > 100_000
    assert found.to_end <= 12


def test_every_guard_has_a_control():
    assert set(CONTROLS) == ALL_GUARDS
    assert {name for pair in TOGETHER.items() for name in (pair[0], pair[1][0])} <= ALL_GUARDS


@pytest.mark.parametrize("name", sorted(ALL_GUARDS))
def test_without_one_guard_a_rule_breaks(name):
    found = without(name)
    assert found.wrong
    assert found.wrong != NO_WAY_ON
    assert found.path


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_the_guards_of_a_pair_cover_for_each_other(name):
    found = without(name, alone=True)
    assert (found.wrong, found.complete) == ("", True)


def test_a_plan_that_cannot_end_is_found():
    """A world in which no wave may ever be closed: the check says that there is no way on, so that it can fail at all."""
    from eplb.protocol import wave

    kept = wave.DUE[wave.WaveState.ALL_LIVE]
    wave.DUE[wave.WaveState.ALL_LIVE] = None
    try:
        found = explore(Bounds(daemons=1, waves=1), ALL_GUARDS)
    finally:
        wave.DUE[wave.WaveState.ALL_LIVE] = kept
    assert found.wrong == NO_WAY_ON
