"""Solving with traffic: nodes touched fall on unseen requests, and what is offered is measured, valid and said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import (
    Limits,
    LoadTrace,
    Placement,
    Routes,
    Topology,
    UnsupportedError,
    evaluate,
    fan_out,
    solve,
    violations,
)
from placement.node_search import node_assignment, node_proposals, prepare
from placement.nodes import NodeSearch
from tests.placement.routing import block_picks, trace_of

TOP = Topology.uniform(ranks=8, nodes=4, slots_per_rank=5)


def blocks(requests=40, seed=0):
    """A trace of 32 experts whose tokens stay within blocks of 8."""
    picks = block_picks(requests * 10, blocks=4, size=8, top_k=4, seed=seed)
    return trace_of(picks, np.repeat(np.arange(requests), 10), 32)


def codes(result):
    return {reason.code: reason.sentence for reason in result.reasons}


def test_tokens_touch_fewer_nodes_on_unseen_requests():
    """Against the same solve without the weight, on requests that neither saw."""
    trace, unseen = blocks(), blocks(seed=1).routes
    plain, heeded = (solve(trace, TOP, traffic_weight=weight, effort="fast") for weight in (0.0, 1.0))
    assert not violations(heeded.placement, TOP, 32)
    before, after = (fan_out(result.placement, unseen, TOP)[0] for result in (plain, heeded))
    assert after < 0.6 * before
    assert "on held-out routes" in codes(heeded)["traffic"]
    assert "traffic" not in codes(plain)


def test_the_objective_is_the_ratio_and_the_weighted_fan_out_on_held_out_routes():
    """Mean ratio + 4 × weight × (fan-out - 1), the latter on every fourth request only."""
    trace = blocks()
    result = solve(trace, TOP, traffic_weight=0.5, effort="fast")
    _, score = trace.routes.held_out()
    ratio = evaluate(result.placement, trace, TOP).ratio.mean()
    fan = fan_out(result.placement, score, TOP)[0]
    assert result.objective == pytest.approx(ratio + 2.0 * (fan - 1))


@pytest.mark.parametrize(
    ("dispatcher", "why"),
    [("per_expert", "every selected expert"), ("all_gather", "every token to every rank")],
)
def test_without_dedupe_the_weight_is_ignored_with_a_reason(dispatcher, why):
    """No placement saves traffic there, so the plain map comes back and says so."""
    trace = blocks()
    plain = solve(trace, TOP, effort="fast")
    heeded = solve(trace, TOP, traffic_weight=1.0, dispatcher=dispatcher, effort="fast")
    assert why in codes(heeded)["traffic_ignored"]
    assert (heeded.placement.physical_to_logical == plain.placement.physical_to_logical).all()
    assert heeded.objective == plain.objective


def test_one_node_and_one_request_are_reasons_too():
    """Nothing to gain on one node; nothing to measure on with one request."""
    trace = blocks()
    one_node = Topology.uniform(ranks=8, nodes=1, slots_per_rank=5)
    assert "one node" in codes(solve(trace, one_node, traffic_weight=1.0, effort="fast"))["traffic_ignored"]
    alone = Routes(trace.routes.experts, np.zeros(trace.routes.samples, dtype=np.int64))
    result = solve(LoadTrace(trace.tokens, routes=alone), TOP, traffic_weight=1.0, effort="fast")
    assert "at least 2 requests" in codes(result)["traffic_ignored"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"traffic_weight": -1.0}, "at least 0"),
        ({"traffic_weight": float("nan")}, "finite"),
        ({"traffic_weight": 1.0, "dispatcher": "broadcast"}, "node_dedupe, rank_dedupe"),
    ],
)
def test_bad_weights_and_dispatchers_are_refused(change, message):
    """With the place and what can be used."""
    with pytest.raises(UnsupportedError, match=message):
        solve(blocks(), TOP, effort="fast", **change)


def test_the_offer_is_not_taken_where_it_does_not_pay():
    """A weight near 0 leaves the balanced map, and the measured fan-out is said all the same."""
    trace = blocks()
    plain = solve(trace, TOP, effort="fast")
    heeded = solve(trace, TOP, traffic_weight=1e-9, effort="fast")
    assert (heeded.placement.physical_to_logical == plain.placement.physical_to_logical).all()
    assert "+0.0 %" in codes(heeded)["traffic"]


def test_a_live_map_that_already_saves_traffic_stays():
    """From its own result a solve moves nothing."""
    trace = blocks()
    first = solve(trace, TOP, traffic_weight=1.0, effort="fast")
    again = solve(trace, TOP, first.placement, traffic_weight=1.0, effort="fast")
    assert again.moves == 0
    assert again.objective <= first.objective + 1e-9


def test_few_moves_give_part_of_the_saving():
    """The frontier has points between the live map and the best one, within the limit on moves."""
    trace = blocks()
    live = solve(trace, TOP, effort="fast").placement
    result = solve(trace, TOP, live, traffic_weight=1.0, effort="fast", limits=Limits(moves=20))
    assert 0 < result.moves <= 20
    assert result.objective < result.objective_start


def test_groups_stay_whole_where_the_policy_asks_for_it():
    """Groups of 4 consecutive experts move between nodes as one."""
    grouped = Topology.uniform(ranks=8, nodes=4, slots_per_rank=4, expert_groups=8, policy="hierarchical")
    trace = blocks()
    result = solve(trace, grouped, traffic_weight=1.0, effort="fast")
    assert not violations(result.placement, grouped, 32)
    assert fan_out(result.placement, trace.routes, grouped)[0] == 1.0


@st.composite
def traffic_problems(draw):
    """Pools with dead ranks and uneven slots, routes with drops, loads unlike the routes at times, live maps at times."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks = draw(st.integers(2, 6))
    nodes = draw(st.integers(1, min(3, ranks)))
    slots = tuple(draw(st.lists(st.integers(1, 3), min_size=ranks, max_size=ranks)))
    dead = frozenset(draw(st.sets(st.integers(0, ranks - 1), max_size=1)))
    topology = Topology(slots, tuple(rank * nodes // ranks for rank in range(ranks)), (), dead)
    usable = sum(count for rank, count in enumerate(slots) if rank not in dead)
    experts = draw(st.integers(1, usable))
    top_k, samples, layers = draw(st.integers(1, min(3, experts))), draw(st.integers(1, 12)), 2
    sets = np.stack([[rng.permutation(experts)[:top_k] for _ in range(layers)] for _ in range(samples)])
    if draw(st.booleans()):
        sets[rng.random(sets.shape) < 0.4] = -1
    tokens = rng.integers(0, 9, (draw(st.integers(1, 3)), layers, experts)) * draw(st.integers(0, 1))
    if draw(st.booleans()):
        tokens[:, 0] = 0
        tokens[:, 0, rng.integers(experts)] = 50
    routes = Routes(sets, rng.integers(0, 5, samples))
    live = rng.integers(-1, experts, (layers, topology.slots)) if draw(st.booleans()) else None
    return LoadTrace(tokens, routes=routes), topology, live


@given(
    traffic_problems(), st.sampled_from([0.02, 1.0, 10.0]), st.sampled_from(["node_dedupe", "rank_dedupe"])
)
@settings(deadline=None, max_examples=60)
def test_every_result_is_valid_and_not_worse_than_what_it_is_compared_with(case, weight, dispatcher):
    """No violations, falling frontier, never above the live map, and equal bytes when asked again."""
    trace, topology, live = case
    ask = {"traffic_weight": weight, "dispatcher": dispatcher, "effort": "fast", "seed": 3}
    result = solve(trace, topology, live, **ask)
    assert not violations(result.placement, topology, trace.experts)
    objective = [point.objective for point in result.frontier]
    assert objective == sorted(objective, reverse=True) or np.isnan(objective).all()
    if (
        live is not None
        and result.objective_start is not None
        and not violations(Placement(live), topology, trace.experts)
    ):
        assert result.objective <= result.objective_start + 1e-9
    again = solve(trace, topology, live, **ask)
    assert again.placement.physical_to_logical.tobytes() == result.placement.physical_to_logical.tobytes()


@given(traffic_problems())
@settings(deadline=None, max_examples=30)
def test_the_held_out_fan_out_is_never_above_the_plain_map_in_a_cold_start_at_a_high_weight(case):
    """Layer by layer the plain map competes, so that a large weight can only lower what is measured."""
    trace, topology, _ = case
    plain, heeded = (solve(trace, topology, traffic_weight=weight, effort="fast") for weight in (0.0, 1e6))
    if "traffic" not in codes(heeded):
        return
    _, score = trace.routes.held_out()
    before, after = (fan_out(result.placement, score, topology) for result in (plain, heeded))
    assert (after[~np.isnan(after)] <= before[~np.isnan(before)] + 1e-9).all()


def test_threads_and_early_stops_do_not_spoil_the_result():
    """One and two threads give equal bytes; a stop before the first step still gives a valid map, marked truncated."""
    trace = blocks()
    ask = {"traffic_weight": 0.3, "effort": "fast"}
    one, two = (solve(trace, TOP, threads=threads, **ask) for threads in (1, 2))
    assert one.placement.physical_to_logical.tobytes() == two.placement.physical_to_logical.tobytes()
    stopped = solve(trace, TOP, should_stop=lambda: True, **ask)
    assert not violations(stopped.placement, TOP, 32)
    assert "truncated" in codes(stopped)


def test_no_evaluations_mean_no_search_for_homes():
    """With 0 evaluations the homes are those of the heaviest-first start, whatever the effort."""
    traffic, _ = prepare(blocks(), TOP, 1.0)
    starts = [
        node_assignment(traffic, 0, NodeSearch(node_proposals(effort, 0, 1, 32)))[-1].tolist()
        for effort in ("fast", "thorough")
    ]
    assert starts[0] == starts[1]
    assert node_proposals("fast", None, 1, 32) > node_proposals("fast", 1000, 1, 32) > 0


def test_rank_dedupe_counts_ranks():
    """The fan-out that is weighed and said is over ranks."""
    result = solve(blocks(), TOP, traffic_weight=1.0, dispatcher="rank_dedupe", effort="fast")
    assert " ranks on held-out routes" in codes(result)["traffic"]


def test_recorded_requests_touch_a_fifth_fewer_nodes_than_without_the_weight(shared_data):
    """DeepSeek-V2-Lite, some layers: even requests plan, odd ones score; planned node loads stay within 5 % of the mean."""
    recorded = np.load(shared_data / "dsv2lite_prefill.npz")
    picks, offsets = recorded["picks"][:, ::9].astype(np.int16), recorded["offsets"]
    request = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    even = request % 2 == 0
    plan, unseen = (
        trace_of(picks[even], request[even] // 2, 64, per_slice=2),
        Routes(picks[~even], request[~even]),
    )
    topology = Topology.uniform(ranks=8, nodes=4, slots_per_rank=9)
    plain, heeded = (
        solve(plan, topology, traffic_weight=weight, effort="fast").placement for weight in (0.0, 1.0)
    )
    before, after = (fan_out(placement, unseen, topology).mean() for placement in (plain, heeded))
    assert after <= 0.79 * before
    node = np.array(topology.node_of_rank)[topology.rank_of_slot()]
    for row, tokens in zip(heeded.physical_to_logical, plan.tokens.sum(axis=0), strict=True):
        load = np.bincount(node, tokens[row] / np.bincount(row)[row])
        assert load.max() <= 1.05 * load.mean()


def domains(seed=0):
    """Tokens of four domains that share eight experts and have six each of their own; a domain's tokens start on one node's ranks."""
    rng = np.random.default_rng(seed)
    domain = np.arange(400) % 4
    own = np.stack([8 + 6 * one + rng.permutation(6)[:2] for one in domain])
    shared = np.stack([rng.permutation(8)[:2] for _ in domain])
    sets = np.concatenate([own, shared], axis=1).astype(np.int16)[:, None]
    requests = np.arange(400) // 10 * 4 + domain
    trace = trace_of(sets, requests % 40, 32)
    sources = 2 * ((domain + 1) % 4) + np.arange(400) // 4 % 2
    by_rank = np.zeros((8, 1, 32), dtype=np.int64)
    np.add.at(by_rank[:, 0], (sources[:, None], sets[:, 0].astype(int)), 1)
    return LoadTrace(trace.tokens, routes=Routes(sets, requests, sources), source_tokens=by_rank)


@pytest.mark.parametrize("choice", ["nearest", "per_source"])
def test_sources_pull_copies_to_where_tokens_come_from(choice):
    """Assumed case: every domain is served by one node. On unseen requests fewer other nodes are touched than by a map that was
    planned from the same routes without their sources, and by one planned without the weight.
    """
    trace, unseen = domains(), domains(seed=1).routes
    blind = LoadTrace(trace.tokens, routes=Routes(trace.routes.experts, trace.routes.requests))
    solved = [
        solve(known, TOP, traffic_weight=weight, choice=choice, effort="fast")
        for known, weight in ((trace, 0.0), (blind, 1.0), (trace, 1.0))
    ]
    plain, unaware, pulled = (
        fan_out(result.placement, unseen, TOP, choice=choice, remote=True)[0] for result in solved
    )
    assert pulled < unaware
    assert pulled < plain
    assert not violations(solved[-1].placement, TOP, 32)
    assert "nodes beside its own on held-out routes" in codes(solved[-1])["traffic"]


def test_what_is_offered_is_the_saving_on_held_out_routes():
    """The sentence names the nodes that the public measure gives on every fourth request, for the plain map and for the offer."""
    trace = domains()
    _, score = trace.routes.held_out()
    plain, heeded = (
        solve(trace, TOP, traffic_weight=weight, choice="nearest", effort="fast") for weight in (0.0, 1.0)
    )
    before, after = (
        fan_out(result.placement, score, TOP, choice="nearest", remote=True)[0] for result in (plain, heeded)
    )
    assert (
        f"{after:.3f} nodes beside its own on held-out routes instead of {before:.3f}"
        in codes(heeded)["traffic"]
    )
