"""Rules of the schedule: every kind comes often enough, the seed decides the order, and lanes keep apart what must not overlap."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from eplb.chaos.daemon_faults import KillLeader
from eplb.chaos.faults import FRAME_KINDS, KILL_LEADER, KINDS, RANK_KILL, Fault
from eplb.chaos.load import DRIFT_STEPS, DRIFTS, drifting_picks, shared_out, tokens_of
from eplb.chaos.schedule import CONTROL, CONTROLS, FRAMES, FULL, RANK_SIDE, SHORT, lanes, shares_alone
from eplb.chaos.setup import EVEN, EXPERTS, RANKS, SLOTS_PER_RANK, TOKENS_PER_STEP, TOP_K, WEIGHTED, run_facts
from eplb.chaos.watch import PREPARED, PROTOCOL_STATES, SHARES_STATES, STAGING, Seen

ALL = frozenset(KINDS)


def faults(scale, kinds=ALL, seed=0):
    return {name: [*lane.states, *lane.others] for name, lane in lanes(scale, kinds, seed).items()}


def words(found):
    return {name: [(fault.kind, fault.detail) for fault in lane] for name, lane in found.items()}


def test_fourteen_kinds_four_of_frames():
    assert len(KINDS) == len(ALL) == 14
    assert len(FRAME_KINDS) == 4


@pytest.mark.parametrize("scale", [FULL, SHORT], ids=["full", "short"])
def test_the_schedule_reaches_every_minimum(scale):
    kinds = Counter(fault.kind for lane in faults(scale).values() for fault in lane)
    assert all(kinds[kind] >= least for kind, least in scale.least.items())
    assert sum(count for kind, count in kinds.items() if kind not in FRAME_KINDS) >= scale.faults
    states = Counter(fault.detail for fault in faults(scale)[CONTROL] if fault.kind == KILL_LEADER)
    shares = {shares_alone(state): scale.shares_kills for state in SHARES_STATES if scale.shares_kills}
    assert states == dict.fromkeys(PROTOCOL_STATES, scale.kills) | shares


def test_the_full_run_is_what_was_asked_for():
    assert (FULL.faults, FULL.waves, FULL.refused, FULL.kills) == (100, 20, 5, 3)
    assert FULL.least == dict.fromkeys(KINDS, 5)


def test_where_dispatch_is_even_nothing_is_asked_that_only_shares_can_bring():
    even = FULL.of(EVEN)
    assert (even.shares_only, even.shares_kills) == (0, 0)
    assert replace(even, shares_only=5, shares_kills=2) == FULL == FULL.of(WEIGHTED)


@dataclass
class Looking:
    """A world that is steady and in which this was seen."""

    seen: Seen
    steady: bool = True


def test_a_leader_is_killed_over_a_wave_of_shares_alone_only_when_one_is_on_offer():
    any_wave, of_shares = (
        KillLeader(KILL_LEADER, state=STAGING, shares_alone=alone) for alone in (False, True)
    )
    for phase, alone, ready in (
        (STAGING, False, (True, False)),
        (STAGING, True, (True, True)),
        (PREPARED, True, (False, False)),
    ):
        world = Looking(Seen(phase=phase, shares_alone=alone))
        assert (any_wave.ready(world), of_shares.ready(world)) == ready


def test_the_seed_decides_the_order():
    assert words(faults(FULL, seed=4)) == words(faults(FULL, seed=4))
    assert words(faults(FULL, seed=4)) != words(faults(FULL, seed=5))


def test_lanes_keep_processes_apart():
    found = faults(FULL)
    assert {fault.kind for fault in found[FRAMES]} == set(FRAME_KINDS)
    assert {fault.kind for fault in found[RANK_SIDE]} == {RANK_KILL, "tensor_corrupt", "link_slow"}
    kinds = [{fault.kind for fault in lane} for lane in found.values()]
    assert sum(map(len, kinds)) == len(set.union(*kinds)) == 14


def test_only_the_kinds_that_are_wanted_come():
    found = faults(FULL, kinds=frozenset({RANK_KILL}))
    assert {fault.kind for lane in found.values() for fault in lane} == {RANK_KILL}
    assert {fault.rank for fault in found[RANK_SIDE]} == set(range(RANKS))


@pytest.mark.parametrize("without", list(CONTROLS))
def test_a_negative_control_injects_what_its_protection_is_for(without):
    kinds, scale = CONTROLS[without]
    assert {fault.kind for lane in faults(scale, kinds).values() for fault in lane} == kinds


def test_a_fault_says_what_it_does():
    with pytest.raises(NotImplementedError):
        Fault("nothing").begin(None)


# --- the load -----------------------------------------------------------------------------------------------------


def test_a_step_is_the_same_tokens_for_everyone_and_shared_out_whole():
    first, again = tokens_of(1, 40, TOKENS_PER_STEP), tokens_of(1, 40, TOKENS_PER_STEP)
    assert first.positions.tolist() == again.positions.tolist()
    for members in ((0, 1, 2, 3), (0, 2, 3)):
        parts = shared_out(first, members)
        assert sorted(x for part in parts.values() for x in part.positions) == sorted(first.positions)
        assert tuple(parts) == members


def test_hot_experts_change_so_that_there_is_always_something_to_plan():
    run = run_facts(1)

    def hot(step):
        tokens = tokens_of(1, step, TOKENS_PER_STEP)
        picks = run.routing.picks_of(tokens.sequences, tokens.positions)[:, 0]
        return {expert for expert, _ in Counter(picks.ravel().tolist()).most_common(4)}

    assert hot(0) != hot(DRIFT_STEPS)
    assert TOP_K * TOKENS_PER_STEP > EXPERTS


def test_three_changes_in_four_leave_the_hot_experts_nearly_as_they_were():
    """So that new shares can answer them: of the twelve hottest most stay, where else about twelve in 32 of them would."""
    picks = drifting_picks(seed=1, layers=1, experts=EXPERTS, top_k=TOP_K).reshape(DRIFTS, -1)
    hot = [set(np.bincount(drift, minlength=EXPERTS).argsort()[-12:].tolist()) for drift in picks]
    stay = [len(before & after) for before, after in pairwise(hot)]
    assert np.mean([stay[0::4], stay[1::4], stay[2::4]]) > 6.3
    assert np.mean(stay[3::4]) < 5.0


def test_three_ranks_hold_every_expert():
    assert (RANKS - 1) * SLOTS_PER_RANK >= EXPERTS
