"""Odd sizes: whatever the shape of pool, load and live map, a solve keeps its promises."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import arrivals

from placement import Limits, LoadTrace, Placement, Topology, evaluate, solve, violations

SHAPES = {
    "experts that ranks do not divide": (Topology.uniform(ranks=4, slots_per_rank=3), 10),
    "uneven slots": (Topology((4, 3, 3), (0, 0, 0)), 10),
    "one rank": (Topology.uniform(ranks=1, slots_per_rank=6), 6),
    "one rank with more slots than experts": (Topology.uniform(ranks=1, slots_per_rank=6), 4),
    "as many ranks as experts": (Topology.uniform(ranks=8, slots_per_rank=1), 8),
    "as many ranks as experts, two slots": (Topology.uniform(ranks=6, nodes=2, slots_per_rank=2), 6),
    "one slot a rank, more ranks than experts": (Topology.uniform(ranks=7, slots_per_rank=1), 4),
    "one expert": (Topology.uniform(ranks=3, slots_per_rank=2), 1),
    "dead ranks": (Topology.uniform(ranks=5, nodes=2, slots_per_rank=4, dead=frozenset({0, 4})), 9),
    "one live rank": (Topology.uniform(ranks=3, slots_per_rank=4, dead=frozenset({0, 2})), 4),
    "a dead node": (Topology.uniform(ranks=4, nodes=2, slots_per_rank=4, dead=frozenset({2, 3})), 7),
    "slow ranks on uneven nodes": (Topology((2, 4, 3), (0, 0, 1), (0.5, 2.0, 1.0), frozenset()), 8),
    "whole groups": (Topology.uniform(ranks=4, nodes=2, slots_per_rank=3, expert_groups=4, policy="hierarchical"), 8),
    "whole groups on uneven nodes with a dead rank": (
        Topology((3, 3, 2, 4), (0, 0, 1, 1), (1.0, 0.5, 1.0, 1.0), frozenset({2}), 3, "hierarchical"), 6,
    ),
    "groups of one expert": (Topology.uniform(ranks=2, nodes=2, slots_per_rank=6, expert_groups=4), 4),
    "groups that cannot stay whole": (Topology.uniform(ranks=3, nodes=3, slots_per_rank=3, expert_groups=4), 8),
}  # fmt: skip


@st.composite
def loads(draw, experts):
    """Tokens [slices, layers, experts] whose layers are skewed, empty, empty at times, or one expert's alone."""
    slices, layers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens = np.rint(rng.lognormal(2, 1.5, (slices, layers, experts))).astype(np.int64)
    for layer in range(layers):
        kind = draw(st.sampled_from(["skewed", "zero", "at times", "one"]))
        if kind == "zero":
            tokens[:, layer] = 0
        elif kind == "at times":
            tokens[::2, layer] = 0
        elif kind == "one":
            tokens[:, layer] = 0
            tokens[:, layer, rng.integers(experts)] = draw(st.sampled_from([1, 10**12]))
    return tokens


@st.composite
def maps(draw, topology, experts, layers):
    """A live map, or none: a valid one, ids in order, or any ids with twins, gaps, unknown and lost experts."""
    kind = draw(st.sampled_from(["none", "valid", "in order", "broken"]))
    if kind == "none":
        return None
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "valid":
        other = LoadTrace(rng.integers(0, 20, (1, layers, experts)))
        return solve(other, topology, effort="fast").placement.physical_to_logical
    if kind == "in order":
        return np.tile(np.arange(topology.slots) % experts, (layers, 1))
    return rng.integers(-1, experts + 1, (layers, topology.slots))


def same(one, two):
    """Whether two results are equal to the byte."""
    parts = [
        (
            result.placement.physical_to_logical.tobytes(), result.placement.shares.tobytes(), result.frontier,
            result.reasons, result.bound, result.layer_bounds, result.moves,
        )
        for result in (one, two)
    ]  # fmt: skip
    return repr(parts[0]) == repr(parts[1])  # a NaN objective is equal to itself in text only


def scored(placement, trace, topology, dispatch):
    """The objective by the library's other half."""
    return evaluate(placement, trace, topology, dispatch=dispatch).mean_ratio


