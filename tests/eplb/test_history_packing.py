"""Rules of packed counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eplb.errors import HistoryError
from eplb.history.packing import pack, unpack

SHAPE = (3, 5)


@given(arrays(np.int64, SHAPE, elements=st.integers(0, 2**63 - 1) | st.integers(0, 300)))
def test_what_is_packed_is_unpacked(counts):
    """Whatever the counts, to the last bit."""
    assert np.array_equal(unpack(pack(counts), *SHAPE), counts)


@pytest.mark.parametrize(
    ("most", "planes"), [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 3), (2**32, 5), (2**63 - 1, 8)]
)
def test_counts_take_no_more_planes_than_the_largest_needs(most, planes):
    """And never none, so that a step is never empty."""
    assert pack(np.full(SHAPE, most, dtype=np.int64))[0] == planes


def test_a_body_that_declares_more_than_a_step_is_refused_before_it_is_unpacked():
    """A terabyte by its head, of which no byte is there: reading it would end the daemon for want of memory."""
    head = bytes.fromhex("28b52ffde0") + (1 << 40).to_bytes(8, "little") + bytes([1, 0, 0])
    with pytest.raises(HistoryError, match="declares 1099511627776 raw bytes, expected 15"):
        unpack(bytes([1]) + head, *SHAPE)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_packed_step_are_refused(raw):
    """By name, and never with another error."""
    with pytest.raises(HistoryError, match="packed step"):
        unpack(raw, *SHAPE)


def test_counts_of_another_shape_are_refused():
    """Fewer and more bytes than the shape has."""
    packed = pack(np.ones(SHAPE, dtype=np.int64))
    for shape in ((3, 4), (3, 6)):
        with pytest.raises(HistoryError):
            unpack(packed, *shape)


def test_a_count_that_no_counter_reaches_is_refused():
    """64 bits without a sign hold more than int64."""
    packed = bytearray(pack(np.full(SHAPE, 2**63 - 1, dtype=np.int64)))
    import zstandard

    raw = bytearray(zstandard.ZstdDecompressor().decompress(bytes(packed[1:])))
    raw[-1] = 0xFF
    with pytest.raises(HistoryError, match="negative count"):
        unpack(bytes([8]) + zstandard.ZstdCompressor().compress(bytes(raw)), *SHAPE)
