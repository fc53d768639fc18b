"""Rules of what follows a plan, in the daemon's own loop: measured, taken back, remembered, and no expert to and fro."""

import json

import numpy as np
import pytest
from loop_world import FLAT, Loop

from eplb.decisions import Code

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
