"""Routes: sets without twins, one request a sample, held out by request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement import LoadTrace, Routes, TraceError


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ([[[0, 1], [2, 2]]], r"sample 0, layer 1\] names an expert twice: \[2, 2\]"),
        ([[[0, -2]]], r"sample 0, layer 0, place 1\] is -2"),
        ([[[0, 2**15]]], "must be an expert below 32768"),
        ([[[0.5, 1.0]]], "expected whole numbers"),
        ([[0, 1]], r"expected \[samples, layers, top_k\]"),
    ],
)
def test_a_bad_set_is_refused_with_its_place(experts, message):
    """Twins, ids out of range, fractions and other shapes are named."""
    with pytest.raises(TraceError, match=message):
        Routes(experts, [0])


def test_a_set_may_have_several_places_without_a_pick():
    """-1 is no expert, so it may stand twice."""
    assert Routes([[[-1, -1, 3]]], [0]).experts.tolist() == [[[-1, -1, 3]]]


def test_every_sample_names_one_request_and_if_known_one_source():
    """Lengths and types of the ids are checked."""
    for requests, sources in (([0], None), ([0.0, 1.0], None), ([0, 1], [0]), ([0, 1], [0, -1])):
        with pytest.raises(TraceError, match=r"requests is|sources"):
            Routes(np.zeros((2, 1, 1), dtype=np.int16), requests, sources)


@given(st.lists(st.integers(-5, 60), min_size=2, max_size=40).filter(lambda ids: len(set(ids)) > 1))
def test_no_request_is_on_both_sides_of_the_split(ids):
    """Whole requests are held out; none is lost; about one in four, at least one on either side."""
    routes = Routes(np.arange(len(ids), dtype=np.int16)[:, None, None], ids)
    plan, score = routes.held_out()
    planned, scored = set(plan.requests.tolist()), set(score.requests.tolist())
    assert planned | scored == set(ids)
    assert not planned & scored
    assert plan.samples + score.samples == len(ids)
    assert 1 <= len(scored) <= max(1, (len(set(ids)) + 3) // 4)


def test_one_request_cannot_be_held_out():
    """With a single request there is nothing to score on."""
    with pytest.raises(TraceError, match="at least 2 requests"):
        Routes(np.zeros((3, 1, 1), dtype=np.int16), [7, 7, 7]).held_out()


def test_a_trace_refuses_routes_of_another_model():
    """Layers and expert ids of the routes fit the tokens."""
    tokens = np.ones((1, 2, 4), dtype=np.int64)
    with pytest.raises(TraceError, match="routes have 1 layers, tokens 2"):
        LoadTrace(tokens, routes=Routes([[[0]]], [0]))
    with pytest.raises(TraceError, match=r"sample 0, layer 1, place 0\] is 4, but experts are 0..3"):
        LoadTrace(tokens, routes=Routes([[[0], [4]]], [0]))


def test_source_tokens_are_checked_like_tokens():
    """Their messages name the rank; their layers and experts are those of the tokens."""
    tokens = np.ones((1, 2, 4), dtype=np.int64)
    assert LoadTrace(tokens, source_tokens=np.ones((3, 2, 4))).source_tokens.dtype == np.int64
    bad = np.zeros((3, 2, 4), dtype=np.int64)
    bad[2, 1, 3] = -1
    with pytest.raises(TraceError, match=r"source_tokens\[rank 2, layer 1, expert 3\] is -1"):
        LoadTrace(tokens, source_tokens=bad)
    with pytest.raises(TraceError, match=r"expected \[ranks, 2, 4\]"):
        LoadTrace(tokens, source_tokens=np.ones((3, 2, 5), dtype=np.int64))
