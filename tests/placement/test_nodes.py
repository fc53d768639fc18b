"""Nodes of experts: exact figures, sizes and limits kept, the best of all small choices found, not behind a reference partitioner."""

import itertools
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import Routes, Topology, kernel_nodes_anneal
from placement import kernel_nodes as kernel
from placement.choice import CHOICES, FEWEST, bins_touched, copy_table, tokens_of
from placement.coactivation import coactivation
from placement.nodes import (
    Figure,
    NodeSearch,
    first_nodes,
    improve_nodes,
    live_nodes,
    make_room,
    node_state,
    part_loads,
)
from placement.sources import routed_from, start_parts
from placement.traffic import bins_of
from tests.placement.routing import block_picks, nodes_touched, route_sets


def figure_of(picks, experts, topology, choice="even", sources=None, **change):
    """A figure whose load is the picks, in one slice; by default the nodes touched are all but everything."""
    routes, bins = Routes(picks[:, None], np.arange(len(picks)), sources), bins_of(topology)
    load = np.bincount(picks[picks >= 0].ravel(), minlength=experts).astype(float)
    ranks = routed_from(routes, 0, topology.ranks, experts)
    starts = {"per_source": ranks, "nearest": np.zeros((topology.nodes, experts), dtype=np.int64)}
    tokens = starts.get(choice, ranks.sum(axis=0)[None])
    if choice == "nearest":
        np.add.at(tokens, bins.of_rank, ranks)
    speed = np.bincount(topology.node_of_rank, topology.speed_of_rank())
    parts = part_loads(load[None])
    kept = Figure(
        tokens_of(routes, 0, experts, bins, choice, sampled=True), parts * speed.sum(), np.ones(1), speed, parts,
        1e3, choice, start_parts(tokens), bins.number, alone=choice == "even",
    )  # fmt: skip
    return replace(kept, **change)


def counted(figure, held, topology):
    """The figure by plain means: a copy on every node that holds an expert, chances from the public table."""
    expert, node = np.nonzero(held)
    table = copy_table(expert, replace(bins_of(topology), of_slot=node), len(held), figure.choice)
    part = (figure.source[:, :, None] * table[:, :-1]).sum(axis=0)
    hottest = ((figure.loads @ part) / figure.speed).max(axis=1)
    touched = bins_touched(figure.tokens, table, figure.choice, remote=True)
    return figure.weights @ hottest + figure.weight * (touched @ figure.tokens.count) / max(
        figure.tokens.count.sum(), 1
    )


@st.composite
def cases(draw, most_experts=8):
    sets, experts = draw(route_sets(most_experts))
    nodes = draw(st.integers(1, min(3, experts)))
    ranks = nodes * draw(st.integers(1, 2))
    slots = -(-experts // ranks) + draw(st.integers(0, 2))
    topology = Topology.uniform(ranks=ranks, nodes=nodes, slots_per_rank=slots)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sources = rng.integers(ranks, size=len(sets)) if draw(st.booleans()) else None
    return sets, experts, topology, sources


@given(cases(), st.sampled_from(CHOICES), st.booleans())
@settings(deadline=None, max_examples=40)
def test_after_any_proposals_the_figure_is_what_counting_anew_gives(case, choice, alone):
    """Kept sums, loads and peaks equal those of the public table; the covering of ``fewest`` is exact over so few nodes."""
    sets, experts, topology, sources = case
    room = make_room(topology, experts, 9.0)
    if not room.fits(experts):
        return
    figure = figure_of(sets, experts, topology, choice, sources, weight=2.0, alone=alone)
    state = node_state(figure, first_nodes(room, figure.sums[0]), room, None, 7)
    kernel_nodes_anneal.begin(state)
    state.now[kernel.TEMPERATURE], state.now[kernel.COOLING] = 1.0, 1.0
    kernel_nodes_anneal.anneal_nodes(state, 200)
    held = state.held.astype(bool)
    assert state.now[kernel.VALUE] == pytest.approx(counted(figure, held, topology))
    kept = state.now[kernel.VALUE]
    kernel.refresh(state)
    assert state.now[kernel.VALUE] == pytest.approx(kept)
    assert (state.size == held.sum(axis=0)).all()


@given(cases(), st.sampled_from(CHOICES), st.sampled_from([1.0, 1.05, 1.5]))
@settings(deadline=None, max_examples=40)
def test_sizes_and_load_limit_are_kept_or_not_made_worse(case, choice, tolerance):
    """Every node can be filled and holds what fits; an overload never grows; with equal overload the figure never rises."""
    sets, experts, topology, sources = case
    room = make_room(topology, experts, tolerance)
    if not room.fits(experts):
        assert room.fewest.sum() > experts
        return
    figure = figure_of(sets, experts, topology, choice, sources)
    start = first_nodes(room, figure.sums[0])
    held = improve_nodes(figure, start, room, NodeSearch(300))
    assert held.any(axis=1).all()
    assert (held.sum(axis=0) >= room.fewest).all()
    assert (held.sum(axis=0) <= room.most).all()
    before, after = (overload(figure, one, room) for one in (start, held))
    assert after <= before + 1e-12
    if after == before:
        assert counted(figure, held, topology) <= counted(figure, start, topology) + 1e-9


def overload(figure, held, room):
    state = node_state(figure, held, room, None, 0)
    kernel_nodes_anneal.begin(state)
    return state.now[kernel.OVER]


SMALL = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2)


