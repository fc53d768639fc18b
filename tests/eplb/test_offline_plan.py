"""A plan and its forecast: in-sample and held-out ratios, the sampling floor, fan-out, and the map to compare with."""

from math import isnan

import numpy as np
import pytest

from eplb.offline.engines import engine_of
from eplb.offline.holdout import split
from eplb.offline.plan import Ask, measured_fan_out, plan, start_map
from eplb.skew import floor_ratio
from placement import Limits, LoadTrace, Placement, Routes, Topology, evaluate

POOL = Topology.uniform(ranks=4, nodes=2, slots_per_rank=3)
KINDS = (("", ""),) * 8
TRACE = LoadTrace(np.rint(np.random.default_rng(1).lognormal(3, 1, (8, 2, 10))).astype(np.int64))


def ask(**changes):
    given = {
        "topology": POOL,
        "engine": engine_of("even"),
        "limits": Limits(),
        "effort": "fast",
        "say": lambda _: None,
    }
    return Ask(**(given | changes))


def test_the_forecast_never_scores_a_slice_that_its_plan_saw():
    """Changing only held-out slices changes the score, and not the plan: the planned part alone gives the same map."""
    found = plan(TRACE, KINDS, ask(holdout=0.25))
    parts = split(TRACE, KINDS, 0.25)
    alone = plan(parts.seen, KINDS[:6], ask()).result.placement
    expected = evaluate(alone, parts.unseen, POOL).mean_ratio
    assert found.held_out.after == expected
    assert (found.held_out.planned, found.held_out.slices) == (6, 2)


@pytest.mark.parametrize("name", ["even", "vllm", "sglang", "trtllm", "vllm-ascend", "weighted", "optimal"])
def test_in_sample_is_the_objective_of_the_solve_under_the_asked_rule(name):
    """Ratio and objective are one number, and not worse than before."""
    found = plan(TRACE, KINDS, ask(engine=engine_of(name)))
    assert found.in_sample.after == pytest.approx(found.result.objective, abs=1e-9)
    assert found.in_sample.after <= found.in_sample.before
    assert found.held_out is None


def test_the_floor_is_that_of_the_scored_slices():
    """More tokens, less noise; unknown without top-k."""
    found = plan(TRACE, KINDS, ask(holdout=0.25, top_k=2))
    assert found.in_sample.floor == floor_ratio(TRACE, 4, 2)
    assert found.held_out.floor == floor_ratio(split(TRACE, KINDS, 0.25).unseen, 4, 2)
    assert isnan(plan(TRACE, KINDS, ask()).in_sample.floor)


def test_a_live_map_that_lacks_an_expert_has_no_ratio_before():
    """It cannot serve; the plan repairs it."""
    lost = Placement(np.tile([0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2], (2, 1)))
    assert start_map(TRACE, ask(current=lost)) is None
    assert isnan(plan(TRACE, KINDS, ask(current=lost)).in_sample.before)


def test_a_long_solve_says_that_it_is_alive(monkeypatch):
    """Every few seconds on the clock, here at once."""
    monkeypatch.setattr("eplb.offline.plan.HEARTBEAT_S", 0.0)
    said = []
    plan(TRACE, KINDS, ask(say=said.append, effort="normal"))
    assert said[0] == "solving 2 layers x 10 experts on 12 slots, all slices (8)"
    assert any(line.startswith("solving: ") for line in said)


def pairs(requests=8):
    """Tokens that pick experts 2i and 2i + 1 of 8 together, on 2 nodes of one rank; requests of 4 tokens."""
    sets = np.arange(8).reshape(4, 2)
    return Routes(np.tile(sets, (requests, 1))[:, None, :], np.repeat(np.arange(requests), 4))


def test_fan_out_is_exact_on_pairs():
    """Together on a node: 1. One of each pair on either node: 2. At random 2(1 - C(4,2)/C(8,2)) = 1 + 4/7."""
    pool = Topology.uniform(ranks=2, nodes=2, slots_per_rank=4)
    trace = LoadTrace(np.ones((1, 1, 8), dtype=int), routes=pairs())
    together, apart = Placement([list(range(8))]), Placement([[0, 2, 4, 6, 1, 3, 5, 7]])
    found = measured_fan_out(trace, pool, engine_of("even"), apart, together)
    assert (found.bins, found.requests, found.before, found.after) == ("nodes", 2, 2.0, 1.0)
    assert found.random == pytest.approx(2 * (1 - 6 / 28))
    assert measured_fan_out(trace, pool, engine_of("trtllm"), None, together).bins == "ranks"


def test_fan_out_is_absent_where_it_cannot_be_told_or_does_not_matter():
    """No routes, one request, one node."""
    pool, one = (
        Topology.uniform(ranks=2, nodes=2, slots_per_rank=4),
        Topology.uniform(ranks=2, slots_per_rank=4),
    )
    tokens, rows = np.ones((1, 1, 8), dtype=int), Placement([list(range(8))])
    engine = engine_of("even")
    assert measured_fan_out(LoadTrace(tokens), pool, engine, rows, rows) is None
    assert measured_fan_out(LoadTrace(tokens, routes=pairs(1)), pool, engine, rows, rows) is None
    assert measured_fan_out(LoadTrace(tokens, routes=pairs()), one, engine, rows, rows) is None
