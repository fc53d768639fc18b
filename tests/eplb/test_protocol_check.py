"""Every state that ranks, daemons, store and faults can reach keeps the rules; without any one guard some rule breaks."""

from dataclasses import replace

import numpy as np
import pytest

from eplb.protocol import ALL_GUARDS, Arrived, Profile, RankState, weights_in_doubt
from eplb.protocol.check.controls import CONTROLS, TOGETHER, without
from eplb.protocol.check.explore import NO_WAY_ON, explore
from eplb.protocol.check.layout import POOL
from eplb.protocol.check.lives import reforms
from eplb.protocol.check.ranks import Ranks, crashed
from eplb.protocol.check.rules import broken_rule
from eplb.protocol.check.steps import Steps
from eplb.protocol.check.world import (
    ALL_FAULTS,
    MAIN_FAULTS,
    SHAPES,
    Bounds,
    Cache,
    Offer,
    own,
    shape_of,
    start,
)


def keeps_the_rules(bounds):
    found = explore(bounds, ALL_GUARDS)
    print(
        f"{found.states} states, depth {found.depth}, {found.steps} steps, {found.seconds:.1f} s of one core"
    )
    assert (found.wrong, found.path) == ("", ())
    assert found.complete
    assert found.to_end <= 12
    return found


def test_two_ranks_keep_the_rules_through_one_fault_of_any_kind_and_have_a_way_to_an_end():
    keeps_the_rules(ALL_FAULTS)


@pytest.mark.slow
def test_two_ranks_keep_the_rules_through_two_crashes_a_lost_store_and_two_messages_all_together():
    assert keeps_the_rules(MAIN_FAULTS).states > 1_000_000


@pytest.mark.slow
def test_two_ranks_keep_the_rules_through_a_pause_and_any_other_of_these_faults():
    assert keeps_the_rules(replace(MAIN_FAULTS, pauses=1, faults=2)).states > 50_000


@pytest.mark.slow
def test_three_ranks_keep_the_rules_through_any_two_of_these_faults():
    assert keeps_the_rules(replace(MAIN_FAULTS, ranks=3, faults=2)).states > 100_000


def rows(states):
    return set(map(tuple, states.T.tolist()))


def batch(found):
    return np.array(sorted(found), np.int32).T


def reached(bounds, guards, *, reduced):
    """What ranks hold and serve in all states that can be reached, and the rules that steps break."""
    steps = Steps(bounds, guards, reduced=reduced)
    layer = rows(steps.start())
    seen, wrong = set(layer), set()
    while layer:
        found = steps.after(batch(layer))
        wrong |= {steps.text(number) for number in found.wrong.tolist()}
        layer = rows(found.states) - seen
        seen |= layer
    pools = {state[POOL]: state for state in seen}.values()
    ranks = [[steps.parts(state)[number] for number in steps.layout.ranks] for state in pools]
    return len(seen), {tuple((rank.alive, rank.holds, rank.serves) for rank in now) for now in ranks}, wrong


@pytest.mark.parametrize(
    ("bounds", "gone"),
    [
        (Bounds(waves=1), ""),
        (Bounds(waves=1, daemons=1, crashes=1), ""),
        (Bounds(waves=1, daemons=1, losses=1), ""),
        (Bounds(waves=1, daemons=1, pauses=1), ""),
        (Bounds(waves=1, daemons=1, messages=2), ""),
        (Bounds(waves=1, losses=1), ""),
        (Bounds(waves=1, daemons=1, losses=1, messages=1), ""),
        (Bounds(waves=2, daemons=1, crashes=1), ""),
        (Bounds(waves=1, daemons=1, messages=1, pauses=1), ""),
        (Bounds(waves=1, daemons=1, writes=1), ""),
        (Bounds(waves=1, daemons=1, writes=1, profile=Profile.DELEGATED), ""),
        (Bounds(waves=1, daemons=1, messages=1), "still_wanted"),
        (Bounds(waves=1, daemons=1, transfers=1), "unanimous_vote"),
    ],
)
def test_states_that_are_merged_lead_to_the_same_maps_and_the_same_broken_rules(bounds, gone):
    count, maps, wrong = reached(bounds, ALL_GUARDS - {gone}, reduced=True)
    count_apart, maps_apart, wrong_apart = reached(bounds, ALL_GUARDS - {gone}, reduced=False)
    print(f"{count} states stand for {count_apart}")
    assert (maps, wrong) == (maps_apart, wrong_apart)
    assert count < count_apart


def test_an_engine_that_moves_by_itself_keeps_the_rules_and_has_a_way_to_an_end():
    found = explore(replace(ALL_FAULTS, profile=Profile.DELEGATED, faults=2), ALL_GUARDS)
    assert (found.wrong, found.path, found.complete) == ("", (), True)
    assert found.states > 100_000
    assert found.to_end <= 12


def test_a_way_back_is_judged_by_the_reports_that_its_daemon_read_whatever_comes_after_them():
    """An older record of the stuck rank lies in the store when the way back is written, or when it is taken off again."""
    found = explore(Bounds(messages=1, writes=1, profile=Profile.DELEGATED), ALL_GUARDS)
    assert (found.wrong, found.path, found.complete) == ("", (), True)


