"""Byte planes: every counter comes back, and small ones take few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors import FrameError
from collectors.planes import joined, planes_needed, shuffled, unshuffled


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_shuffled_counters_come_back(values):
    """Unshuffling is the inverse of shuffling at the number of planes that the largest value needs."""
    row = joined([np.array(values, dtype=np.int64)])
    planes = planes_needed(row)
    raw = shuffled(row, planes)
    assert len(raw) == planes * len(values)
    assert unshuffled(memoryview(raw), len(values), planes).tolist() == values


@pytest.mark.parametrize(
    ("value", "planes"), [(0, 0), (1, 1), (255, 1), (256, 2), (2**32, 5), (2**63 - 1, 8)]
)
def test_planes_follow_the_largest_value(value, planes):
    """No plane of zeros is sent."""
    assert planes_needed(np.array([0, value], dtype=np.int64)) == planes


def test_the_first_plane_holds_the_lowest_bytes():
    """The layout is little-endian, plane by plane, on any machine."""
    row = np.array([0x0102, 0x0304], dtype=np.int64)
    assert shuffled(row, 2) == bytes([0x02, 0x04, 0x01, 0x03])


def test_the_sign_bit_is_refused():
    """Eight planes with the sign bit set are no counter."""
    with pytest.raises(FrameError, match="negative"):
        unshuffled(memoryview(b"\xff" * 8), 1, 8)
