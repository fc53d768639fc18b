"""Rules of what follows a plan, in the daemon's own loop: measured, taken back, remembered, and no expert to and fro."""

import json
from dataclasses import replace

import numpy as np
import pytest
from loop_world import FLAT, Loop
from pool_world import FACTS, config
from structlog import get_logger
from test_migration_membership import LIVING, read, records_of

from eplb.agent.wire import decode_live, encode_live
from eplb.decisions import Code, PlanFacts
from eplb.follow_up import FollowUp
from eplb.gains import KEPT_MS, Gains
from eplb.membership import Membership
from eplb.migration import read_desired
from eplb.planner import Planner
from eplb.planning import Planning
from eplb.price import step_cost
from eplb.states import Movement, Name, State
from eplb.window import Window
from placement import LoadTrace, Placement, Topology, evaluate

PAIRS = [[0, 1], [2, 3]]
A, B = np.array([50, 50, 10, 10.0]), np.array([50, 10, 50, 10.0])
DOMINANT = np.array([90, 10, 10, 10.0])


def pairs_of(rows):
    return sorted(sorted(pair) for pair in rows[0].reshape(-1, 2).tolist())


@pytest.mark.parametrize("seed", range(4))
def test_pln_04_two_kinds_of_traffic_in_turn_end_on_the_map_that_serves_both(seed):
    """PLN-04: at most 2 migrations in 10 intervals, ending at {0,3},{1,2}, then none; nothing comes back within 3 intervals."""
    loop = Loop(PAIRS, ranks=2, experts=4, window_s=80.0, seed=seed)
    for interval in range(10):
        loop.serve(4 * (A if interval % 2 == 0 else B), 8)
    migrations = len(loop.maps) - 1
    assert 1 <= migrations <= 2
    assert pairs_of(loop.maps[-1]) == [[0, 3], [1, 2]]
    assert loop.codes[-1] in (Code.BALANCED, Code.COOLDOWN, Code.MIN_INTERVAL, Code.SETTLED)
    left = [decision["departed"] for decision in loop.decisions if decision["departed"]]
    assert len(left) == migrations


def test_pln_04_a_dominant_expert_is_not_moved():
    """PLN-04: no plan, because it needs replicas; the solver is not even asked."""
    loop = Loop(PAIRS, ranks=2, experts=4)
    loop.serve(4 * DOMINANT, 30)
    assert len(loop.maps) == 1
    assert loop.codes[-1] == Code.INDIVISIBLE_HOT_EXPERT
    assert Code.PLANNING not in loop.codes
    assert "expert 0 of layer 3" in loop.decisions[-1]["sentence"]


def test_a_plan_is_measured_and_its_record_is_in_the_log():
    """Promise and fulfilment on the same slices; the outcome is what a new leader reads back."""
    loop = Loop(PAIRS, ranks=2, experts=4)
    settled = loop.until(Code.SETTLED, 4 * A)
    outcome = settled["outcome"]
    assert settled["realised_gain"] == outcome["realised"] == pytest.approx(100 / 60 - 1, abs=0.1)
    assert outcome["predicted"] == pytest.approx(outcome["realised"], abs=0.1)
    assert not outcome["missed"]
    later = loop.cycle(4 * A)
    assert later["correction"] == pytest.approx(1.0, abs=0.1)
    assert loop.snapshots[-1].rebalance.realised_gain == outcome["realised"]
    json.dumps(settled, allow_nan=False)


def test_a_failed_read_back_is_put_back_from_what_each_rank_serves_and_pauses():
    """Delegated: the rank with the broken slot serves another map than the others, and the plan back starts from both."""
    loop = Loop(PAIRS, ranks=2, experts=4, migration={"profile": "delegated"})
    loop.until(Code.OFFERED, 4 * A)
    loop.group.take_offer()
    broken = decode_live(loop.store.live[1])
    loop.store.live[1] = encode_live(
        replace(broken, state="stuck", digests=tuple(x ^ 1 for x in broken.digests))
    )
    loop.serve(4 * A, 12)
    assert loop.snapshots[-1].paused
    assert loop.codes[-3:] == [Code.APPLY_UNVERIFIED, Code.ROLLED_BACK, Code.PAUSED]
    assert np.array_equal(loop.maps[-1], loop.maps[0])


def test_a_failed_read_back_without_a_way_back_ends_in_a_pause_and_not_in_a_circle():
    """Delegated: the engines of all ranks did nothing of what they were told, so that the map before is served still."""
    loop = Loop(PAIRS, ranks=2, experts=4, migration={"profile": "delegated"})
    loop.until(Code.OFFERED, 4 * A)
    offer = read_desired(loop.store.read_desired()).offer
    loop.group.take_offer = lambda: None
    for rank, raw in loop.store.live.items():
        loop.store.live[rank] = encode_live(replace(decode_live(raw), state="stuck", offer=offer.key))
    loop.serve(4 * A, 12)
    assert loop.snapshots[-1].paused
    assert read_desired(loop.store.read_desired()).offer is None
    assert loop.codes[-2:] == [Code.APPLY_UNVERIFIED, Code.RANKS_STUCK]


