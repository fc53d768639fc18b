"""Co-activation: equal to plain recounts."""

import numpy as np
from hypothesis import given

from placement.coactivation import coactivation, merged_sets
from tests.placement.routing import route_sets


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
