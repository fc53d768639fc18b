"""LoadTrace: counts are whole, not negative and small enough, or the place and the value are named."""

import numpy as np
import pytest

from placement import LoadTrace, PlacementError, TraceError


def refused(value, dtype=None):
    tokens = np.zeros((2, 3, 4), dtype=dtype or type(value))
    tokens[1, 2, 3] = value
    with pytest.raises(TraceError) as caught:
        LoadTrace(tokens)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "dtype", "shown"),
    [
        (-5, np.int64, "-5"),
        (float("nan"), np.float64, "nan"),
        (float("inf"), np.float64, "inf"),
        (0.5, np.float64, "0.5"),
        (2**63, np.uint64, str(2**63)),
        (2**70, object, str(2**70)),
        ("many", object, "many"),
        (1e30, np.float64, "1e+30"),
    ],
)
def test_a_bad_count_is_refused_with_place_and_value(value, dtype, shown):
    """Negative, not finite, not whole and overflowing counts name slice, layer, expert and value."""
    message = refused(value, dtype)
    assert "slice 1, layer 2, expert 3" in message
    assert shown in message


def test_a_layer_sum_that_overflows_is_refused():
    """Counts that fit alone but not together name slice and layer."""
    with pytest.raises(TraceError, match="slice 0, layer 0 sum to"):
        LoadTrace(np.full((1, 1, 4), 2**61, dtype=np.int64))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 1, 1), (1, 1, 0)])
def test_another_shape_is_refused(shape):
    """Only [slices, layers, experts] with at least one each is a trace."""
    with pytest.raises(TraceError, match="expected"):
        LoadTrace(np.zeros(shape, dtype=np.int64))


def test_ragged_and_textual_tokens_are_refused():
    """What is not an array of numbers is a TraceError, which is a PlacementError."""
    for tokens in ([[[1, 2], [3]]], [[["a"]]], [[[True]]]):
        with pytest.raises(PlacementError):
            LoadTrace(tokens)


def test_whole_floats_and_unsigned_counts_become_int64():
    """Whole numbers of any width are accepted and kept as read-only int64."""
    trace = LoadTrace(np.array([[[1.0, 2.0]]], dtype=np.float32))
    assert trace.tokens.dtype == np.int64
    assert not trace.tokens.flags.writeable
    assert LoadTrace(np.array([[[7]]], dtype=np.uint8)).tokens.tolist() == [[[7]]]


def test_the_trace_keeps_its_own_copy():
    """A later write to the caller's array does not reach the trace."""
    tokens = np.ones((1, 1, 2), dtype=np.int64)
    trace = LoadTrace(tokens)
    tokens[:] = 9
    assert trace.tokens.tolist() == [[[1, 1]]]


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, float("nan")], [0.0, 0.0]])
def test_bad_weights_are_refused(weights):
    """One finite weight >= 0 a slice, not all 0."""
    with pytest.raises(TraceError):
        LoadTrace(np.ones((2, 1, 1), dtype=np.int64), weights=weights)


@pytest.mark.parametrize("steps", [[1], [1, 0], [1.0, 2.0]])
def test_bad_steps_per_slice_are_refused(steps):
    """One whole number >= 1 a slice."""
    with pytest.raises(TraceError):
        LoadTrace(np.ones((2, 1, 1), dtype=np.int64), steps_per_slice=steps)


@pytest.mark.parametrize(
    ("batch", "part"),
    [([1.0], r"shape \[1\], expected \[2\]"), ([3.0, 0.0], r"batch_tokens\[slice 1\] is 0")],
)
def test_batch_tokens_are_checked(batch, part):
    """One positive number for every slice."""
    tokens = np.ones((2, 1, 1), dtype=np.int64)
    with pytest.raises(TraceError, match=part):
        LoadTrace(tokens, batch_tokens=batch)
    assert LoadTrace(tokens, batch_tokens=[2, 3]).batch_tokens.tolist() == [2.0, 3.0]
