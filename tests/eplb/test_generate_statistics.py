"""Statistics: known traces have known values, and what a trace cannot tell is None."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.formats.facts import Layers, TraceFile
from eplb.generate.pairs import pairs_of
from eplb.generate.statistics import cosine, hot_overlap, slice_noise, spearman, statistics_of
from placement import LoadTrace, Routes

ONE_KIND = (("", ""), ("", ""))


def file(tokens, routes=None, **names):
    return TraceFile(LoadTrace(tokens, routes=routes), Layers(), "", "npz", **names)


def together(sets):
    """Pairs of one layer of such sets."""
    return pairs_of(np.array(sets, dtype=np.int16)[:, None, :], 4)


def test_skew_of_loads_that_can_be_counted_by_hand():
    """Loads 6 1 1 0: hottest 6 of mean 2; two ranks have 7 and 1; the hottest tenth is one expert. A layer without load is left out."""
    found = statistics_of(file([[[6, 1, 1, 0], [0, 0, 0, 0]]]))
    assert (found.hottest_expert, found.hottest_expert_worst) == (3.0, 3.0)
    assert found.top_tenth_share == 0.75
    assert (found.rank_ratio, found.rank_ratio_low, found.rank_ratio_high) == (1.75, 1.75, 1.75)


def test_the_worst_layer_is_shown_beside_the_mean():
    """Layers with 2 and 4 times the mean expert."""
    found = statistics_of(file([[[2, 2, 0, 0], [0, 0, 5, 0]]]))
    assert (found.hottest_expert, found.hottest_expert_worst) == (3.0, 4.0)
    assert (found.rank_ratio_low, found.rank_ratio_high) == (2.0, 2.0)


def test_experts_that_always_go_together_have_the_lift_of_their_rarity():
    """Half of 40 tokens pick 0 and 1: independence expects a quarter of them. One of six pairs is a tenth, rounded: it holds half."""
    pairs = together([[0, 1], [3, 2]] * 20)
    assert (pairs.strongest_lift.tolist(), pairs.strong_lift.tolist()) == ([2.0], [2.0])
    assert pairs.top_mass.tolist() == [0.5]


def test_independent_experts_have_lift_1():
    """0 or 1 with 2 or 3, all combinations alike."""
    pairs = together([[0, 2], [0, 3], [1, 2], [1, 3]] * 10)
    assert pairs.strongest_lift.tolist() == [1.0]
    assert pairs.top_mass.tolist() == [0.25]


def test_a_small_sample_tells_no_lift():
    """Independence expects one token of each pair: a coincidence would look like affinity."""
    assert np.isnan(together([[0, 1], [2, 3]] * 2).strongest_lift).all()


def test_tokens_without_pairs_tell_nothing():
    """Top-1 routers have none, and an empty place is no pick."""
    assert np.isnan(together([[0], [1]]).top_mass).all()
    assert np.isnan(together([[0, -1], [1, -1]]).top_mass).all()


def test_cosine_and_overlap_of_loads():
    """Equal up to scale, and strangers; layers that one of them does not load do not count."""
    one = np.array([[4, 0, 1, 0], [0, 0, 0, 0]])
    assert (cosine(one, 3 * one), hot_overlap(one, 3 * one)) == (pytest.approx(1.0), 1.0)
    other = np.array([[0, 7, 0, 7], [1, 1, 1, 1]])
    assert (cosine(one, other), hot_overlap(one, other)) == (0.0, 0.0)


def test_rank_correlation_shares_places_among_equals():
    """Places 1 2 3 4 against 4 3 2 1; and 1 2.5 2.5 4 against 1 2 3 4: 4.5 / sqrt(5 x 4.5)."""
    rising = np.array([[1, 5, 7, 9]])
    assert spearman(rising, rising[:, ::-1]) == pytest.approx(-1.0)
    assert spearman(np.array([[0, 3, 3, 8]]), rising) == pytest.approx(4.5 / sqrt(5 * 4.5))


@pytest.mark.parametrize("picks", [2, 10, 1000])
def test_slices_that_share_nothing_have_the_noise_of_their_definition(picks):
    """Two slices of n picks, all of one expert and then all of the other: noise^2 = 2 - 1 / n."""
    tokens = np.array([[[picks, 0]], [[0, picks]]])
    assert slice_noise(tokens, ONE_KIND, 1) == pytest.approx(sqrt(2 - 1 / picks))


def test_slices_of_different_kinds_are_not_compared():
    """A domain is no noise."""
    tokens = np.array([[[9, 0]], [[0, 9]]])
    assert slice_noise(tokens, (("a", ""), ("b", "")), 1) is None


@given(st.integers(0, 99))
@settings(max_examples=20)
def test_independent_tokens_have_hardly_any_noise(seed):
    """Sampling is taken off; what is left is the sampling of the estimate."""
    drawn = np.random.default_rng(seed).multinomial(5000, [0.4, 0.3, 0.2, 0.1], size=(20, 3))
    assert slice_noise(drawn, [("", "")] * 20, 1) < 0.02


def test_domains_and_phases_are_compared_where_they_are_known():
    """Two domains with half of their hot set in common; a thin third one is left out."""
    tokens = np.zeros((5, 1, 20), dtype=int)
    tokens[0, 0, [0, 1]] = tokens[1, 0, [0, 1]] = 100
    tokens[2, 0, [1, 2]] = tokens[3, 0, [1, 2]] = 100
    tokens[4, 0, 5] = 3
    found = statistics_of(
        file(tokens, domain=("a", "a", "b", "b", "c"), phase=("prefill", "decode") * 2 + ("",))
    )
    assert (found.domain_cosine, found.domain_hot_overlap) == (pytest.approx(0.5), 0.5)
    assert (found.phase_cosine, found.phase_spearman) == (pytest.approx(1.0), pytest.approx(1.0))


def test_what_a_trace_cannot_tell_is_none():
    """One slice of counts without names; and no load at all."""
    found = statistics_of(file([[[1, 2]]]))
    assert (found.pair_lift, found.domain_cosine, found.phase_cosine, found.slice_noise) == (None,) * 4
    assert statistics_of(file([[[0, 0]]])).hottest_expert is None


def test_pairs_come_from_the_routes():
    """The trace's own sample of sets."""
    routes = Routes(np.array([[[0, 1]], [[2, 3]]] * 20), np.zeros(40, dtype=int))
    found = statistics_of(file([[[20, 20, 20, 20]]], routes))
    assert (found.pair_lift, found.top_pair_mass) == (2.0, 0.5)
