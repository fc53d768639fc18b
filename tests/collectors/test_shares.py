"""Shares in whole steps, and the digests that they are part of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.digests import layer_map_digest, layer_map_digests
from collectors.shares import SHARE_STEPS, all_shares, even_shares, quantised_shares, share_steps


@st.composite
def rows_with_shares(draw):
    row = np.array(draw(st.lists(st.integers(-1, 4), min_size=1, max_size=16)), dtype=np.int32)
    weights = np.array(
        draw(st.lists(st.integers(1, 1000), min_size=row.size, max_size=row.size)), dtype=float
    )
    shares = np.zeros(row.size)
    for expert in set(row.tolist()) - {-1}:
        held = row == expert
        shares[held] = weights[held] / weights[held].sum()
    return row, shares


@given(rows_with_shares())
def test_steps_of_an_expert_add_up_to_a_million_and_are_off_by_one_at_most(given_row):
    row, shares = given_row
    steps = share_steps(row, shares)
    assert all(steps[row == expert].sum() == SHARE_STEPS for expert in set(row.tolist()) - {-1})
    assert (steps[row < 0] == 0).all()
    assert np.abs(steps - shares * SHARE_STEPS).max() <= 1.001


@given(rows_with_shares())
def test_shares_in_whole_steps_stay_what_they_are(given_row):
    row, shares = given_row
    whole = quantised_shares(row, shares)
    assert np.array_equal(quantised_shares(row, whole), whole)


@given(rows_with_shares(), st.integers(0, 2**32 - 1))
def test_noise_of_floats_never_changes_a_digest(given_row, seed):
    row, shares = given_row
    noise = 1 + np.random.default_rng(seed).uniform(-1e-14, 1e-14, row.size)
    whole = quantised_shares(row, shares)
    assert layer_map_digest(3, row, whole) == layer_map_digest(3, row, whole * noise)


@pytest.mark.parametrize("copies", [1, 2, 3, 7, 64, 128, 320])
def test_even_shares_and_none_are_the_same_map(copies):
    row = np.zeros(copies, dtype=np.int32)
    noisy = even_shares(row) * (1 + np.random.default_rng(copies).uniform(-1e-14, 1e-14, copies))
    assert layer_map_digest(3, row, noisy) == layer_map_digest(3, row)


def test_another_share_is_another_map():
    row = np.array([0, 1, 0], dtype=np.int32)
    digests = {layer_map_digest(3, row, np.array([x, 1.0, 1 - x])) for x in (0.5, 0.500_002, 0.75, 1.0)}
    assert len(digests) == 4


def test_shares_of_no_layers_have_the_shape_of_the_map():
    rows = np.zeros((0, 6), dtype=np.int32)
    assert all_shares(rows, None).shape == (0, 6)
    assert layer_map_digests((), rows, all_shares(rows, None)).shape == (0,)
