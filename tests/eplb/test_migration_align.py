"""The order of slots: whatever stays on its rank keeps its slot, and nothing moves that need not."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from migration_world import plans_with_loads, random_shares, ranks_of

from collectors.facts import PoolFacts
from eplb.migration import make_plan, waves
from eplb.migration.align import aligned, newcomers
from eplb.migration.waves import arrivals_by_rank


def fewest(facts, base, target):
    """The lower bound: experts of each rank's target that the rank does not hold."""
    return sum(
        len(set(after) - set(before))
        for old, new in zip(base, target, strict=True)
        for before, after in zip(ranks_of(facts, old), ranks_of(facts, new), strict=True)
    )


@settings(max_examples=200)
@given(plans_with_loads())
def test_arrivals_are_as_few_as_the_ranks_experts_allow(pool):
    facts, base, target, _ = pool
    rows, _ = aligned(facts, base, target)
    arrivals = (rows != base) & (rows >= 0)
    assert int(arrivals.sum()) == fewest(facts, base, target)
    assert np.array_equal(arrivals, newcomers(facts, base, rows))
    for old, new in zip(target, rows, strict=True):
        assert [sorted(x) for x in ranks_of(facts, old)] == [sorted(x) for x in ranks_of(facts, new)]


@settings(max_examples=50)
@given(plans_with_loads(), st.integers(0, 2**32 - 1))
def test_shares_go_with_their_replicas(pool, seed):
    facts, base, target, _ = pool
    shares = random_shares(target, np.random.default_rng(seed))
    rows, moved = aligned(facts, base, target, shares)
    for layer in range(facts.layers):
        for rank in range(facts.ranks):
            own = slice(rank * facts.slots_per_rank, (rank + 1) * facts.slots_per_rank)
            pairs = [
                sorted(zip(r[layer, own], s[layer, own], strict=True))
                for r, s in ((target, shares), (rows, moved))
            ]
            assert pairs[0] == pairs[1]


@given(st.lists(st.integers(-1, 4), min_size=3, max_size=3), st.permutations(range(5)))
def test_no_order_of_a_rank_changes_fewer_slots(base, others):
    """Against all orders of the target, with a base that may hold an expert twice or not at all."""
    facts = PoolFacts("p", 2, 1, 3, 5, 1, (0,))
    idle = [-1, -1, -1]
    target = np.array([[*others[:3], *idle]], dtype=np.int32)
    rows, _ = aligned(facts, np.array([[*base, *idle]], dtype=np.int32), target)
    best = min(
        sum(new != old for new, old in zip(order, base, strict=True)) for order in permutations(others[:3])
    )
    assert int((rows[0, :3] != base).sum()) == best


def test_a_newcomer_takes_an_empty_slot_before_that_of_an_expert_that_leaves():
    facts = PoolFacts("p", 2, 1, 3, 4, 1, (0,))
    base = np.array([[0, 1, -1, 2, 3, -1]], dtype=np.int32)
    rows, _ = aligned(facts, base, np.array([[2, -1, 1, 3, 0, -1]], dtype=np.int32))
    assert rows.tolist() == [[-1, 1, 2, -1, 3, 0]]


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_maps_without_replicas_can_always_be_moved_one_arrival_a_rank_at_a_time(ranks, width, seed):
    """Rings that visit a rank once: whatever the two maps are, one spare slot a rank is enough."""
    rng = np.random.default_rng(seed)
    facts = PoolFacts("p", ranks, 1, width, ranks * width, 1, (0,))
    base, target = (rng.permutation(facts.experts).astype(np.int32)[None, :] for _ in range(2))
    plan = make_plan(facts, base, target, created_ms=1, wave_slots=1)
    row = base[0]
    for (change,) in waves(facts, plan, base, plan.base_digests, staging_slots=1):
        assert arrivals_by_rank(facts, row, change).max() == 1
        row = np.array(change.target)
