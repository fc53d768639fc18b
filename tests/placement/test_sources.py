"""Sources: whole nodes change places so that more tokens start where their experts are, and nothing else changes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement import LoadTrace, Routes, Topology, TraceError, fan_out, solve
from placement.choice import copy_table
from placement.sources import bin_tokens, local_share, near_sources, routed_from, start_parts
from placement.traffic import bins_of
from tests.placement.routing import block_picks, trace_of


def on_node(home, nodes):
    """Homes as nodes that hold each expert, bool [experts, nodes]."""
    return np.equal.outer(np.array(home), np.arange(nodes))


def at_home(held, tokens):
    return int(tokens.T[held].sum())


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_parts_stay_whole_and_no_exchange_starts_more_tokens_at_home(seed, nodes):
    """Experts that shared a node still do; two nodes are always settled best."""
    rng = np.random.default_rng(seed)
    topology = Topology.uniform(ranks=nodes, nodes=nodes, slots_per_rank=3)
    held, tokens = rng.random((3 * nodes, nodes)) < 0.5, rng.integers(0, 99, (nodes, 3 * nodes))
    new = near_sources(held, tokens, topology)
    assert sorted(map(tuple, held.T.tolist())) == sorted(map(tuple, new.T.tolist()))
    best = at_home(new, tokens)
    for one, two in itertools.combinations(range(nodes), 2):
        swapped = new.copy()
        swapped[:, [one, two]] = new[:, [two, one]]
        assert at_home(swapped, tokens) <= best


def test_unequal_nodes_keep_their_experts():
    """A node with faster ranks is another place: exchanging would unbalance it."""
    topology = Topology((2, 2), (0, 1), (1.0, 2.0))
    held = on_node([0, 0, 1, 1], 2)
    tokens = np.array([[0, 0, 9, 9], [9, 9, 0, 0]])
    assert (near_sources(held, tokens, topology) == held).all()
    assert (near_sources(held, tokens, Topology((2, 2), (0, 1))) == on_node([1, 1, 0, 0], 2)).all()


def test_local_share_follows_the_copy_that_is_taken():
    """A copy on either node: half of the picks are at home by chance, all of them with the nearest; an empty slot serves nothing."""
    bins, own = bins_of(Topology((2, 2), (0, 1))), np.array([0, 1])
    tokens = bin_tokens(np.array([[4, 0, 0], [4, 4, 0]]), bins.of_rank, 2)

    def share(row, choice):
        return local_share(copy_table(np.array(row), bins, 3, choice), tokens, own)

    assert share([0, 3, 0, 1], "even") == (2 + 2 + 4) / 12
    assert share([0, 3, 0, 1], "nearest") == 1.0
    assert share([0, 1, 2, 3], "nearest") == 4 / 12


def test_parts_by_start_sum_to_one_and_what_is_unknown_is_taken_like_all_tokens():
    """Counts of an expert, else of all experts, else the same everywhere."""
    assert start_parts(np.array([[3, 0], [1, 0]])).tolist() == [[0.75, 0.75], [0.25, 0.25]]
    assert start_parts(np.zeros((2, 1), dtype=int)).tolist() == [[0.5], [0.5]]


def test_sampled_picks_are_counted_by_source():
    """A dropped pick counts nowhere."""
    routes = Routes([[[0, 1]], [[1, -1]]], [0, 1], [1, 0])
    assert routed_from(routes, 0, 2, 2).tolist() == [[0, 1], [1, 1]]
    assert not routed_from(Routes([[[0]]], [0]), 0, 2, 2).any()


def test_a_solve_puts_blocks_where_their_tokens_start():
    """Every block of experts is used by the tokens of one node only: all picks are then at home, at the same fan-out."""
    picks = block_picks(400, blocks=4, size=8, top_k=4)
    trace = trace_of(picks, np.repeat(np.arange(40), 10), 32)
    sources = np.zeros((8, 1, 32), dtype=np.int64)
    for block in range(4):
        sources[2 * ((block + 1) % 4), 0, block * 8 : block * 8 + 8] = 10
    known = LoadTrace(trace.tokens, routes=trace.routes, source_tokens=sources)
    topology = Topology.uniform(ranks=8, nodes=4, slots_per_rank=4)
    result = solve(known, topology, traffic_weight=1.0, effort="fast")
    assert fan_out(result.placement, trace.routes, topology)[0] == 1.0
    row = result.placement.physical_to_logical[0].astype(np.int64)
    tokens = bin_tokens(sources[:, 0], np.array(topology.node_of_rank), 4)
    assert local_share(copy_table(row, bins_of(topology), 32, "even"), tokens, np.arange(4)) == 1.0
    assert "100.0 % of the picks start" in result.reasons[-1].sentence


def test_sources_of_another_group_are_refused():
    """As many ranks as the topology has, dead ones included."""
    picks = block_picks(40, blocks=4, size=8, top_k=4)
    trace = trace_of(picks, np.arange(40), 32)
    known = LoadTrace(trace.tokens, routes=trace.routes, source_tokens=np.ones((7, 1, 32), dtype=np.int64))
    with pytest.raises(TraceError, match="source_tokens name 7 ranks, the topology has 8"):
        solve(known, Topology.uniform(ranks=8, nodes=4, slots_per_rank=4), traffic_weight=1.0)
