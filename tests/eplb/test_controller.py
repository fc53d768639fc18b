"""Rules of the controller: every transition, and golden decision logs of whole stories."""

from dataclasses import replace
from pathlib import Path

import pytest
from controller_stories import (
    BACK,
    BASE,
    DELIVERED,
    PLAN,
    SEEN,
    SETTINGS,
    STORIES,
    WORSE,
    delegated,
    moved,
    run,
    waiting,
)

from eplb.controller import abandoned, decide
from eplb.decisions import Code
from eplb.gate import Rest, refuse
from eplb.price import Worth
from eplb.rollback import Realised
from eplb.states import TRANSITIONS, Action, Answer, Event, Movement, Name, State

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(STORIES))
def test_story_reads_as_recorded(name):
    """The decision log of a story is the recorded one, word for word."""
    _, text = run(STORIES[name])
    path = GOLDEN / f"controller_{name}.txt"
    assert text == path.read_text(), f"decision log changed:\n{text}"


def test_every_transition_is_reached_by_a_story():
    """No line of the transition table is dead except losing the lease, which every state must survive."""
    seen = set()
    for story in STORIES.values():
        state = State()
        for inputs in (item[1] for item in story):
            outcome = decide(state, inputs, SETTINGS)
            seen.add((state.name, outcome.state.name, outcome.action))
            state = outcome.state
    wanted = {
        (before, after, action)
        for (before, event), (after, action) in TRANSITIONS.items()
        if event not in (Event.LEAD_LOST, Event.PLAN_ADVISED, Event.UNWANTED)
    }
    assert wanted <= seen


@pytest.mark.parametrize("name", list(Name))
def test_losing_the_lease_leads_to_standby_from_everywhere(name):
    """Whatever was going on, a process without the lease asks for nothing but the end of its own solve."""
    outcome = decide(State(name=name), replace(BASE, leader=False), SETTINGS)
    assert outcome.state.name is Name.STANDBY
    assert outcome.action in (Action.NONE, Action.CANCEL_PLAN)


@pytest.mark.parametrize(("mode", "action"), [("advise", Action.WRITE_ADVICE), ("auto", Action.OFFER_NEXT)])
def test_only_auto_moves(mode, action):
    """The same plan is written down in advise mode and offered in auto mode."""
    settings = SETTINGS.model_copy(update={"mode": mode})
    outcome = decide(State(name=Name.PLANNING), replace(BASE, answer=Answer(PLAN)), settings)
    assert outcome.action is action


def test_observe_mode_never_asks_for_a_plan():
    """A fresh install measures and says what it would do."""
    settings = SETTINGS.model_copy(update={"mode": "observe"})
    outcome = decide(State(name=Name.OBSERVING), BASE, settings)
    assert (outcome.action, outcome.decision.code) == (Action.NONE, Code.OBSERVE_ONLY)


@pytest.mark.parametrize("mode", ["observe", "advise"])
@pytest.mark.parametrize("name", [Name.OBSERVING, Name.MOVING])
def test_a_mode_that_moves_nothing_withdraws_what_is_on_offer(mode, name):
    """A daemon restarted in another mode than auto stops a plan between waves and finishes none."""
    settings = SETTINGS.model_copy(update={"mode": mode})
    for state in ("moving", "wave_live"):
        outcome = decide(State(name=name, plan=PLAN), moved(state), settings)
        assert (outcome.action, outcome.state.name) == (Action.WITHDRAW, Name.OBSERVING)
        assert outcome.decision.code is Code.WITHDRAWN
    in_doubt = decide(State(name=name, plan=PLAN), moved("in_doubt"), settings)
    assert in_doubt.action is Action.NONE


def test_a_new_leader_keeps_the_cooldown_of_the_last_offer():
    """Ten seconds after an offer the next leader waits for the rest of the cooldown."""
    outcome = decide(State(), replace(BASE, applied_ms=BASE.time_ms - 10_000), SETTINGS)
    assert outcome.state.rest == Rest(BASE.time_ms + 50_000, BASE.time_ms + 50_000)
    assert decide(outcome.state, BASE, SETTINGS).decision.code is Code.COOLDOWN


def test_a_store_clock_that_steps_back_does_not_stretch_the_cooldown():
    """The rest of a cooldown is never longer than the cooldown."""
    late = BASE.time_ms + 86_400_000
    state = State(name=Name.OBSERVING, rest=Rest(late, late))
    assert decide(state, BASE, SETTINGS).state.rest == Rest(BASE.time_ms + 60_000, BASE.time_ms + 60_000)