def failed_slot(ranks, shape):
    """An engine is stuck with a slot that does not hold what is routed to it."""
    return any(
        rank.state is RankState.STUCK and held != own(shape, row, number)
        for number, rank in enumerate(ranks)
        for row, held in zip(rank.serves, rank.holds, strict=True)
    )


def failed_router(ranks, _shape):
    """An engine is stuck with the row before, and the others route by the new one."""
    return any(rank.state is RankState.STUCK for rank in ranks) and ranks[0].serves != ranks[1].serves


@pytest.mark.parametrize("failed", [failed_slot, failed_router])
def test_what_an_engine_did_wrong_is_mended_by_the_plan_back(failed):
    """There is a way on which all ranks serve the map before again and hold it, and nobody is stuck."""
    bounds = Bounds(writes=1, profile=Profile.DELEGATED)
    steps, shape = Steps(bounds, ALL_GUARDS), shape_of(bounds)

    def ranks_of(state):
        parts = steps.parts(state)
        return [parts[number] for number in steps.layout.ranks]

    def reached(starts, goal):
        seen = layer = set(starts)
        while layer and not any(map(goal, layer)):
            layer = rows(steps.after(batch(layer)).states) - seen
            seen = seen | layer
        return [state for state in layer if goal(state)]

    def mended(state):
        ranks, plan = ranks_of(state), steps.parts(state)[steps.layout.control].plan
        base = (shape.base,) * bounds.waves
        return (
            plan is not None
            and plan.target == base
            and all(rank.state is not RankState.STUCK and rank.serves == base for rank in ranks)
            and all(
                held == own(shape, shape.base, number)
                for number, rank in enumerate(ranks)
                for held in rank.holds
            )
        )

    wrong = reached(rows(steps.start()), lambda state: failed(ranks_of(state), shape))
    assert wrong
    assert reached(wrong, mended)


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


def prepared(bounds):
    """A world in which all ranks hold an offer whose weights have come, and the first has read that it is wanted."""
    world, shape = start(bounds), SHAPES[bounds.ranks]
    offer = Offer(1, 0, 1, 1, world.group.run, 0, shape.base, shape.target, shape.target)
    held = {"state": RankState.PREPARED, "hand": offer, "arrived": Arrived.COMPLETE}
    ranks = tuple(rank._replace(**held) for rank in world.ranks)
    return world._replace(ranks=ranks, cache=Cache(offer, 1))


def test_a_crash_in_the_vote_leaves_survivors_on_two_maps_and_they_go_on_with_what_their_slots_hold():
    """Of three ranks one dies, one hears the result and one does not; whatever they form then serves what it holds."""
    bounds = Bounds(ranks=3, daemons=1, waves=1, crashes=1)
    world, shape = prepared(bounds), SHAPES[3]
    gates = Ranks(shape, ALL_GUARDS).gate(world.ranks, world.cache, world.group, world.left)
    split = [gate.ranks for gate in gates if len({rank.serves for rank in gate.ranks if rank.alive}) == 2]
    assert len(split) >= 6, "each of three dies, and either survivor may be the one that heard"
    for ranks in split:
        lives = list(reforms(shape, bounds.waves, ranks, world.group))
        assert lives
        assert [broken_rule(shape, now, life) for _, now, life in lives] == [""] * len(lives)


def test_one_that_did_not_hear_a_vote_serves_no_further_step_in_this_life():
    """The maps of the two differ, and nobody has died: without this rule they would serve together."""
    bounds = Bounds(ranks=2, daemons=1, waves=1, messages=1)
    world, shape = prepared(bounds), shape_of(bounds)
    gates = Ranks(shape, ALL_GUARDS).gate(world.ranks, world.cache, world.group, world.left)
    split = [gate.ranks for gate in gates if len({rank.serves for rank in gate.ranks}) == 2]
    assert {tuple(rank.left for rank in ranks) for ranks in split} == {(True, False), (False, True)}
    for ranks in split:
        assert broken_rule(shape, ranks, world.group) == ""
        served_on = tuple(rank._replace(codes=frozenset()) for rank in ranks)
        assert broken_rule(shape, served_on, world.group) == "ranks that serve together use two maps"
        assert list(reforms(shape, bounds.waves, ranks, world.group))


def test_one_that_lost_its_group_is_not_taken_for_one_with_wrong_weights():
    bounds = Bounds(ranks=2, daemons=1, waves=1)
    world, ranks = prepared(bounds), Ranks(SHAPES[2], ALL_GUARDS)
    dead = (crashed(world.ranks[0]), world.ranks[1])
    (left,) = [gate.ranks[1] for gate in ranks.group_fails(dead, world.group, world.left)]
    record = ranks.record(ranks.plain(left, 1, world.group), 1, world.group)
    assert record.state is RankState.STUCK
    assert not weights_in_doubt(record.state, record.codes)
    assert weights_in_doubt(RankState.STUCK, frozenset())
