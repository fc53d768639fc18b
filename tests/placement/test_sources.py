"""Sources: whole nodes change places so that more tokens start where their experts are, and nothing else changes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement import LoadTrace, Topology, TraceError, fan_out, solve
from placement.sources import local_share, near_sources, node_tokens
from tests.placement.routing import block_picks, trace_of


def at_home(home, tokens):
    return int(tokens[home, np.arange(len(home))].sum())


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_parts_stay_whole_and_no_exchange_starts_more_tokens_at_home(seed, nodes):
    """Experts that shared a node still do; two nodes are always settled best."""
    rng = np.random.default_rng(seed)
    topology = Topology.uniform(ranks=nodes, nodes=nodes, slots_per_rank=3)
    home, tokens = rng.permutation(np.arange(3 * nodes) % nodes), rng.integers(0, 99, (nodes, 3 * nodes))
    new = near_sources(home, tokens, topology)
    assert len(set(zip(home.tolist(), new.tolist(), strict=True))) == nodes
    best = at_home(new, tokens)
    for one, two in itertools.combinations(range(nodes), 2):
        swapped = np.where(new == one, two, np.where(new == two, one, new))
        assert at_home(swapped, tokens) <= best


def test_unequal_nodes_keep_their_experts():
    """A node with faster ranks is another place: exchanging would unbalance it."""
    topology = Topology((2, 2), (0, 1), (1.0, 2.0))
    home = np.array([0, 0, 1, 1])
    tokens = np.array([[0, 0, 9, 9], [9, 9, 0, 0]])
    assert near_sources(home, tokens, topology).tolist() == home.tolist()
    assert near_sources(home, tokens, Topology((2, 2), (0, 1))).tolist() == [1, 1, 0, 0]


def test_local_share_counts_copies_by_chance():
    """A copy on either node: half of the picks are at home; an empty slot serves nothing."""
    topology = Topology((2, 2), (0, 1))
    tokens = node_tokens(np.array([[4, 0, 0], [0, 4, 8]]), topology)
    assert local_share(np.array([0, 3, 0, 1]), np.array([[4, 0, 0], [0, 4, 0]]), topology) == 0.75
    assert local_share(np.array([0, 1, 2, 3]), tokens, topology) == 0.75


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
    assert local_share(row, node_tokens(sources[:, 0], topology), topology) == 1.0
    assert "100.0 % of the picks start" in result.reasons[-1].sentence


def test_sources_of_another_group_are_refused():
    """As many ranks as the topology has, dead ones included."""
    picks = block_picks(40, blocks=4, size=8, top_k=4)
    trace = trace_of(picks, np.arange(40), 32)
    known = LoadTrace(trace.tokens, routes=trace.routes, source_tokens=np.ones((7, 1, 32), dtype=np.int64))
    with pytest.raises(TraceError, match="source_tokens name 7 ranks, the topology has 8"):
        solve(known, Topology.uniform(ranks=8, nodes=4, slots_per_rank=4), traffic_weight=1.0)
