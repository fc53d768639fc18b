"""Rules of the hot experts: what no map can spread, by enumeration, and what counts as drift."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.facts import PoolFacts
from eplb.hot_experts import hot_set_drift, hottest, least_ratio
from placement import LoadTrace, Placement, Topology, evaluate, violations


def facts_of(ranks, slots_per_rank, experts):
    return PoolFacts("p", ranks, 1, slots_per_rank, experts, 1, (3,))


def best_ratio(loads, facts):
    """The least ratio of any valid map, by trying all of them; the order of slots in a rank, and of ranks, makes no difference."""
    topology = Topology.uniform(ranks=facts.ranks, nodes=1, slots_per_rank=facts.slots_per_rank)
    trace = LoadTrace(np.array(loads, dtype=np.int64).reshape(1, 1, -1))
    found = []
    of_rank = itertools.combinations_with_replacement(range(facts.experts), facts.slots_per_rank)
    for ranks in itertools.combinations_with_replacement(of_rank, facts.ranks):
        row = tuple(itertools.chain(*ranks))
        placement = Placement(np.array([row], dtype=np.int32))
        if len(set(row)) == facts.experts and not violations(placement, topology, facts.experts):
            found.append(float(evaluate(placement, trace, topology, dispatch="optimal").ratio[0, 0]))
    return min(found)


@pytest.mark.parametrize(("ranks", "slots_per_rank", "experts"), [(2, 2, 4), (2, 2, 3), (3, 1, 2), (2, 3, 5)])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_map_is_below_the_least_ratio(ranks, slots_per_rank, experts, data):
    """Held against every valid map, with the best split of every expert's tokens."""
    loads = data.draw(st.lists(st.integers(0, 100), min_size=experts, max_size=experts).filter(any))
    facts = facts_of(ranks, slots_per_rank, experts)
    bound = float(least_ratio(np.array(loads, dtype=np.int64).reshape(1, 1, -1), facts)[0, 0])
    assert 1.0 <= bound <= best_ratio(loads, facts) + 1e-9


def test_pln_04_a_dominant_expert_leaves_nothing_to_move():
    """PLN-04: with loads 90, 10, 10, 10 and no redundant slot every map has a maximum of 100."""
    tokens = np.array([[[90, 10, 10, 10]]], dtype=np.int64)
    facts = facts_of(2, 2, 4)
    assert least_ratio(tokens, facts)[0, 0] == pytest.approx(100 / 60) == best_ratio([90, 10, 10, 10], facts)
    hot = hottest(tokens, facts)
    assert (hot.layer, hot.expert, hot.load_ratio) == (3, 0, 1.5)


def test_a_fair_share_is_that_of_the_ranks_that_serve():
    """A rank of three is lost: what binds is what binds in a pool of two."""
    tokens = np.array([[[90, 10, 10, 10]]], dtype=np.int64)
    three, two = facts_of(3, 2, 4), facts_of(2, 2, 4)
    assert least_ratio(tokens, three, 2) == least_ratio(tokens, two) != least_ratio(tokens, three)
    assert hottest(tokens, three, 2) == hottest(tokens, two) != hottest(tokens, three)


def test_without_load_there_is_nothing_to_say():
    """Zero is not missing."""
    none = np.zeros((2, 1, 4), dtype=np.int64)
    assert np.isnan(least_ratio(none, facts_of(2, 2, 4))).all()
    assert hottest(none, facts_of(2, 2, 4)) is None
    assert np.isnan(hot_set_drift(none[0], none[0], 2))


def test_drift_is_the_load_that_the_hot_experts_of_then_do_not_carry_now():
    """Half of the hottest load has gone to others."""
    then = np.array([[100, 100, 1, 1]])
    assert hot_set_drift(then, then, 2) == 0.0
    assert hot_set_drift(then, np.array([[60, 0, 40, 0]]), 2) == pytest.approx(0.4)
    assert hot_set_drift(then, np.array([[0, 0, 9, 9]]), 2) == 1.0


def test_sampling_noise_is_hardly_drift():
    """Two windows of the same traffic, 4,000 picks over 64 experts: below a tenth, as the setting's reason says."""
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.full(64, 2.0))
    drifts = [
        hot_set_drift(rng.multinomial(4_000, share)[None], rng.multinomial(4_000, share)[None], 8)
        for _ in range(50)
    ]
    assert max(drifts) < 0.1