def every_choice(experts, room, *, alone):
    """All ways to hold so many experts on two nodes within the room."""
    one = [(True, False), (False, True)] + ([] if alone else [(True, True)])
    for rows in itertools.product(one, repeat=experts):
        held = np.array(rows)
        size = held.sum(axis=0)
        if (size >= room.fewest).all() and (size <= room.most).all():
            yield held


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("weight", [0.2, 4.0])
def test_the_best_of_all_choices_is_found(choice, weight):
    """Five experts, two nodes of four slots, tokens with sources: homes for ``even``, copies on both nodes for the others."""
    rng = np.random.default_rng(3)
    sets = np.stack([rng.permutation(5)[:2] for _ in range(60)]).astype(np.int16)
    sources = (sets[:, 0] + rng.integers(3, size=60)) % 4
    room = make_room(SMALL, 5, 2.0)
    figure = figure_of(sets, 5, SMALL, choice, sources, weight=weight)
    options = every_choice(5, room, alone=figure.alone)
    best = min(counted(figure, held, SMALL) for held in options)
    held = improve_nodes(figure, first_nodes(room, figure.sums[0]), room, NodeSearch(20_000))
    assert counted(figure, held, SMALL) == pytest.approx(best)


def test_a_copy_goes_where_its_tokens_come_from():
    """Expert 0 is used from both nodes, the others from one: with the nearest copy taken nothing leaves its node."""
    sets = np.array([[0, 1], [0, 2], [0, 3], [0, 4]] * 5, dtype=np.int16)
    sources = np.array([0, 1, 2, 3] * 5)
    topology, room = SMALL, make_room(SMALL, 5, 1.05)
    figure = figure_of(sets, 5, topology, "nearest", sources)
    held = improve_nodes(figure, first_nodes(room, figure.sums[0]), room, NodeSearch(2000))
    assert counted(figure, held, topology) == pytest.approx(1.0)
    assert held[0].all()
    assert (held[1:3, 0] & held[3:5, 1].all()).all()


def test_an_expert_too_hot_for_any_node_is_split():
    """Three quarters of the load on one expert: with copies on both nodes both keep to the limit."""
    sets = np.array([[0]] * 30 + [[1], [2], [3], [4]] * 2, dtype=np.int16)
    room = make_room(SMALL, 5, 1.05)
    figure = figure_of(sets, 5, SMALL, alone=False)
    held = improve_nodes(figure, first_nodes(room, figure.sums[0]), room, NodeSearch(2000))
    assert held[0].all()
    assert overload(figure, held, room) == 0


def test_planted_blocks_are_found_exactly():
    """Tokens that stay within blocks of 8 experts touch one node of 8 slots each."""
    picks = block_picks(400, blocks=4, size=8, top_k=4)[:, 0]
    topology = Topology.uniform(ranks=4, nodes=4, slots_per_rank=8)
    room = make_room(topology, 32, 1.3)
    figure = figure_of(picks, 32, topology)
    held = improve_nodes(figure, first_nodes(room, figure.sums[0]), room, NodeSearch(20_000))
    assert set(nodes_touched(picks, held.argmax(axis=1))) == {1}