def test_an_action_that_was_impossible_leads_back_to_observing():
    """The record says what was meant and why it was not done, and a cooldown begins."""
    meant = decide(State(name=Name.PLANNING), replace(BASE, answer=Answer(PLAN)), SETTINGS)
    outcome = abandoned(meant, Code.NOT_DONE, "ranks [2] serve another map", 60.0)
    assert (outcome.state.name, outcome.action, outcome.state.plan) == (Name.OBSERVING, Action.NONE, None)
    assert outcome.state.rest.cooldown_until_ms == BASE.time_ms + 60_000
    assert outcome.decision.sentence.endswith("not done: ranks [2] serve another map")


def test_pause_stops_the_next_wave_but_not_the_one_in_flight():
    """PAUSED between waves holds the next offer; a wave under way goes on."""
    moving = State(name=Name.MOVING, plan=PLAN)
    between = decide(moving, replace(moved("wave_live"), paused=True), SETTINGS)
    under_way = decide(moving, replace(moved("all_live"), paused=True), SETTINGS)
    assert between.action is Action.NONE
    assert under_way.action is Action.CLOSE


def test_pln_01_even_ranks_are_left_alone():
    """PLN-01: no plan when ranks are already even, a plan when they are not."""
    actions = [
        decide(
            State(name=Name.OBSERVING),
            replace(BASE, assessment=replace(SEEN, recoverable_excess=r, recent_recoverable=r)),
            SETTINGS,
        ).action
        for r in (100 / 98.0 - 1.0, 1.0 / 0.5 - 1.0)
    ]
    assert actions == [Action.NONE, Action.ASK_PLAN]


def test_pln_02_gain_decides_and_is_recorded_with_its_bytes():
    """PLN-02: 120 moves for 1 % are refused, 6 moves for 20 % accepted; gain and bytes stand in the record."""
    settings = SETTINGS.model_copy(update={"min_gain": 0.05})
    plans = [
        replace(PLAN, moves=120, bytes=120 * 44_040_192, ratio_before=1.000, ratio_after=0.990),
        replace(PLAN, moves=6, bytes=6 * 44_040_192, ratio_before=1.000, ratio_after=0.800),
    ]
    outcomes = [
        decide(State(name=Name.PLANNING), replace(BASE, answer=Answer(plan)), settings) for plan in plans
    ]
    assert [o.decision.code for o in outcomes] == [Code.GAIN_TOO_SMALL, Code.OFFERED]
    records = [o.decision.as_dict()["plan"] for o in outcomes]
    assert [r["bytes"] for r in records] == [5_284_823_040, 264_241_152]
    assert [r["gain"] for r in records] == pytest.approx([0.01, 0.2])


def test_settling_ends_with_the_cooldown_when_traffic_stops():
    """Without slices after the switch the controller does not wait for ever."""
    state = State(name=Name.SETTLING, rest=Rest(cooldown_until_ms=BASE.time_ms - 1), plan=PLAN)
    outcome = decide(state, BASE, SETTINGS)
    assert (outcome.state.name, outcome.decision.code) == (Name.OBSERVING, Code.SETTLED)


def test_settling_on_a_former_leaders_plan_waits_for_no_slices():
    """Nothing can be compared with a map before that this process never saw; the reason given is that one."""
    state = State(name=Name.SETTLING, rest=Rest(cooldown_until_ms=BASE.time_ms + 60_000))
    outcome = decide(state, BASE, SETTINGS)
    assert (outcome.state.name, outcome.decision.code) == (Name.OBSERVING, Code.SETTLED)
    assert "former leader's" in outcome.decision.sentence


def test_a_plan_is_not_offered_where_something_was_found_against_it_meanwhile():
    """The store may evict, or a rank is stuck, since the solver was asked: the same reason as before planning."""
    problem = refuse(Code.RANKS_STUCK, "ranks 2 are stuck", "a restart of these ranks")
    outcome = decide(State(name=Name.PLANNING), replace(BASE, answer=Answer(PLAN), problem=problem), SETTINGS)
    assert (outcome.state.name, outcome.action) == (Name.OBSERVING, Action.NONE)
    assert outcome.decision.code is Code.RANKS_STUCK


def test_a_solve_that_was_overtaken_costs_no_cooldown():
    """The live map changed under it, so the next cycle may plan anew."""
    outcome = decide(State(name=Name.PLANNING), replace(BASE, answer=Answer(base_is_live=False)), SETTINGS)
    assert (outcome.decision.code, outcome.state.rest) == (Code.PLAN_STALE, Rest())