def check_points(result, trace, topology, current, dispatch):
    """For every number of moves: a valid map of at most so many, with the objective of the last point that affords it."""
    first, last = result.frontier[0].moves, result.frontier[-1].moves
    for moves in {first - 1, *range(first, last + 2, max(1, (last - first) // 8))}:
        at = result.at(moves)
        assert violations(at, topology, trace.experts) == []
        point = [point for point in result.frontier if point.moves <= max(moves, first)][-1]
        if trace.tokens.any():
            assert scored(at, trace, topology, dispatch) == pytest.approx(point.objective, rel=1e-9)
        if current is not None:
            new = at.physical_to_logical
            assert arrivals(new, current, topology, trace.experts) == point.moves <= max(moves, first)


def keeps_its_promises(tokens, topology, current, **options):
    """Solve twice and check: valid, equal bytes, above its bound, rising frontier of true points, never worse."""
    dispatch = options.get("dispatch", "even")
    trace = LoadTrace(tokens)
    result = solve(trace, topology, current, **options)
    assert same(result, solve(trace, topology, current, **options))
    assert violations(result.placement, topology, trace.experts) == []
    for one, two in pairwise(result.frontier):
        assert one.moves <= two.moves
        assert np.isnan(one.objective) or one.objective >= two.objective
    assert (result.moves, repr(result.objective)) in [(p.moves, repr(p.objective)) for p in result.frontier]
    check_points(result, trace, topology, current, dispatch)
    if tokens.any():
        assert result.objective >= result.bound - 1e-9
        assert scored(result.placement, trace, topology, dispatch) == pytest.approx(
            result.objective, rel=1e-9
        )
    else:
        assert np.isnan(result.objective)
    if current is not None and not violations(Placement(current), topology, trace.experts):
        assert result.frontier[0].moves == 0
        if tokens.any():
            assert result.objective <= result.objective_start
        else:
            assert result.moves == 0
    return result


@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
@settings(deadline=None, max_examples=30)
def test_odd_shapes(shape, data):
    """Every named shape, with any load and any live map."""
    topology, experts = SHAPES[shape]
    tokens = data.draw(loads(experts))
    current = data.draw(maps(topology, experts, tokens.shape[1]))
    keeps_its_promises(tokens, topology, current, effort="fast")


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_odd_shapes_with_default_effort_and_limits(data):
    """The same with the default effort, a limit of moves and a bounded amount of work."""
    topology, experts = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)))]
    tokens = data.draw(loads(experts))
    current = data.draw(maps(topology, experts, tokens.shape[1]))
    moves = data.draw(st.sampled_from([None, 0, 1, 3]))
    limits = Limits(moves=moves, evaluations=data.draw(st.sampled_from([None, 0, 1, 5_000])), slack=0.0)
    dispatch = data.draw(st.sampled_from(["even", "weighted"]))
    result = keeps_its_promises(tokens, topology, current, limits=limits, dispatch=dispatch)
    if current is not None and moves is not None:
        assert result.moves <= max(moves, result.frontier[0].moves)


@pytest.mark.parametrize("live", [False, True])
def test_896_experts(live):
    """896 experts on 72 ranks of 13 slots, 40 of them redundant, cold and from a live map with twins and gaps."""
    topology = Topology.uniform(ranks=72, nodes=9, slots_per_rank=13)
    rng = np.random.default_rng(896)
    tokens = np.rint(rng.lognormal(3, 1, (2, 1, 896))).astype(np.int64)
    current = np.arange(936)[None] % 896
    current[0, 5], current[0, 20] = current[0, 4], -1
    keeps_its_promises(tokens, topology, current if live else None, effort="fast")


def test_no_load_at_all_moves_nothing_and_says_so():
    """All layers without load: the objective is unknown, the map stays, and the reason is no_data."""
    topology = Topology.uniform(ranks=3, slots_per_rank=3, dead=frozenset({1}))
    current = [[5, 4, 3, -1, -1, -1, 2, 1, 0]]
    result = keeps_its_promises(np.zeros((2, 1, 6), dtype=np.int64), topology, current)
    assert result.placement.physical_to_logical.tolist() == current
    assert {reason.code for reason in result.reasons} == {"no_data"}
    assert result.bound_reason.code == "no_data"


def test_one_expert_with_all_the_load_is_copied_as_often_as_it_can_be():
    """Every live rank gets a copy, and the bound is reached."""
    topology = Topology.uniform(ranks=4, slots_per_rank=3, dead=frozenset({2}))
    tokens = np.zeros((1, 1, 6), dtype=np.int64)
    tokens[..., 4] = 900
    result = keeps_its_promises(tokens, topology, None)
    assert result.placement.replicas(6)[0, 4] == 3
    assert result.objective == pytest.approx(result.bound)
