"""Rules of the controller: every transition, and golden decision logs of whole stories."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eplb.assess import Assessment
from eplb.config import GateConfig
from eplb.controller import (
    TRANSITIONS,
    Action,
    Answer,
    Event,
    Inputs,
    Movement,
    Name,
    State,
    abandoned,
    decide,
)
from eplb.decisions import Code, PlanFacts
from eplb.gate import refuse

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = GateConfig(
    mode="auto", cooldown_s=60, min_slices=20, min_tokens=1000, trigger_excess=0.1, min_gain=0.02
)
SEEN = Assessment(
    ranks_expected=8,
    ranks_seen=8,
    missing_ranks=(),
    coverage=1.0,
    slices=100,
    tokens=6400,
    misaligned_share=0.0,
    excess=0.9,
    recoverable_excess=0.7,
    recent_recoverable=0.6,
    ratio_by_layer=np.array([1.9, 1.9]),
)
BALANCED = replace(SEEN, excess=0.2, recoverable_excess=0.0, recent_recoverable=-0.05)
PLAN = PlanFacts("p1-abc", 1, 60, 60_000_000, 1.9, 1.2, 1.1, 75, 25)
BASE = Inputs(
    pool="main", time_ms=1_000_000, term=1, leader=True, paused=False, map_version=0, assessment=SEEN
)


def run(story, settings=SETTINGS, state=None):
    """Play (label, inputs) pairs five seconds apart; one line a cycle."""
    state, lines = state or State(), []
    for number, (label, inputs) in enumerate(story):
        outcome = decide(state, replace(inputs, time_ms=BASE.time_ms + 5_000 * number), settings)
        decision = outcome.decision
        lines.append(
            f"{label:<28} {state.name:>9} -> {outcome.state.name:<9} {outcome.action:<18} {decision.code}: {decision.sentence}"
        )
        state = outcome.state
    return state, "\n".join(lines) + "\n"


def moved(state, sentence=""):
    return replace(BASE, movement=Movement(state, sentence))


STORIES = {
    "applied": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("solving", replace(BASE, solving=True)),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        ("ranks stage", moved("moving", "wave 1 of 2 is offered; 8 of 8 ranks stage it")),
        ("wave 1 live", moved("wave_live", "wave 1 of 2 is live on all 8 ranks")),
        ("vote taken, silence", moved("in_doubt", "wave 2 of 2 was voted on; 7 of 8 ranks report it")),
        ("wave 2 live", moved("all_live", "all waves are live on all 8 ranks")),
        ("gathering", replace(BASE, map_version=1, assessment=BALANCED)),
        ("measured", replace(BASE, map_version=1, assessment=BALANCED, realised_gain=0.68)),
        ("cooldown", replace(BASE, map_version=1)),
    ],
    "held_back": [
        ("no lease", replace(BASE, leader=False)),
        ("elected", BASE),
        ("no frames", replace(BASE, assessment=None)),
        (
            "a rank is missing",
            replace(BASE, assessment=replace(SEEN, ranks_seen=6, coverage=0.75, missing_ranks=(2, 5))),
        ),
        ("thin data", replace(BASE, assessment=replace(SEEN, slices=5, tokens=320))),
        ("misaligned", replace(BASE, assessment=replace(SEEN, misaligned_share=0.03))),
        ("balanced", replace(BASE, assessment=BALANCED)),
        ("dead band", replace(BASE, assessment=replace(SEEN, recoverable_excess=0.07))),
        ("a burst that is over", replace(BASE, assessment=replace(SEEN, recent_recoverable=0.01))),
        ("paused", replace(BASE, paused=True)),
        (
            "facts differ",
            replace(BASE, problem=refuse(Code.FACTS_MISMATCH, "the ranks report 64 experts", "one truth")),
        ),
        (
            "a rank is stuck",
            replace(BASE, problem=refuse(Code.RANKS_STUCK, "ranks 1 are stuck", "a restart")),
        ),
        ("lease lost", replace(BASE, leader=False)),
    ],
    "refused": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        ("rank 3 refuses", moved("refused", "rank 3: weights_differ: layer 2 slot 7")),
        ("cooldown", BASE),
    ],
    "dropped_plans": [
        ("elected", BASE),
        ("skewed load", BASE),
        (
            "timeout",
            replace(BASE, answer=Answer(None, Code.PLANNING_TIMEOUT, "no plan after 30.1 s (deadline 30 s)")),
        ),
    ],
    "lost_solve": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("the solver is gone", BASE),
        ("asked anew", BASE),
    ],
    "small_gain": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("gain 1 %", replace(BASE, answer=Answer(replace(PLAN, ratio_after=1.89)))),
    ],
    "stale_plan": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("map changed meanwhile", replace(BASE, answer=Answer(PLAN, base_is_live=False))),
    ],
    "adopted": [
        ("elected", BASE),
        ("half-done plan found", moved("wave_live", "wave 1 of 2 is live on all 8 ranks")),
        ("next wave", moved("wave_live", "wave 1 of 2 is live on all 8 ranks")),
        ("all live", moved("all_live", "all waves are live on all 8 ranks")),
    ],
    "taken_over": [
        ("elected", BASE),
        ("old leader's offer found", moved("moving", "wave 1 of 2 is on offer")),
        ("ranks stage", moved("moving", "wave 1 of 2 is on offer")),
    ],
    "unverified": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        ("read-back differs", moved("unverified", "rank 1 reports another digest than was voted for")),
    ],
}


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
    assert outcome.state.cooldown_until_ms == BASE.time_ms + 50_000
    assert decide(outcome.state, BASE, SETTINGS).decision.code is Code.COOLDOWN


def test_a_store_clock_that_steps_back_does_not_stretch_the_cooldown():
    """The rest of a cooldown is never longer than the cooldown."""
    state = State(name=Name.OBSERVING, cooldown_until_ms=BASE.time_ms + 86_400_000)
    assert decide(state, BASE, SETTINGS).state.cooldown_until_ms == BASE.time_ms + 60_000


def test_an_action_that_was_impossible_leads_back_to_observing():
    """The record says what was meant and why it was not done, and a cooldown begins."""
    meant = decide(State(name=Name.PLANNING), replace(BASE, answer=Answer(PLAN)), SETTINGS)
    outcome = abandoned(meant, Code.NOT_DONE, "ranks [2] serve another map", 60.0)
    assert (outcome.state.name, outcome.action, outcome.state.plan) == (Name.OBSERVING, Action.NONE, None)
    assert outcome.state.cooldown_until_ms == BASE.time_ms + 60_000
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
    state = State(name=Name.SETTLING, cooldown_until_ms=BASE.time_ms - 1, plan=PLAN)
    outcome = decide(state, BASE, SETTINGS)
    assert (outcome.state.name, outcome.decision.code) == (Name.OBSERVING, Code.SETTLED)


def test_every_state_has_a_way_to_hold_or_leave():
    """Each state of the table can be reached and left."""
    befores = {before for before, _ in TRANSITIONS}
    afters = {after for after, _ in TRANSITIONS.values()}
    assert befores == set(Name)
    assert afters == set(Name)
    assert all((a, Event.LEAD_LOST) in TRANSITIONS for a in Name if a is not Name.STANDBY)
