"""Skew: what is measured agrees with its definition, and known cases have known values."""

from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.skew import floor_ratio, id_order, id_order_ratio, skew_of
from placement import LoadTrace, Topology


def test_an_even_trace_has_no_skew():
    """Ratio 1, Gini 0, top 8 of 16 take half."""
    skew = skew_of(LoadTrace(np.full((2, 3, 16), 7)))
    assert (skew.hottest_ratio, skew.top_share, skew.zero_cells, skew.cells) == (1.0, 0.5, 0, 48)
    assert skew.gini == pytest.approx(0.0)


def test_one_expert_with_everything_is_all_skew():
    """Ratio E, Gini (E - 1) / E; layers without load do not count."""
    tokens = np.zeros((2, 2, 16), dtype=int)
    tokens[:, 0, 3] = 5
    skew = skew_of(LoadTrace(tokens))
    assert (skew.hottest_ratio, skew.top_share, skew.zero_cells, skew.cells) == (16.0, 1.0, 15, 16)
    assert skew.gini == pytest.approx(15 / 16)


def test_without_load_nothing_is_known():
    """Not zero: unknown."""
    trace = LoadTrace(np.zeros((1, 1, 4), dtype=int))
    skew = skew_of(trace)
    assert isnan(skew.hottest_ratio)
    assert isnan(skew.gini)
    assert isnan(id_order_ratio(trace, 2))
    assert isnan(floor_ratio(trace, 2, 1))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any))
@settings(max_examples=50)
def test_gini_is_half_the_mean_difference_over_the_mean(loads):
    """By its definition over all pairs."""
    values = np.array(loads, dtype=float)
    expected = np.abs(values[:, None] - values).mean() / (2 * values.mean())
    assert skew_of(LoadTrace([[loads]])).gini == pytest.approx(expected)


def test_id_order_puts_neighbours_on_one_rank():
    """Experts 0 and 1 on rank 0: 3 + 1 of 8, mean 4; slots beyond the experts start again from 0."""
    trace = LoadTrace([[[3, 3, 1, 1]]])
    assert id_order_ratio(trace, 2) == pytest.approx(6 / 4)
    order = id_order(trace, Topology.uniform(ranks=2, nodes=1, slots_per_rank=3))
    assert order.physical_to_logical.tolist() == [[0, 1, 2, 3, 0, 1]]