@pytest.mark.parametrize("seed", range(3))
def test_the_cut_keeps_up_with_kernighan_lin(seed):
    """Pairs (top-2) make the objective the cut of the co-activation graph; on a ring, its hardest case, within 2 % of networkx."""
    rng = np.random.default_rng(seed)
    centre = rng.integers(32, size=2000)
    other = (centre + 1 + rng.geometric(0.2, size=2000)) % 32
    sets = np.stack([centre, other], axis=1)[centre != other].astype(np.int16)
    weights = coactivation(sets, 32)
    halves = nx.community.kernighan_lin_bisection(nx.from_numpy_array(weights), weight="weight", seed=seed)
    reference = nx.cut_size(nx.from_numpy_array(weights), halves[0], weight="weight")
    topology = Topology.uniform(ranks=2, nodes=2, slots_per_rank=16)
    room, figure = make_room(topology, 32, 2.0), figure_of(sets, 32, topology)
    held = improve_nodes(figure, first_nodes(room, figure.sums[0]), room, NodeSearch(20_000))
    assert (np.array(nodes_touched(sets, held.argmax(axis=1))) - 1).sum() <= 1.02 * reference


def test_an_overloaded_start_is_relieved_first():
    """Exchanges take the load below the limit although they raise the fan-out."""
    sets = np.repeat(np.array([[0, 1], [2, 3]], dtype=np.int16), [90, 10], axis=0)
    topology = Topology.uniform(ranks=2, nodes=2, slots_per_rank=2)
    room, figure = make_room(topology, 4, 1.05), figure_of(sets, 4, topology)
    start = np.array([[True, False], [True, False], [False, True], [False, True]])
    held = improve_nodes(figure, start, room, NodeSearch(500))
    assert overload(figure, start, room) > 0
    assert overload(figure, held, room) == 0
    assert held[0].tolist() != held[1].tolist()


def test_a_price_keeps_experts_where_they_live():
    """The better homes are two exchanges away: a high price of an arrival leaves all as it is, a low one does not."""
    sets = np.repeat(np.array([[0, 1], [2, 3]], dtype=np.int16), 20, axis=0)
    topology = Topology.uniform(ranks=2, nodes=2, slots_per_rank=2)
    room, figure = make_room(topology, 4, 1.05), figure_of(sets, 4, topology, weight=1.0)
    live = np.array([[True, False], [False, True], [True, False], [False, True]])
    for price, stays in ((10.0, True), (0.01, False)):
        held = improve_nodes(figure, live, room, NodeSearch(500, price=price), live)
        assert (held == live).all() == stays


def test_live_nodes_stay_where_the_map_is():
    """Every expert stays on the node that holds it, and on both of two where that is allowed and fits."""
    room = make_room(Topology.uniform(ranks=4, nodes=2, slots_per_rank=3), 6, 1.05)
    copies = np.array([[2, 1], [1, 0], [1, 0], [0, 1], [0, 1], [0, 2]], dtype=float)
    load = np.full(6, 1 / 6)
    alone, free = (live_nodes(copies, room, load, alone=one) for one in (True, False))
    assert alone.argmax(axis=1).tolist() == [0, 0, 0, 1, 1, 1]
    assert (alone.sum(axis=1) == 1).all()
    assert free[0].tolist() == [True, True]
    assert (free[1:] == alone[1:]).all()


def test_rank_speeds_set_the_limits():
    """A node of twice the speed may take twice the load."""
    room = make_room(Topology((4, 4), (0, 1), (1.0, 2.0)), 8, 1.0)
    assert room.load[1] == pytest.approx(2 * room.load[0])


def test_equal_seeds_give_equal_nodes_and_a_stop_keeps_what_was_found():
    """Bytes are equal when asked again; a stop before the first proposal leaves the start."""
    picks = block_picks(200, blocks=4, size=8, top_k=4)[:, 0]
    topology = Topology.uniform(ranks=4, nodes=4, slots_per_rank=9)
    room, figure = make_room(topology, 32, 1.3), figure_of(picks, 32, topology, FEWEST)
    start = first_nodes(room, figure.sums[0])
    one, two = (improve_nodes(figure, start, room, NodeSearch(2000, seed=5)) for _ in range(2))
    assert one.tobytes() == two.tobytes()
    halted = improve_nodes(figure, start, room, NodeSearch(2000, should_stop=lambda: True))
    assert (halted == start).all()