def test_every_state_has_a_way_to_hold_or_leave():
    """Each state of the table can be reached and left."""
    befores = {before for before, _ in TRANSITIONS}
    afters = {after for after, _ in TRANSITIONS.values()}
    assert befores == set(Name)
    assert afters == set(Name)
    assert all((a, Event.LEAD_LOST) in TRANSITIONS for a in Name if a is not Name.STANDBY)


PATIENT = SETTINGS.model_copy(update={"cooldown_s": 300.0, "min_interval_s": 300.0, "progress_s": 120.0})


def test_pln_05_a_silent_rank_is_named_within_two_intervals_and_the_countdown_never_falls_below_zero():
    """PLN-05: ranks 0 to 14 answer, 15 never: rebalance_stalled with rank 15, over when its live map comes; then the next plan is allowed."""
    state, codes, countdown = State(name=Name.MOVING, plan=PLAN), [], []
    story = [*[waiting(15)] * 120, moved("all_live"), *[replace(BASE, realised=DELIVERED)] * 2, *[BASE] * 70]
    for number, inputs in enumerate(story):
        step = decide(state, replace(inputs, time_ms=BASE.time_ms + 5_000 * number), PATIENT)
        state = step.state
        codes.append((number * 5, step.decision.code, step.decision.stalled_ranks))
        countdown.append(step.decision.next_plan_s)
    stalled = [entry for entry in codes if entry[1] is Code.REBALANCE_STALLED]
    assert stalled[0] == (PATIENT.progress_s, Code.REBALANCE_STALLED, (15,))
    assert stalled[0][0] <= 2 * PATIENT.interval_s
    assert [code for _, code, _ in codes[120:123]] == [Code.APPLIED, Code.SETTLED, Code.COOLDOWN]
    assert not any(ranks for _, _, ranks in codes[120:])
    assert Code.PLANNING in {code for _, code, _ in codes[123:]}
    assert min(countdown) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        Answer(replace(PLAN, worth=Worth())),
        Answer(None, code=Code.NEEDS_STAGING, sentence="layer 3 needs 2 staging slots"),
    ],
)
def test_a_pool_that_wants_plans_and_can_move_none_of_them_says_that_nothing_moves(answer):
    """Nobody knows the price, or staging is too small: each plan is refused, and an alert fires; between plans the reason is named."""
    state, codes, sentences = State(name=Name.OBSERVING), [], []
    for number in range(200):
        given = answer if state.name is Name.PLANNING else None
        step = decide(state, replace(BASE, answer=given, time_ms=BASE.time_ms + 5_000 * number), PATIENT)
        state = step.state
        codes.append(step.decision.code)
        sentences.append(step.decision.sentence)
    refused = Code.NO_PRICE if answer.plan else Code.NEEDS_STAGING
    assert refused in codes
    assert codes.index(Code.NO_PROGRESS) * 5 >= 2 * PATIENT.interval_s
    assert any(f"of the cooldown are left, which follows {refused}" in said for said in sentences)


def test_a_pool_whose_engine_ignores_shares_says_that_nothing_moves():
    ignored = replace(BASE, assessment=replace(SEEN, shares_followed=0.0))
    state, codes = State(name=Name.OBSERVING), []
    for number in range(200):
        step = decide(state, replace(ignored, time_ms=BASE.time_ms + 5_000 * number), PATIENT)
        state = step.state
        codes.append(step.decision.code)
    assert list(dict.fromkeys(codes)) == [Code.SHARES_IGNORED, Code.NO_PROGRESS]
    assert codes.index(Code.NO_PROGRESS) * 5 >= 2 * PATIENT.interval_s


def test_an_idle_pool_is_not_alarmed_for_what_it_wanted_in_the_evening():
    """An offer expired and then the traffic stopped: without load no placement is wanted."""
    expired = decide(State(name=Name.MOVING, plan=PLAN), moved("expired"), PATIENT).state
    assert expired.progress.wanted_ms is not None
    night = replace(BASE, assessment=replace(SEEN, slices=0, tokens=0))
    state, codes = expired, []
    for number in range(1, 1000):
        step = decide(state, replace(night, time_ms=BASE.time_ms + 5_000 * number), PATIENT)
        state = step.state
        codes.append(step.decision.code)
    assert set(codes) == {Code.COOLDOWN, Code.NOT_ENOUGH_DATA}


