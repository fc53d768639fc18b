"""Co-activation and nodes touched: equal to plain recounts, exact for every move and exchange."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placement.coactivation import Touched, coactivation, merged_sets
from tests.placement.routing import nodes_touched, route_sets


@given(route_sets())
def test_merging_keeps_every_token(case):
    """Each token's picks are those of its merged set; counts are the tokens; sets are distinct and sorted."""
    sets, experts = case
    distinct, counts, of_token = merged_sets(sets, experts)
    assert counts.sum() == (of_token >= 0).sum()
    assert len({tuple(one) for one in distinct.tolist()}) == len(distinct)
    for token, number in zip(sets.tolist(), of_token.tolist(), strict=True):
        picks = sorted(expert for expert in token if expert >= 0)
        assert picks == ([] if number < 0 else [e for e in distinct[number].tolist() if e < experts])


def test_merging_holds_for_sets_too_wide_for_one_number():
    """896 experts, top-16: keys are folded without losing which sets are equal."""
    rng = np.random.default_rng(0)
    sets = np.stack([rng.permutation(896)[:16] for _ in range(50)]).astype(np.int16)
    distinct, counts, of_token = merged_sets(np.concatenate([sets, sets[::-1, ::-1]]), 896)
    assert len(distinct) == 50
    assert (counts == 2).all()
    assert (of_token[:50] == of_token[50:][::-1]).all()


@given(route_sets())
def test_coactivation_counts_pairs(case):
    """Entry (i, j) is the number of tokens that select both."""
    sets, experts = case
    expected = np.zeros((experts, experts), dtype=np.int64)
    for token in sets.tolist():
        for one in token:
            for two in token:
                if one != two and min(one, two) >= 0:
                    expected[one, two] += 1
    assert (coactivation(sets, experts) == expected).all()


@st.composite
def touched_cases(draw):
    sets, experts = draw(route_sets())
    nodes = draw(st.integers(2, 4))
    home = np.array(draw(st.lists(st.integers(0, nodes - 1), min_size=experts, max_size=experts)))
    distinct, counts, _ = merged_sets(sets, experts)
    return distinct, counts, home, nodes


def recount(sets, counts, home):
    return sum(
        (touched - 1) * int(count) for touched, count in zip(nodes_touched(sets, home), counts, strict=True)
    )


@given(touched_cases())
def test_every_move_and_exchange_is_priced_exactly(case):
    """``move`` and ``swaps`` are the rises that a full recount finds."""
    sets, counts, home, nodes = case
    table = Touched(sets, counts, home, nodes)
    assert table.objective == recount(sets, counts, home)
    for expert in range(len(home)):
        for node in range(nodes):
            moved = home.copy()
            moved[expert] = node
            assert table.move[expert, node] == recount(sets, counts, moved) - table.objective
        for other in np.flatnonzero(home != home[expert]).tolist():
            moved = home.copy()
            moved[[expert, other]] = home[[other, expert]]
            assert table.swaps()[expert, other] == recount(sets, counts, moved) - table.objective


@given(touched_cases(), st.integers(0, 2**32))
def test_settled_moves_leave_what_a_fresh_count_gives(case, seed):
    """After any moves objective, prices and homes equal those of a table made anew."""
    sets, counts, home, nodes = case
    table, rng = Touched(sets, counts, home, nodes), np.random.default_rng(seed)
    for _ in range(3):
        experts = rng.permutation(len(home))[:2].tolist()
        table.settle([(expert, int(rng.integers(nodes))) for expert in experts])
    fresh = Touched(sets, counts, table.home[:-1].copy(), nodes)
    assert table.objective == fresh.objective
    assert (table.move == fresh.move).all()
    assert (table.swaps() == fresh.swaps()).all()
