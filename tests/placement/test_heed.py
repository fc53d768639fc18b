"""Heeding traffic: rows have the asked value plus the traffic, and what is offered keeps its nodes to the tolerance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import (
    LoadTrace,
    Placement,
    Roofline,
    Routes,
    Topology,
    compile_kernels,
    evaluate,
    fan_out,
    solve,
    violations,
)
from placement.frontier import Stop
from placement.heed import Priced, kept_stops
from placement.kernel_nodes_anneal import anneal_nodes
from placement.models import COST, DISPATCH
from placement.node_search import choice_of
from tests.placement.routing import block_picks, trace_of

TOP = Topology.uniform(ranks=4, nodes=2, slots_per_rank=5)
SOURCES = ("nothing", "counts", "routes")
"""What a trace knows of where tokens start."""


def traced(seed, knows):
    """Two layers of 16 experts in blocks of 4, the second one's numbers turned, with what every rule and the roofline ask for."""
    rng = np.random.default_rng(seed)
    first = block_picks(200, blocks=4, size=4, top_k=3, seed=seed)
    trace = trace_of(np.concatenate([first, (first + 2) % 16], axis=1), np.repeat(np.arange(40), 5), 16)
    sources = rng.integers(0, 4, 200) if knows == "routes" else None
    return LoadTrace(
        trace.tokens + rng.integers(0, 9, trace.tokens.shape),
        routes=Routes(trace.routes.experts, trace.routes.requests, sources),
        steps_per_slice=rng.integers(1, 4, trace.slices),
        batch_tokens=rng.uniform(1, 80, trace.slices),
        source_tokens=None if knows == "nothing" else rng.integers(0, 9, (4, 2, 16)),
    )


def term(placement, trace, dispatch, weight):
    """4 × weight × nodes beside the own one, or beside one of those touched, on held-out routes."""
    _, score = trace.routes.held_out()
    known = score.sources is not None
    choice = choice_of(dispatch, None)
    fan = fan_out(placement, score, TOP, choice=choice, remote=known).mean()
    return 4 * weight * (fan if known else fan - 1)


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("cost", COST)
@pytest.mark.parametrize("dispatch", DISPATCH)
def test_the_objective_is_what_evaluate_gives_plus_the_traffic(dispatch, cost, live):
    """For every rule and cost, from nothing and from a live map; at every end of the frontier."""
    seed = DISPATCH.index(dispatch)
    trace = traced(seed, SOURCES[seed % 3])
    rows = np.random.default_rng(seed).permuted(np.tile(np.arange(20) % 16, (2, 1)), axis=1) if live else None
    model = {"dispatch": dispatch, "cost": cost}
    result = solve(trace, TOP, rows, **model, traffic_weight=0.2, effort="fast")
    for objective, placement in (
        (result.objective, result.placement),
        (result.frontier[0].objective, result.at(result.frontier[0].moves)),
        (result.frontier[-1].objective, result.at(result.frontier[-1].moves)),
    ):
        assert violations(placement, TOP, 16) == [] or (live and placement is not result.placement)
        ratio = evaluate(placement, trace, TOP, **model).mean_ratio
        assert objective == pytest.approx(ratio + term(placement, trace, dispatch, 0.2), rel=1e-9)
    if result.objective_start is not None:
        start = evaluate(Placement(rows), trace, TOP, **model).mean_ratio
        assert result.objective_start == pytest.approx(start + term(Placement(rows), trace, dispatch, 0.2))


def test_a_roofline_is_heeded_with_traffic():
    """Its value of the offered map is the one in the objective."""
    trace, cost = traced(3, "nothing"), Roofline(base_us=20.0, activated_us=10.0, token_us=0.1)
    result = solve(trace, TOP, cost=cost, traffic_weight=0.1, effort="fast")
    ratio = evaluate(result.placement, trace, TOP, cost=cost).mean_ratio
    assert result.objective == pytest.approx(ratio + term(result.placement, trace, "even", 0.1))


def priced(moves, value, node_load):
    return Priced(Stop(moves, value, np.array([moves])), node_load)


def test_the_best_row_within_the_tolerance_is_taken():
    """A better one beyond it is not; where all are beyond it, the nearest is, whatever its value."""
    rows = [priced(9, 1.0, 1.06), priced(9, 3.0, 1.01), priced(9, 2.0, 1.05)]
    assert kept_stops(rows, 1.05, cold=True) == (rows[2].stop,)
    assert kept_stops([rows[0], priced(9, 9.0, 1.055)], 1.05, cold=True)[0].value == 9.0


def test_the_way_from_a_live_row_ends_at_the_best_row_within_the_tolerance():
    """No row between them is hotter than both allow, and none is left of a way that ends worse than it begins."""
    live, hot, mild, best = (
        priced(0, 4.0, 1.02),
        priced(2, 3.0, 1.2),
        priced(3, 3.5, 1.0),
        priced(6, 2.0, 1.04),
    )
    lower = priced(5, 1.0, 1.3)
    found = kept_stops([lower, best, mild, hot, live], 1.05, cold=False)
    assert [stop.moves for stop in found] == [0, 3, 6]
    assert kept_stops([priced(0, 1.5, 1.2), best], 1.05, cold=False)[0].moves == 0
    assert len(kept_stops([priced(0, 1.5, 1.2), best], 1.05, cold=False)) == 1


def hottest(placement, trace, dispatch):
    """Tokens of the hottest node over its fair share in every layer: the sum or the mean over slices, whichever is hotter."""
    load = evaluate(placement, trace, TOP, dispatch=dispatch).rank_load
    node = load.reshape(*load.shape[:2], 2, 2).sum(axis=3)
    whole, part = node.sum(axis=0), (node / node.sum(axis=2, keepdims=True)).mean(axis=0)
    return np.maximum(2 * whole.max(axis=1) / whole.sum(axis=1), 2 * part.max(axis=1))


@given(st.integers(0, 999), st.sampled_from(["even", "per_source", "optimal"]))
@settings(deadline=None, max_examples=12)
def test_no_node_of_a_new_map_is_hotter_than_the_tolerance_or_the_plain_map_allows(seed, dispatch):
    """By the rank tokens that evaluate gives, in every layer."""
    trace = traced(seed, "counts")
    before, after = (
        hottest(
            solve(trace, TOP, dispatch=dispatch, traffic_weight=weight, effort="fast").placement,
            trace,
            dispatch,
        )
        for weight in (0.0, 1.0)
    )
    assert (after <= np.maximum(before, 1.05) + 1e-9).all()


def test_compiling_ahead_leaves_nothing_of_the_search_for_nodes_to_compile():
    """For every copy that a token may take, with and without sources."""
    compile_kernels(traffic=True)
    compiled = list(anneal_nodes.signatures)
    for dispatch, knows in (("even", "nothing"), ("nearest", "routes"), ("per_source", "counts")):
        solve(traced(1, knows), TOP, dispatch=dispatch, traffic_weight=1.0, effort="fast")
    solve(traced(1, "nothing"), TOP, choice="fewest", traffic_weight=1.0, effort="fast")
    assert anneal_nodes.signatures == compiled
