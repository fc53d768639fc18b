"""Stories of a pool as the controller sees them: what comes in, cycle by cycle, and the facts that they are made of."""

from dataclasses import replace

import numpy as np

from eplb.assess import Assessment
from eplb.config import GateConfig
from eplb.controller import decide
from eplb.decisions import Code, PlanFacts
from eplb.gains import Gains, Outcome
from eplb.gate import refuse
from eplb.hot_experts import HotExpert
from eplb.price import Worth
from eplb.rollback import Realised
from eplb.states import Answer, Inputs, Movement, State

SETTINGS = GateConfig(
    mode="auto",
    cooldown_s=60,
    min_interval_s=60,
    min_slices=20,
    min_tokens=1000,
    trigger_excess=0.1,
    min_gain=0.02,
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
    fixable_excess=0.7,
    hot_expert=HotExpert(3, 17, 0.8),
    drift=0.05,
)
BALANCED = replace(SEEN, excess=0.2, recoverable_excess=0.0, recent_recoverable=-0.05)
PLAN = PlanFacts(
    "p1-abc",
    1,
    60,
    60_000_000,
    1.9,
    1.2,
    1.1,
    75,
    25,
    layers=2,
    gain_error=0.01,
    worth=Worth(4_000.0, 0.4, 0.1, "fitted", ""),
)
SHARES = replace(PLAN, plan_id="p2-abc", moves=0, bytes=0, ratio_after=1.8)
BACK = replace(PLAN, plan_id="p3-abc", rollback=True)
DELIVERED = Realised(gain=0.68, error=0.02, observed_ratio=1.22, slices=40)
MISSED = Realised(gain=0.3, error=0.02, observed_ratio=1.6, slices=40)
WORSE = Realised(gain=-0.2, error=0.02, observed_ratio=2.1, slices=40)
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


def waiting(*ranks):
    sentence = "switched on 15 ranks, waiting for the live map of rank 15"
    return replace(BASE, movement=Movement("in_doubt", sentence, place=("in_doubt", "p1"), waiting=ranks))


def delegated(state, sentence):
    return replace(BASE, movement=Movement(state, sentence, delegated=True))


def record_of(*pairs, **facts):
    """A record of one plan: promised and realised gain."""
    promised, brought = pairs
    return Gains().with_outcome(Outcome("p0", 0, promised, brought, **facts))


FADING, NOISY = record_of(0.7, 0.7, half_life_s=100.0), record_of(0.7, 0.7, error=0.02)
RETURNS = (
    "thrash",
    "5 layers stay as they are, because experts would come back to ranks that they left lately",
)
FAILURE = Answer(None, code=Code.PLANNING_FAILED, sentence="the solver's process died with exit code -9")

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
        ("measured", replace(BASE, map_version=1, assessment=BALANCED, realised=DELIVERED)),
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
        (
            "one expert is too hot",
            replace(BASE, assessment=replace(SEEN, fixable_excess=0.02, hot_expert=HotExpert(3, 17, 2.4))),
        ),
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
            replace(
                BASE,
                answer=Answer(
                    None, code=Code.PLANNING_TIMEOUT, sentence="no plan after 30.1 s (deadline 30 s)"
                ),
            ),
        ),
    ],
    "lost_solve": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("the solver is gone", BASE),
        ("asked anew", BASE),
    ],
    "drift": [
        ("elected", BASE),
        (
            "other experts are hot",
            replace(BASE, assessment=replace(SEEN, recoverable_excess=0.07, drift=0.4)),
        ),
    ],
    "no_price": [
        ("elected", BASE),
        ("skewed load", BASE),
        (
            "no step times",
            replace(
                BASE,
                answer=Answer(
                    replace(PLAN, worth=Worth(no_price="12 steps with a measured time, a price needs 20"))
                ),
            ),
        ),
    ],
    "price_too_high": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("gains fade in 100 s", replace(BASE, answer=Answer(PLAN), gains=FADING)),
    ],
    "thrash": [
        ("elected", BASE),
        ("skewed load", BASE),
        (
            "experts would come back",
            replace(
                BASE,
                answer=Answer(replace(PLAN, moves=0, bytes=0, layers=0, ratio_after=1.9, reasons=(RETURNS,))),
            ),
        ),
    ],
    "undoes_the_last": [
        ("elected", BASE),
        ("skewed load", BASE),
        (
            "takes it back for little",
            replace(BASE, answer=Answer(replace(PLAN, ratio_after=1.87, undoes=0.8)), gains=NOISY),
        ),
    ],
    "shares_first": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("shares reach the target", replace(BASE, answer=Answer(SHARES))),
        ("all live", moved("all_live", "all ranks serve the plan")),
    ],
    "shares_instead": [
        ("elected", BASE),
        ("skewed load", BASE),
        (
            "moves do not pay, shares do",
            replace(BASE, answer=Answer(replace(PLAN, worth=Worth(10.0, 9.0, 0.0, "fitted", "")), SHARES)),
        ),
    ],
    "rolled_back": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        ("all live", moved("all_live", "all ranks serve the plan")),
        ("worse than before", replace(BASE, map_version=1, realised=WORSE, rollback=BACK)),
        ("wave 1 is back", replace(moved("wave_live", "all ranks serve wave 1 of 2"), paused=True)),
        ("the map before is back", moved("all_live", "all ranks serve the plan")),
        ("cooldown", replace(BASE, map_version=2)),
    ],
    "gain_missed": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        ("all live", moved("all_live", "all ranks serve the plan")),
        ("a third above the promise", replace(BASE, map_version=1, realised=MISSED, rollback=BACK)),
        ("corrected from now on", replace(BASE, map_version=1, gains=record_of(0.7, 0.3))),
    ],
    "stalled": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        *[("rank 15 is silent", waiting(15))] * 25,
        ("rank 15 is back", moved("all_live", "all ranks serve the plan")),
    ],
    "solver_fails": [
        ("elected", BASE),
        *[("skewed load", BASE), ("failure", replace(BASE, answer=FAILURE)), *[("cooldown", BASE)] * 11] * 3,
        ("balanced", replace(BASE, assessment=BALANCED)),
        ("balanced", replace(BASE, assessment=BALANCED)),
    ],
    "reverted": [
        ("elected", BASE),
        ("skewed load", BASE),
        ("plan arrives", replace(BASE, answer=Answer(PLAN))),
        (
            "read-back differs",
            replace(
                delegated("unverified", "rank 1 reports another digest than was voted for"), rollback=BACK
            ),
        ),
        ("the map before is back", replace(delegated("all_live", "all ranks serve the plan"), paused=True)),
        ("paused", replace(BASE, paused=True)),
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