def test_a_plan_that_made_it_worse_is_taken_back_and_not_made_again_at_once():
    """The traffic turns as the plan goes live: the map before is put back, said, counted, and barred from coming again."""
    loop = Loop(PAIRS, ranks=2, experts=4)
    loop.until(Code.APPLIED, 4 * A)
    against = np.full(4, 10.0)
    against[loop.maps[-1][0, :2]] = 50.0
    loop.until(Code.ROLLING_BACK, 4 * against)
    back = loop.until(Code.ROLLED_BACK, 4 * against)
    assert pairs_of(loop.group.live.rows) == sorted(PAIRS)
    assert back["outcome"]["rolled_back"]
    assert loop.snapshots[-1].rebalance.rolled_back == 1
    assert loop.snapshots[-1].rebalance.missed
    turned_ms = loop.clock.now_ms
    loop.until(Code.THRASH, 4 * A)
    assert loop.clock.now_ms - turned_ms < 3 * 40_000
    assert pairs_of(loop.group.live.rows) == sorted(PAIRS)
    assert loop.decisions[-1]["correction"] < 0.7


def test_a_gain_that_fades_has_a_half_life_and_it_caps_the_horizon():
    """The traffic turns against the map after it was measured: half of the gain is gone, and the log says when."""
    loop = Loop(PAIRS, ranks=2, experts=4, min_interval_s=400.0)
    loop.until(Code.SETTLED, 4 * A)
    assert loop.decisions[-1]["half_life_s"] is None
    even = np.full(4, 30.0)
    loop.serve(4 * even, 30)
    faded = [decision["outcome"] for decision in loop.decisions if decision["outcome"]][-1]
    assert 0.0 < faded["half_life_s"] < 150.0
    assert loop.snapshots[-1].rebalance.half_life_s == faded["half_life_s"]


def test_a_new_leader_knows_what_the_old_one_learned():
    """Correction, half-life and what may not come back are read from the store's log."""
    loop = Loop(PAIRS, ranks=2, experts=4)
    loop.until(Code.SETTLED, 4 * A)
    log = [json.dumps(decision, separators=(",", ":")).encode() for decision in loop.decisions]
    loop.store.read_log = lambda count: log[-count:]
    loop.pool = loop.new_pool()
    loop.serve(4 * A, 5)
    shown, known = loop.snapshots[-1].rebalance, loop.decisions[-1]
    assert known["code"] != Code.STANDBY
    assert shown.realised_gain == next(d["realised_gain"] for d in loop.decisions if d["realised_gain"])


def test_without_a_price_auto_moves_nothing_and_shows_the_gain():
    """Steps whose time says nothing, and no configured price: the ratio is shown, nothing moves."""
    loop = Loop(PAIRS, ranks=2, experts=4, kernels=FLAT)
    decision = loop.until(Code.NO_PRICE, 4 * A)
    assert len(loop.maps) == 1
    assert decision["plan"]["gain"] > 0.4
    assert "step times do not follow the load" in decision["sentence"]


def test_a_configured_price_stands_in():
    """The same pool with price_us_per_token moves; where steps have a price, theirs is taken."""
    flat = Loop(PAIRS, ranks=2, experts=4, kernels=FLAT, price_us_per_token=1.0)
    timed = Loop(PAIRS, ranks=2, experts=4, price_us_per_token=1e-9)
    sources = [loop.until(Code.OFFERED, 4 * A)["plan"]["worth"]["source"] for loop in (flat, timed)]
    assert sources == ["configured", "fitted"]


def test_a_fitted_price_is_that_of_the_kernels():
    """1 us a token, 4 steps in 5 s: what is saved is the fall of the busiest rank's tokens, times that."""
    loop = Loop(PAIRS, ranks=2, experts=4)
    plan = loop.until(Code.OFFERED, 4 * A)["plan"]
    ((_, fall),) = plan["falls"]
    assert plan["worth"]["saved_us_per_s"] == pytest.approx(fall * 0.8, rel=0.25)


def test_moves_that_cost_more_than_they_bring_are_not_made():
    """A link of one byte a second and a horizon of a minute: no plan pays."""
    loop = Loop(PAIRS, ranks=2, experts=4, horizon_s=60.0, migration={"node_link_bytes_per_s": 1.0})
    decision = loop.until(Code.PRICE_TOO_HIGH, 4 * A)
    assert decision["plan"]["worth"]["stall_s"] == 1000.0 * decision["plan"]["busiest_moves"]
    assert len(loop.maps) == 1


ROWS_LEFT = np.tile(np.array([-1, -1, -1, *range(8), -1], dtype=np.int32), (FACTS.layers, 1))
SLICED = ("tokens", "ratio", "live_digests", "run_ids", "group_steps", "same_members")
DEGRADED = PlanFacts("p1", 1, 6, 600, 1.9, 1.2, 1.0, 3, 1, degraded=True)


