"""Dispatch: each rule gives the copies the tokens that its engine gives them."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_inputs import one_slice, problems_with_map

from placement import LoadTrace, Placement, Topology, TraceError, UnsupportedError, evaluate
from placement.batches import HASH
from placement.dispatch import Dispatch, Dispatcher, assumptions
from placement.models import DISPATCH

LONE = Topology.uniform(ranks=4, slots_per_rank=1)


def trace_of(loads, **facts):
    """A trace of one slice and one layer with facts about its sources and steps."""
    return LoadTrace(np.array(loads, dtype=np.int64)[None, None, :], **facts)


def rank_loads(row, trace, topology, dispatch):
    """Tokens of every rank in the first slice and layer."""
    return evaluate(Placement([row]), trace, topology, dispatch=dispatch).rank_load[0, 0].tolist()


@pytest.mark.parametrize(
    ("copies", "batch", "first"),
    [(2, 1, 1.00), (2, 3, 0.67), (2, 8, 0.50), (3, 2, 1.00), (3, 8, 0.50), (3, 64, 0.36), (4, 2, 0.50), (4, 5, 0.40)],
)  # fmt: skip
def test_hash_row_gives_the_first_copy_what_vllm_gives_it(copies, batch, first):
    """The published parts of copy 0 for n copies and B rows, from one source rank."""
    topology = Topology.uniform(ranks=copies, slots_per_rank=1)
    source = np.zeros((copies, 1, 1), dtype=np.int64)
    source[0] = 1
    trace = trace_of([1000], batch_tokens=[batch], source_tokens=source)
    loads = rank_loads([0] * copies, trace, topology, "hash_row")
    assert round(loads[0] / 1000, 2) == first
    assert sum(loads) == pytest.approx(1000)


@given(st.integers(1, 300), st.integers(1, 7))
@settings(deadline=None)
def test_hash_row_is_the_count_of_hashed_rows(batch, copies):
    """Row i takes copy (i x 2654435769 mod 2^32) mod n."""
    picked = Counter((row * HASH & 0xFFFFFFFF) % copies for row in range(batch))
    topology = Topology.uniform(ranks=copies, slots_per_rank=1)
    trace = trace_of([batch], batch_tokens=[batch * copies])
    loads = rank_loads([0] * copies, trace, topology, "hash_row")
    assert loads == pytest.approx([picked[copy] for copy in range(copies)])


def test_hash_row_counts_the_rows_of_every_source_rank_for_itself():
    """One rank with one row sends it to the first copy; one with two rows sends one to each."""
    pair = Topology.uniform(ranks=2, slots_per_rank=1)
    source = np.array([[[1]], [[2]]])
    assert rank_loads([0, 0], trace_of([3], batch_tokens=[3.0], source_tokens=source), pair, "hash_row") == [
        2,
        1,
    ]


def sol_12(dispatch):
    """SOL-12: 16 source ranks, 4 copies; every fourth rank carries only padding, the others 100 tokens each."""
    topology = Topology.uniform(ranks=16, slots_per_rank=1)
    source = np.full((16, 1, 13), 100)
    source[3::4] = 0
    row = [0, 0, 0, 0, *range(1, 13)]
    trace = trace_of(source.sum(axis=(0, 1)), source_tokens=source)
    return rank_loads(row, trace, topology, dispatch)[:4]


def test_sol_12_per_source_follows_the_real_rule():
    """Rank mod copies lines up with the padding rank; with the tensor-parallel rule every copy gets 300 tokens."""
    assert sol_12("per_source") == [400, 400, 400, 0]
    assert sol_12(Dispatch("per_source", tensor_parallel=4)) == [300, 300, 300, 300]


def test_nearest_prefers_the_own_rank_then_the_own_node():
    """A node that holds some copies serves its own ranks from its first; a rank with a copy serves itself."""
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=1)
    source = np.arange(1, 5)[:, None, None] * np.ones((4, 1, 3), dtype=np.int64)
    trace = trace_of([10, 10, 10], source_tokens=source)
    wide = Topology((1, 2, 2, 1), (0, 0, 1, 1))
    own, alone = (
        [1, 2, 3, 4],
        10,
    )  # of expert 0 ranks 0 to 2 serve themselves, rank 3 its node's; of expert 1 ranks 1 and 3
    loads = rank_loads([0, 0, 1, 0, 2, 1], trace, wide, "nearest")
    assert loads == pytest.approx(
        [own[0], own[1] + own[0] + own[1], own[2] + own[3] + alone, own[2] + own[3]]
    )
    trace = trace_of([10, 0, 0], source_tokens=source)
    assert rank_loads([0, 1, 0, 2], trace, topology, "nearest") == pytest.approx([1 + 2, 0, 3 + 4, 0])


def test_nearest_deals_the_other_ranks_as_the_engine_does():
    """Copies on one node only: the node does not narrow the set, so ranks without a copy are dealt by Random(42)."""
    topology = Topology.uniform(ranks=6, nodes=3, slots_per_rank=1)
    row = [0, 0, 1, 2, 3, 4]
    source = 10 ** np.arange(6)[:, None, None] * np.ones((6, 1, 5), dtype=np.int64)
    deal, arr = Random(42), [0, 1]
    dealt = arr * 2 + deal.sample(arr, k=0)
    deal.shuffle(dealt)
    expected = [1, 10]
    for rank, copy in zip(range(2, 6), dealt, strict=True):
        expected[copy] += 10**rank
    trace = trace_of(source.sum(axis=(0, 1)), source_tokens=source)
    assert rank_loads(row, trace, topology, "nearest")[:2] == expected
    mean = Dispatcher(Dispatch("nearest"), trace, topology, dealt=False).parts(0, np.array(row))[0]
    assert (mean[:2] * 111111).tolist() == pytest.approx([1 + 55550, 10 + 55550])


def turns(tokens, copies, **settings):
    """Tokens that each copy gets by turns from one source rank in one step."""
    topology = Topology.uniform(ranks=copies, slots_per_rank=1)
    source = np.zeros((copies, 1, 1), dtype=np.int64)
    source[settings.get("rank", 0)] = 1
    trace = trace_of([tokens], steps_per_slice=[settings.get("steps", 1)], source_tokens=source)
    rule = Dispatch("block_round_robin", offset_by_rank=settings.get("offset", True))
    return rank_loads([0] * copies, trace, topology, rule)


@given(st.integers(0, 1024), st.integers(1, 6), st.integers(0, 5), st.booleans())
@settings(deadline=None)
def test_block_round_robin_counts_one_block_exactly(tokens, copies, rank, offset):
    """Choice k of rank r goes to copy (k + r) mod n, or k mod n."""
    rank %= copies
    picked = Counter((k + (rank if offset else 0)) % copies for k in range(tokens))
    assert turns(tokens, copies, rank=rank, offset=offset) == pytest.approx(
        [picked[copy] for copy in range(copies)], abs=1e-6
    )


def test_block_round_robin_starts_every_block_one_copy_later():
    """4096 choices of one expert are four whole blocks: copies share evenly; small batches favour the first."""
    assert turns(4096, 3) == pytest.approx([4096 / 3] * 3, abs=1)
    assert turns(1, 2, offset=False) == pytest.approx([1, 0])


def test_block_round_robin_of_many_steps_is_the_mean_over_ways_to_spread_them():
    """Two tokens over two steps: together in half of the cases (one each), else both first."""
    assert turns(2, 2, steps=2, offset=False) == pytest.approx([1.5, 0.5])


def test_optimal_splits_every_slice_for_itself():
    """Copies take all of a slice's slack; the certificate's ranks stay costliest."""
    pair = Topology.uniform(ranks=2, slots_per_rank=2)
    trace = LoadTrace([[[8, 6, 0]], [[8, 0, 6]], [[2, 9, 1]]])
    score = evaluate(Placement([[0, 1, 0, 2]]), trace, pair, dispatch="optimal")
    assert score.rank_load[:, 0].tolist() == [[7.0, 7.0], [7.0, 7.0], [9.0, 3.0]]


@given(problems_with_map(), st.sampled_from(DISPATCH), st.booleans())
@settings(deadline=None)
def test_no_rule_loses_or_invents_tokens_and_none_beats_optimal(problem, name, facts):
    """Over the live slots of a loaded expert parts sum to 1 under every rule, with and without facts about sources."""
    topology, trace, rows = problem
    rng = np.random.default_rng(0)
    if facts:
        source = rng.integers(0, 3, (topology.ranks, trace.layers, trace.experts))
        ones = np.ones(trace.slices, dtype=np.int64)
        trace = LoadTrace(trace.tokens, steps_per_slice=2 * ones, source_tokens=source, batch_tokens=7 * ones)
    placement = Placement(np.where(rows < trace.experts, rows, -1))
    live = np.isin(topology.rank_of_slot(), topology.live_ranks)
    served = [set(row[live & (row >= 0)].tolist()) for row in placement.physical_to_logical]
    tokens = trace.tokens.copy()
    for layer, some in enumerate(served):
        tokens[:, layer, [e for e in range(trace.experts) if e not in some]] = 0
    trace = LoadTrace(
        tokens,
        steps_per_slice=trace.steps_per_slice,
        source_tokens=trace.source_tokens,
        batch_tokens=trace.batch_tokens,
    )
    score = evaluate(placement, trace, topology, dispatch=name)
    assert score.rank_load.sum(axis=2) == pytest.approx(tokens.sum(axis=2))
    best = evaluate(placement, trace, topology, dispatch="optimal")
    assert (np.nan_to_num(best.ratio) <= np.nan_to_num(score.ratio) * (1 + 1e-5)).all()


def test_what_a_rule_assumes_is_said():
    """Missing sources, batches and steps are named; what is there is not."""
    bare = one_slice([1, 1])
    codes = {name: [r.code for r in assumptions(Dispatch(name), bare)] for name in DISPATCH}
    assert codes == {
        "even": [], "weighted": [], "optimal": [],
        "hash_row": ["sources_assumed_even", "batch_assumed_large"],
        "nearest": ["sources_assumed_even"],
        "per_source": ["sources_assumed_even"],
        "block_round_robin": ["sources_assumed_even", "batch_assumed_large"],
    }  # fmt: skip
    full = trace_of(
        [1, 1], source_tokens=np.ones((2, 1, 2), dtype=int), batch_tokens=[4], steps_per_slice=[1]
    )
    assert not any(assumptions(Dispatch(name), full) for name in DISPATCH)


def test_what_cannot_be_scored_is_refused():
    """Unknown rules, a tensor-parallel width below 1, and counts of other ranks."""
    with pytest.raises(UnsupportedError, match="'nearby' is unknown"):
        Dispatch("nearby")
    with pytest.raises(UnsupportedError, match="tensor_parallel is 0"):
        Dispatch("per_source", tensor_parallel=0)
    trace = trace_of([1], source_tokens=np.ones((2, 1, 1), dtype=int))
    with pytest.raises(TraceError, match="source_tokens name 2 ranks, the topology has 4"):
        evaluate(Placement([[0, 0, 0, 0]]), trace, LONE, dispatch="nearest")
