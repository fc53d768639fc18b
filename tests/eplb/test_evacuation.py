"""A lost rank is answered at once, whatever the window says; one that is back is filled though the rest is balanced."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS
from controller_stories import BALANCED, BASE, SEEN, SETTINGS
from structlog import get_logger
from structlog.testing import capture_logs
from test_migration_membership import ALL, LIVING, ROWS, read, records_of, reduced

from collectors.facts import PoolFacts
from eplb.agent.emergency import emergency_rows
from eplb.agent.rounds import wave_copies
from eplb.controller import decide
from eplb.decisions import Code, PlanFacts
from eplb.evacuation import Evacuation, Need, asked_for, before_moving, empty_ranks, urgent_material
from eplb.gate import Rest, refuse
from eplb.membership import MembershipWatch
from eplb.migration import make_plan
from eplb.planner import PlanRequest
from eplb.planner import make_plan as solve_plan
from eplb.states import Action, Answer, Name, State

LOST = Need(Code.RANK_LOST, "rank 1 lost", urgent=True)
BACK = Need(Code.RANK_BACK, "ranks 1 are back and hold no expert yet", urgent=False)
PLAN = PlanFacts("p1", 1, 6, 600, 1.5, 1.5, 1.0, 3, 1, degraded=True)
OBSERVING = State(name=Name.OBSERVING)
PLN_09 = PoolFacts("p", ranks=4, nodes=1, slots_per_rank=3, experts=8, top_k=2, model_layers=(0,))
BROKEN = np.array([[0, 1, 2, 3, 4, 5, -1, -1, -1, 1, 3, 6]], dtype=np.int32)


def request(tokens, current, dead):
    return PlanRequest(
        tokens=tokens, current=current, ranks=4, nodes=1, slots_per_rank=3, dead=dead, effort="fast"
    )


def test_pln_11_a_plan_of_evacuation_does_not_wait_for_complete_data_one_of_balance_does():
    seen = replace(SEEN, coverage=0.6)
    inputs = replace(BASE, assessment=seen)
    optimisation = decide(OBSERVING, inputs, SETTINGS)
    assert (optimisation.action, optimisation.decision.code) == (Action.NONE, Code.LOW_COVERAGE)
    evacuation = decide(OBSERVING, replace(inputs, need=LOST), SETTINGS)
    assert (evacuation.action, evacuation.decision.code) == (Action.ASK_PLAN, Code.RANK_LOST)
    assert "coverage 0.60, needed" in evacuation.decision.sentence, "what was not waited for is said"


def test_evacuation_waits_for_neither_cooldown_nor_a_first_frame_but_for_pause_and_an_unsound_group():
    resting = replace(OBSERVING, rest=Rest(BASE.time_ms + 60_000, BASE.time_ms + 60_000))
    assert decide(resting, replace(BASE, need=LOST), SETTINGS).action is Action.ASK_PLAN
    assert decide(OBSERVING, replace(BASE, assessment=None, need=LOST), SETTINGS).action is Action.ASK_PLAN
    paused = decide(OBSERVING, replace(BASE, paused=True, need=LOST), SETTINGS)
    assert (paused.action, paused.decision.code) == (Action.NONE, Code.PAUSED)
    stuck = refuse(Code.RANKS_STUCK, "ranks 2 are stuck", "a restart")
    assert decide(OBSERVING, replace(BASE, problem=stuck, need=LOST), SETTINGS).action is Action.NONE


def test_a_loss_ends_the_wait_for_the_gain_of_the_last_plan():
    settling = replace(
        OBSERVING, name=Name.SETTLING, plan=PLAN, rest=Rest(BASE.time_ms + 60_000, BASE.time_ms + 60_000)
    )
    assert decide(settling, BASE, SETTINGS).state.name is Name.SETTLING
    freed = decide(settling, replace(BASE, need=LOST), SETTINGS)
    assert (freed.state.name, freed.decision.code) == (Name.OBSERVING, Code.SETTLED)
    assert decide(freed.state, replace(BASE, need=LOST), SETTINGS).action is Action.ASK_PLAN


def test_a_degraded_plan_is_moved_without_gain_but_not_without_moves():
    planning = State(name=Name.PLANNING)
    accepted = decide(planning, replace(BASE, answer=Answer(PLAN)), SETTINGS)
    assert (accepted.state.name, accepted.action) == (Name.MOVING, Action.OFFER_NEXT)
    ordinary = decide(planning, replace(BASE, answer=Answer(replace(PLAN, degraded=False))), SETTINGS)
    assert ordinary.decision.code is Code.GAIN_TOO_SMALL
    assert not before_moving(replace(PLAN, moves=0)).passed
    assert not before_moving(replace(PLAN, ratio_after=1.6)).passed


def test_a_rank_that_is_back_outweighs_the_trigger_and_nothing_else():
    balanced = refuse(Code.BALANCED, "recoverable excess 0.03 is below the target", "more")
    thin = refuse(Code.NOT_ENOUGH_DATA, "3 slices", "time")
    assert asked_for(BACK, balanced).code is Code.RANK_BACK
    hot = refuse(Code.INDIVISIBLE_HOT_EXPERT, "expert 17 is hotter than a fair share", "more slots")
    assert asked_for(BACK, hot).code is Code.RANK_BACK, "it stands empty all the same"
    ignored = refuse(Code.SHARES_IGNORED, "tokens do not follow shares", "dispatch: even")
    assert asked_for(BACK, ignored).code is Code.RANK_BACK, (
        "and its slots are worth something however tokens are dealt"
    )
    assert not asked_for(BACK, thin).passed
    assert asked_for(None, balanced) is balanced
    outcome = decide(OBSERVING, replace(BASE, assessment=BALANCED, need=BACK), SETTINGS)
    assert (outcome.action, outcome.decision.code) == (Action.ASK_PLAN, Code.RANK_BACK)


def test_a_need_ends_with_a_plan_that_is_live_or_has_nothing_to_move_and_comes_again_after_any_other_answer():
    evacuation = Evacuation()
    ranks = read({**records_of(77, ALL), **records_of(78, LIVING, reduced())})
    assert evacuation.need(ranks, 1_000).code is Code.RANK_LOST
    asked = decide(OBSERVING, replace(BASE, need=LOST), SETTINGS).decision
    evacuation.note(asked, ranks)
    assert evacuation.need(ranks, asked.time_ms + 9_000) is None, "not asked for twice at once"
    refused = replace(asked, code=Code.OFFER_REFUSED, plan=PLAN)
    evacuation.note(refused, ranks)
    assert evacuation.need(ranks, asked.time_ms + 10_000) is not None
    evacuation.note(replace(asked, code=Code.APPLIED, plan=PLAN), ranks)
    assert evacuation.need(ranks, asked.time_ms + 99_000) is None
    again = read(records_of(79, (1, 2), reduced()))
    assert evacuation.need(again, asked.time_ms + 99_000).code is Code.RANK_LOST, "another life, another loss"


def test_a_store_clock_that_steps_back_does_not_hold_up_a_lost_rank():
    evacuation = Evacuation()
    ranks = read({**records_of(77, ALL), **records_of(78, LIVING, reduced())})
    evacuation.note(decide(OBSERVING, replace(BASE, need=LOST), SETTINGS).decision, ranks)
    assert evacuation.need(ranks, BASE.time_ms + 5_000) is None
    assert evacuation.need(ranks, BASE.time_ms - 3_600_000).code is Code.RANK_LOST


def test_a_member_without_any_expert_is_what_came_back():
    assert empty_ranks(reduced(), 4) == (0,)
    assert empty_ranks(ROWS, 4) == ()
    ranks = read(records_of(79, ALL, reduced()))
    need = Evacuation().need(ranks, 1_000)
    assert (need.code, need.urgent) == (Code.RANK_BACK, False)
    assert "ranks 0 are back" in need.sentence


class View:
    def __init__(self, tokens):
        self.tokens = np.asarray(tokens)


def test_a_plan_that_cannot_wait_takes_the_slices_there_are_or_equal_loads():
    loaded = np.ones((5, 3, 8), dtype=np.int64) * np.arange(5)[:, None, None]
    assert np.array_equal(urgent_material(View(loaded), FACTS).tokens, loaded[1:])
    few = urgent_material(View(loaded[:3]), FACTS).tokens
    assert few.shape == (4, 3, 8)
    assert len(np.unique(few)) == 1


def test_pln_09_the_plan_uses_living_ranks_only_and_no_transfer_touches_the_dead_one():
    joint, loads = emergency_rows(PLN_09, (0, 1, 3), BROKEN)
    assert [expert for _, _, expert in loads] == [7]
    equal = np.ones((4, 1, 8), dtype=np.int64)
    result = solve_plan(request(equal, joint, frozenset({2})))
    assert set(range(8)) <= set(result.target[0].tolist())
    assert (result.target[0, 6:9] == -1).all()
    skewed = np.tile(np.array([9, 1, 1, 1, 1, 1, 9, 1], dtype=np.int64), (8, 1, 1))
    result = solve_plan(request(skewed, joint, frozenset({2})))
    plan = make_plan(PLN_09, joint, result.target, created_ms=1)
    copies = wave_copies(PLN_09, joint, plan.changes[:1])
    assert all(2 not in (copy.source // 3, copy.destination // 3) for copy in copies)


def test_a_rank_that_is_back_and_empty_is_filled_by_an_ordinary_plan():
    joint, _ = emergency_rows(PLN_09, (0, 1, 3), BROKEN)
    tokens = np.tile(np.array([9, 1, 1, 1, 1, 1, 9, 1], dtype=np.int64), (8, 1, 1))
    result = solve_plan(request(tokens, joint, frozenset()))
    assert (result.target[0, 6:9] >= 0).any()
    assert result.ratio_after < result.ratio_before


@pytest.fixture
def watch():
    return MembershipWatch(get_logger())


def test_loss_return_and_reloads_are_said_once(watch):
    first = records_of(78, LIVING, reduced())
    first[1] = replace(first[1], reloaded=((0, 4), (1, 4)), reloaded_experts=40)
    smaller = read({**records_of(77, ALL), **first})
    with capture_logs() as logs:
        for ranks in (read(records_of(77, ALL)), smaller, smaller, read(records_of(79, ALL))):
            watch.observe(ranks)
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("rank_lost", "warning"), ("expert_reloaded", "warning"), ("rank_back", "info"),
    ]  # fmt: skip
    assert logs[1]["count"] == 40
    assert logs[1]["experts"] == ["layer 0 expert 4", "layer 1 expert 4"]


def test_a_lost_expert_is_a_critical_event_and_stops_planning(watch):
    lost = {
        rank: replace(
            record,
            state="stuck",
            map_rows=None,
            facts=None,
            refusals=((1, "expert_lost", "layer 0 expert 4"),),
        )
        for rank, record in records_of(78, LIVING, reduced()).items()
    }
    with capture_logs() as logs:
        watch.observe(read(lost))
        watch.observe(read(lost))
    assert [(line["event"], line["log_level"]) for line in logs if line["event"] == "expert_lost"] == [
        ("expert_lost", "critical")
    ]
    assert watch.problem(read(lost)).code is Code.EXPERT_LOST


def test_another_model_is_noticed_in_the_cycle_in_which_it_comes(watch):
    def loaded(digest):
        return read(
            {rank: replace(record, model_digest=digest) for rank, record in records_of(77, ALL).items()}
        )

    assert [watch.observe(loaded(digest)) for digest in (5, 5, 6, 6)] == [False, False, True, False]
    watch.observe(loaded(7))
    assert watch.problem(loaded(7)).code is Code.MODEL_CHANGED