def survivors(rows, slices):
    """The view of three living ranks: what their map showed on random loads, measured without error."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, 50, (slices, FACTS.layers, FACTS.experts))
    living = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, dead=frozenset({0}))
    ratio = evaluate(Placement(rows), LoadTrace(tokens), living).ratio
    ranks = read(records_of(78, LIVING, rows))
    return replace(
        Window(FACTS).view(1_000_000),
        tokens=tokens,
        ratio=ratio,
        live_digests=np.full(slices, ranks.live_digest, dtype=np.uint64),
        run_ids=np.full(slices, 78, dtype=np.uint64),
        group_steps=np.arange(1, slices + 1),
        step_us_by_slice=np.full(slices, np.nan),
        same_members=np.ones(slices, dtype=np.bool_),
        members=LIVING,
    )


def test_a_gain_is_measured_on_the_ranks_that_live():
    """The map before and after is the same, so nothing was gained; a mean over the lost rank too would say a third."""
    rows, follow_up = ROWS_LEFT, FollowUp(FACTS, config().pools[0])
    ranks = read(records_of(78, LIVING, rows))
    follow_up.offered(Window(FACTS).view(1_000_000), ranks)
    moving = State(name=Name.MOVING, plan=replace(DEGRADED, degraded=False))
    live = Movement("all_live", "all ranks serve the plan")
    seen = survivors(rows, 30)
    assert follow_up.look(moving, live, seen, ranks, 1_000_000).outcome.predicted == pytest.approx(0.7)
    found = follow_up.look(replace(moving, name=Name.SETTLING), Movement(), seen, ranks, 1_005_000)
    assert found.realised.gain == pytest.approx(0.0, abs=1e-9)


def test_what_membership_asked_for_was_promised_nothing():
    """Its promise was made on whatever data there was: it corrects no other promise and alerts nobody."""
    rows, follow_up = ROWS_LEFT, FollowUp(FACTS, config().pools[0])
    ranks = read(records_of(78, LIVING, rows))
    follow_up.offered(Window(FACTS).view(1_000_000), ranks)
    moving, seen = State(name=Name.MOVING, plan=DEGRADED), survivors(rows, 30)
    follow_up.look(moving, Movement("all_live"), seen, ranks, 1_000_000)
    found = follow_up.look(replace(moving, name=Name.SETTLING), Movement(), seen, ranks, 1_005_000)
    assert found.realised is not None
    assert (follow_up.gains.correction, found.outcome.missed) == (1.0, False)


def test_a_day_later_a_plan_is_not_followed_any_more():
    """Its record ends, and so does the work of measuring it again each window."""
    loop = Loop(PAIRS, ranks=2, experts=4)
    loop.until(Code.SETTLED, 4 * A)
    loop.clock.now_ms += KEPT_MS
    loop.serve(4 * np.full(4, 30.0), 30)
    assert loop.snapshots[-1].rebalance.realised_gain is None
    assert not any(decision["outcome"] for decision in loop.decisions[-29:])


def test_another_model_drops_what_plans_for_the_old_one_brought():
    """New model version: what left which rank, what was promised and which experts were hot are of the old one."""

    def loaded(digest):
        records = records_of(78, LIVING, ROWS_LEFT).items()
        return read({rank: replace(record, model_digest=digest) for rank, record in records})

    pool = config().pools[0]
    follow_up, membership = FollowUp(pool.facts(), pool), Membership(get_logger())
    parts = Window(FACTS), Planning(pool.facts(), pool, Planner(1.0)), follow_up
    membership.observe(loaded(5), *parts)
    view = survivors(ROWS_LEFT, 1)
    follow_up.offered(view, loaded(5))
    follow_up.look(State(name=Name.MOVING, plan=DEGRADED), Movement("all_live"), view, loaded(5), 1_000_000)
    assert follow_up.gains.outcomes
    membership.observe(loaded(6), *parts)
    assert follow_up.gains == Gains()
    assert (follow_up.planned_tokens, follow_up.before) == (None, None)


@pytest.mark.parametrize(("late_us", "lost_s"), [(0.0, 0.0), (5000.0, 0.3)])
def test_only_what_serving_surely_lost_while_a_plan_moved_is_its_price(late_us, lost_s):
    """60 steps that are late by chance alone cost nothing; the same steps five milliseconds longer cost 0.3 s, less the noise."""
    follow_up, ranks = FollowUp(FACTS, config().pools[0]), read(records_of(78, LIVING, ROWS_LEFT))
    seen, rng = survivors(ROWS_LEFT, 120), np.random.default_rng(7)
    step_us = 1_000.0 + 10.0 * step_cost(seen) + rng.normal(0.0, 500.0, 120)
    step_us[60:] += late_us
    before = {name: getattr(seen, name)[:60] for name in SLICED}
    follow_up.offered(replace(seen, **{**before, "step_us_by_slice": step_us[:60]}), ranks)
    after = replace(seen, step_us_by_slice=step_us)
    found = follow_up.look(
        State(name=Name.MOVING, plan=DEGRADED), Movement("all_live"), after, ranks, 1_000_000
    )
    assert found.outcome.slowdown_s == pytest.approx(lost_s, rel=0.1)
