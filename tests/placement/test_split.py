"""Split: shares for a map as it stands, exact for the mean slice, never worse over all slices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp
from solver_inputs import one_slice, problems_with_map

from placement import InfeasibleError, LoadTrace, MapError, Placement, Topology, evaluate
from placement.split import Bottleneck, exact_shares, improve_shares

PAIR = Topology.uniform(ranks=2, slots_per_rank=2)


def served_problem(problem):
    """The map without unknown ids, and the load of the experts that it serves."""
    topology, trace, rows = problem
    rows = np.where(rows < trace.experts, rows, -1)
    live = np.isin(topology.rank_of_slot(), topology.live_ranks)
    tokens = trace.tokens.copy()
    for layer, row in enumerate(rows):
        tokens[:, layer, ~np.isin(np.arange(trace.experts), row[live])] = 0
    return topology, LoadTrace(tokens, weights=trace.weights), Placement(rows)


def test_the_bottleneck_is_named():
    """a on both ranks, b alone on one: where b fits, only the mean binds; where b is too much, b is why and a moves off."""
    found = exact_shares(Placement([[0, 1, 0, 2]]), one_slice([8, 9, 1]), PAIR)
    assert found.shares.tolist() == [[0.0, 1.0, 1.0, 1.0]]
    assert found.bottlenecks == (Bottleneck(0, (0, 1, 2), (0, 1), 1.0),)
    hot = exact_shares(Placement([[0, 1, 0, 2]]), one_slice([8, 12, 0]), PAIR)
    assert hot.bottlenecks == (Bottleneck(0, (1,), (0,), 1.2),)


def test_one_slice_is_served_as_well_as_by_the_optimal_dispatch():
    """Shares exported by slot give what an engine that solves for itself would reach."""
    rng = np.random.default_rng(3)
    topology = Topology((3, 3, 2, 4), (0, 0, 1, 1), (1.0, 0.5, 1.25, 1.0))
    tokens = rng.integers(1, 400, (1, 5, 8))
    rows = [[*rng.permutation(8), *rng.permutation(8)[:4]] for _ in range(5)]
    found = exact_shares(Placement(rows), LoadTrace(tokens), topology)
    ours = evaluate(found.placement, LoadTrace(tokens), topology, dispatch="weighted")
    best = evaluate(Placement(rows), LoadTrace(tokens), topology, dispatch="optimal")
    assert ours.ratio == pytest.approx(best.ratio, rel=1e-4)
    assert [b.ratio for b in found.bottlenecks] == pytest.approx(ours.ratio[0].tolist(), rel=1e-4)


@given(problems_with_map())
@settings(deadline=None)
def test_shares_sum_to_one_over_the_copies_that_serve(problem):
    """Empty and dead slots have none; the bottleneck's ranks are those that hold its experts."""
    topology, trace, placement = served_problem(problem)
    found = exact_shares(placement, trace, topology)
    alive = np.isin(topology.rank_of_slot(), topology.live_ranks)
    for layer, row in enumerate(placement.physical_to_logical):
        assert (found.shares[layer][~alive | (row < 0)] == 0).all()
        for expert in set(row[alive & (row >= 0)].tolist()):
            assert found.shares[layer][row == expert].sum() == pytest.approx(1.0)
    for bottleneck in found.bottlenecks:
        row = placement.physical_to_logical[bottleneck.layer]
        near = topology.rank_of_slot()[alive & np.isin(row, bottleneck.experts)]
        assert set(near.tolist()) == set(bottleneck.ranks)
        assert bottleneck.ratio >= 1 - 1e-9


@given(problems_with_map(), st.booleans())
@settings(deadline=None)
def test_improved_shares_are_never_worse_and_move_nothing(problem, shared):
    """The map's slots stay; the objective is that of the new shares and at most the old one."""
    topology, trace, placement = served_problem(problem)
    rows = placement.physical_to_logical
    if shared:
        placement = Placement(rows, np.random.default_rng(0).uniform(0, 1, rows.shape))
    change = improve_shares(placement, trace, topology)
    assert (change.placement.physical_to_logical == rows).all()
    old = evaluate(placement, trace, topology, dispatch="weighted").layer_ratio()
    new = evaluate(change.placement, trace, topology, dispatch="weighted").layer_ratio()
    assert (np.nan_to_num(new) <= np.nan_to_num(old) + 1e-9).all()
    assert sorted(np.flatnonzero(np.nan_to_num(new) < np.nan_to_num(old) - 1e-8)) == [
        layer for layer in change.layers if new[layer] < old[layer] - 1e-8
    ]
    if trace.tokens.any(axis=2)[trace.slice_weights() > 0].any():
        assert change.objective <= change.objective_start + 1e-9


def least_mean_of_maxima(row, rank_of_slot, tokens, ranks):
    """Lowest mean over slices of the largest rank load over the mean with fixed shares, by GLOP."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    share = [solver.NumVar(0, 1, "") for _ in row]
    for expert in set(row):
        solver.Add(sum(s for s, e in zip(share, row, strict=True) if e == expert) == 1)
    tops = []
    for loads in tokens:
        top = solver.NumVar(0, solver.infinity(), "")
        for rank in range(ranks):
            here = [
                s * float(loads[e]) for s, e, r in zip(share, row, rank_of_slot, strict=True) if r == rank
            ]
            solver.Add(sum(here) <= top)
        tops.append(top * (ranks / float(loads.sum())))
    solver.Minimize(sum(tops) * (1 / len(tokens)))
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return solver.Objective().Value()


def test_fixed_shares_come_close_to_the_linear_programme_over_all_slices():
    """The smooth descent leaves little of what the exact programme gains over even shares."""
    rng = np.random.default_rng(5)
    topology = Topology.uniform(ranks=4, slots_per_rank=3)
    left = []
    for _ in range(12):
        tokens = np.rint(rng.lognormal(4, 0.8, 8) * rng.lognormal(0, 0.4, (10, 8))).astype(np.int64)
        row = [*rng.permutation(8).tolist(), *rng.permutation(8)[:4].tolist()]
        trace = LoadTrace(tokens[:, None])
        even = evaluate(Placement([row]), trace, topology).mean_ratio
        best = least_mean_of_maxima(row, topology.rank_of_slot(), tokens, 4)
        ours = improve_shares(Placement([row]), trace, topology).objective
        assert best <= ours + 1e-6
        left.append((ours - best) / max(even - best, 1e-9))
    assert np.mean(left) < 0.15


def test_exact_shares_of_the_mean_can_lose_to_even_ones_over_slices():
    """Two experts that peak together look fine in the mean: improve_shares must not take the mean's shares."""
    trace = LoadTrace([[[10, 9, 0]], [[10, 0, 9]], [[10, 9, 0]], [[10, 0, 9]]])
    map_ = Placement([[0, 1, 0, 2]])
    change = improve_shares(map_, trace, PAIR)
    assert change.objective == pytest.approx(change.objective_start)


def test_what_cannot_be_split_is_refused():
    """A map of another width, an expert without a slot, and a group without a live rank."""
    with pytest.raises(MapError, match="3 slots"):
        exact_shares(Placement([[0, 1, 2]]), one_slice([1, 1, 1]), PAIR)
    with pytest.raises(MapError, match="expert 2 has load"):
        improve_shares(Placement([[0, 1, 1, 0]]), one_slice([1, 1, 1]), PAIR)
    dead = Topology.uniform(ranks=1, slots_per_rank=1, dead=frozenset({0}))
    with pytest.raises(InfeasibleError):
        exact_shares(Placement([[0]]), one_slice([0]), dead)