def test_mig_12_an_unverified_plan_is_said_and_so_is_one_without_effect():
    """MIG-12: a read-back that differs is apply_unverified; a ratio more than 20 % above the promise is a second alert."""
    unverified = decide(
        State(name=Name.MOVING, plan=PLAN), moved("unverified", "4 ranks report v4"), SETTINGS
    )
    settling = State(name=Name.SETTLING, plan=replace(PLAN, ratio_after=1.1))
    codes = [
        decide(
            settling, replace(BASE, realised=replace(DELIVERED, observed_ratio=ratio)), SETTINGS
        ).decision.code
        for ratio in (1.1, 1.31, 1.33, 1.9)
    ]
    assert unverified.decision.code is Code.APPLY_UNVERIFIED
    assert codes == [Code.SETTLED, Code.SETTLED, Code.GAIN_MISSED, Code.GAIN_MISSED]


@pytest.mark.parametrize(
    ("mode", "paused", "rollback", "why"),
    [
        ("advise", False, BACK, "the mode is advise"),
        ("auto", True, BACK, "the pool is paused"),
        ("auto", False, None, "no way back to the map before is known"),
    ],
)
def test_a_plan_that_did_not_deliver_is_kept_where_somebody_said_so(mode, paused, rollback, why):
    """Then it is only said, with the reason."""
    settings = SETTINGS.model_copy(update={"mode": mode})
    inputs = replace(BASE, realised=WORSE, rollback=rollback, paused=paused)
    step = decide(State(name=Name.SETTLING, plan=PLAN), inputs, settings)
    assert (step.action, step.decision.code) == (Action.NONE, Code.GAIN_MISSED)
    assert step.decision.sentence.endswith(f"it is not taken back, because {why}")


def test_a_small_gain_that_is_sure_is_kept_though_far_less_than_promised():
    """0.03 of 0.7: going back would cost as many moves again and lose it; it is said all the same."""
    state = State(name=Name.SETTLING, plan=PLAN)
    little = Realised(gain=0.03, error=0.005, observed_ratio=1.22, slices=40)
    kept = decide(state, replace(BASE, realised=little, rollback=BACK), SETTINGS)
    assert (kept.action, kept.decision.code) == (Action.NONE, Code.GAIN_MISSED)
    assert "not taken back" in kept.decision.sentence
    unsure = decide(state, replace(BASE, realised=replace(little, error=0.016), rollback=BACK), SETTINGS)
    assert unsure.action is Action.ROLL_BACK


def test_a_rollback_that_fails_is_not_rolled_back():
    """A second unverified read-back withdraws and pauses."""
    state = State(name=Name.MOVING, plan=BACK)
    step = decide(state, replace(delegated("unverified", "rank 1"), rollback=BACK), SETTINGS)
    assert step.action is Action.WITHDRAW_AND_PAUSE


def test_a_new_leader_ends_a_rollback_that_the_old_one_began_paused_or_not():
    """Half of the map is back and half is not: a pause would leave it so, and nothing is to be measured afterwards."""
    live = Movement("wave_live", "all ranks serve wave 1 of 2", going_back=True)
    adopted = State(name=Name.MOVING)
    on = decide(adopted, replace(BASE, movement=live, paused=True), SETTINGS)
    assert on.action is Action.OFFER_NEXT
    forward = replace(live, going_back=False)
    assert decide(adopted, replace(BASE, movement=forward, paused=True), SETTINGS).action is Action.NONE
    end = decide(on.state, replace(BASE, movement=replace(live, state="all_live")), SETTINGS)
    assert (end.state.name, end.decision.code) == (Name.OBSERVING, Code.ROLLED_BACK)


def test_a_new_plan_waits_for_the_minimum_interval_although_the_cooldown_is_over():
    """The interval runs from offer to offer and is kept by a new leader."""
    settings = SETTINGS.model_copy(update={"cooldown_s": 1.0})
    elected = decide(State(), replace(BASE, applied_ms=BASE.time_ms - 10_000), settings)
    step = decide(elected.state, BASE, settings)
    assert (step.decision.code, step.decision.next_plan_s) == (Code.MIN_INTERVAL, 50.0)


def test_the_record_of_a_decision_carries_the_plan_in_time():
    """What a plan saves, asks and rests on is in the log."""
    record = decide(
        State(name=Name.PLANNING), replace(BASE, answer=Answer(PLAN)), SETTINGS
    ).decision.as_dict()
    assert record["plan"]["worth"] == {
        "saved_us_per_s": 4000.0, "stall_s": 0.4, "slowdown_s": 0.1, "source": "fitted", "no_price": "",
    }  # fmt: skip
    assert (record["correction"], record["half_life_s"]) == (1.0, None)
