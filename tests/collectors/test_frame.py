"""The frame codec: what goes in comes out, and nothing damaged comes out at all."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from frame_examples import frames, parts, plain, sealed, small_frame
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors import Frame, FrameError, Phase, PhaseTotals, decode_frame, encode_frame
from collectors import frame as codec

LAYERS_AT = 16
"""Offset of the number of layers in the header: dtype, four bytes, rank, ranks."""


@given(frames())
def test_a_frame_survives_the_wire_unchanged(frame):
    """Decoding what was encoded gives equal values of equal shapes."""
    assert plain(decode_frame(encode_frame(frame))) == plain(frame)


def test_decoded_arrays_cannot_be_written_to():
    """Facts are never changed after creation."""
    frame = decode_frame(encode_frame(small_frame()))
    arrays = [frame.layer_digests, frame.totals[0].counts, frame.closed[0].counts, frame.samples[0].counts]
    assert not any(a.flags.writeable for a in arrays)
    assert all(a.dtype == np.int64 for a in arrays[1:])


def test_absent_times_stay_absent_and_zero_stays_zero():
    """Not measured is None, never 0."""
    sample = decode_frame(encode_frame(small_frame())).samples[0]
    assert (sample.step_us, sample.moe_wait_us, sample.a2a_us, sample.expert_us) == (12.5, None, 0.0, None)


def test_every_flipped_bit_is_refused():
    """One wrong bit anywhere refuses the frame."""
    data = encode_frame(small_frame())
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(FrameError):
                decode_frame(bytes(damaged))


def test_every_truncation_and_any_extra_byte_is_refused():
    """A frame of another length than it declares is refused."""
    data = encode_frame(small_frame())
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode_frame(data[:length])
    with pytest.raises(FrameError, match="declares"):
        decode_frame(data + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_name(data):
    """Bytes that are no frame raise FrameError and nothing else."""
    with pytest.raises(FrameError):
        decode_frame(data)


def _read_or_refused(data: bytes) -> bool:
    try:
        frame = decode_frame(data)
    except FrameError as error:
        return str(error).startswith("frame: ")
    return isinstance(frame, Frame)


@settings(max_examples=300)
@given(st.data())
def test_a_lying_header_with_a_right_checksum_is_refused_or_read(data):
    """Whatever the header says, the decoder answers with a frame or a FrameError."""
    header, body, raw_bytes = parts(encode_frame(small_frame()))
    lie = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        lie[data.draw(st.integers(0, len(lie) - 1))] = data.draw(st.integers(0, 255))
    assert _read_or_refused(sealed(bytes(lie), body, raw_bytes))


@settings(max_examples=200)
@given(st.data())
def test_a_lying_body_with_a_right_checksum_is_refused_or_read(data):
    """Whatever the decompressed tables say, the decoder answers with a frame or a FrameError."""
    header, body, raw_bytes = parts(encode_frame(small_frame()))
    lie = bytearray(zstandard.ZstdDecompressor().decompress(body))
    for _ in range(data.draw(st.integers(1, 4))):
        lie[data.draw(st.integers(0, len(lie) - 1))] = data.draw(st.integers(0, 255))
    assert _read_or_refused(sealed(header, zstandard.compress(bytes(lie)), raw_bytes))


def _peak_bytes_of_refusal(data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            decode_frame(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_that_claims_many_layers_allocates_nothing():
    """Sizes are compared before anything is allocated for them."""
    header, body, raw_bytes = parts(encode_frame(small_frame()))
    for layers in (3, 1_000_000, 2**32 - 1):
        lie = header[:LAYERS_AT] + struct.pack("<I", layers) + header[LAYERS_AT + 4 :]
        assert _peak_bytes_of_refusal(sealed(lie, body, raw_bytes)) < 1_000_000


def test_a_prefix_that_claims_many_raw_bytes_allocates_nothing():
    """The declared raw size must be the one that the header describes."""
    header, body, _ = parts(encode_frame(small_frame()))
    for raw_bytes in (1, 30_000_000, 2**32 - 1):
        assert _peak_bytes_of_refusal(sealed(header, body, raw_bytes)) < 1_000_000


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_inflates_to_more_than_declared_allocates_nothing(declared):
    """A body of zeros that inflates a thousandfold is refused by its own declared size, or at the limit."""
    header, _, raw_bytes = parts(encode_frame(small_frame()))
    bomb = zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(64_000_000))
    assert _peak_bytes_of_refusal(sealed(header, bomb, raw_bytes)) < 1_000_000


def test_a_body_with_bytes_after_its_end_is_refused():
    """Nothing may ride along behind the compressed body."""
    header, body, raw_bytes = parts(encode_frame(small_frame()))
    with pytest.raises(FrameError, match="decompressed"):
        decode_frame(sealed(header, body + b"more", raw_bytes))


def test_another_schema_says_what_to_do():
    """A frame of another version is refused by its number."""
    header, body, raw_bytes = parts(encode_frame(small_frame()))
    with pytest.raises(FrameError, match=r"schema is 2.*same version on both sides"):
        decode_frame(sealed(header, body, raw_bytes, schema=2))


def test_col_09_counters_of_another_type_are_refused():
    """The type and length of counters travel with them: int64 read as int64 is right, as int32 it is refused."""
    counts = np.array([[3, 7, 1]], dtype=np.int64)
    frame = dataclasses.replace(
        small_frame(layers_in_flight=()),
        layer_digests=np.zeros(1, dtype=np.uint64),
        totals=(PhaseTotals(Phase.MIXED, 1, 11, counts),),
        closed=(),
        samples=(),
    )
    data = encode_frame(frame)
    assert decode_frame(data).totals[0].counts.tolist() == [[3, 7, 1]]
    header, body, raw_bytes = parts(data)
    assert header.startswith(b"<i8")
    with pytest.raises(FrameError, match="i4"):
        decode_frame(sealed(b"<i4\0" + header[4:], body, raw_bytes))


@pytest.mark.parametrize(
    ("lie", "match"),
    [
        ({"rank": 4}, "rank 4 of 4 ranks"),
        ({"stride": 0}, "stride 0"),
        ({"scope_copies": 0}, "scope_copies 0"),
        ({"layers_in_flight": (2,)}, "layer 2"),
    ],
)
def test_header_values_that_contradict_each_other_are_refused(lie, match):
    """A frame that cannot be true is refused by the field."""
    with pytest.raises(FrameError, match=match):
        decode_frame(encode_frame(small_frame(**lie)))


def test_a_phase_may_have_totals_once():
    """Two totals of one phase would count twice."""
    frame = small_frame()
    with pytest.raises(FrameError, match="twice"):
        decode_frame(encode_frame(dataclasses.replace(frame, totals=frame.totals * 2)))


@pytest.mark.parametrize("wrong_us", [-1.0, float("inf")])
def test_times_must_be_finite_and_not_negative(wrong_us):
    """A time that cannot be is refused."""
    frame = small_frame()
    sample = dataclasses.replace(frame.samples[0], step_us=wrong_us)
    with pytest.raises(FrameError, match="a time of step 14"):
        decode_frame(encode_frame(dataclasses.replace(frame, samples=(sample,))))


def test_a_count_with_the_sign_bit_set_is_refused():
    """Eight planes can spell a negative number; a count never is one."""
    frame = small_frame()
    most = dataclasses.replace(frame.totals[0], counts=np.full((2, 3), 2**63 - 1, dtype=np.int64))
    header, body, raw_bytes = parts(
        encode_frame(dataclasses.replace(frame, totals=(most,), closed=(), samples=()))
    )
    raw = bytearray(zstandard.ZstdDecompressor().decompress(body))
    raw[-1] = 0xFF
    with pytest.raises(FrameError, match="negative count"):
        decode_frame(sealed(header, zstandard.compress(bytes(raw)), raw_bytes))


def _with_counts(counts):
    frame = small_frame()
    return dataclasses.replace(frame, totals=(dataclasses.replace(frame.totals[0], counts=counts),))


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (_with_counts(np.full((2, 3), -1, dtype=np.int64)), "negative count"),
        (_with_counts(np.zeros((2, 4), dtype=np.int64)), "shapes"),
        (_with_counts(np.zeros((3, 3), dtype=np.int64)), "shapes"),
        (_with_counts(np.zeros((2, 3), dtype=np.float64)), "float64"),
        (small_frame(pool=""), "pool's name"),
        (small_frame(pool="x" * 256), "pool's name"),
        (small_frame(seq=-1), "out of range"),
        (small_frame(run_id=2**64), "out of range"),
    ],
)
def test_what_cannot_be_a_frame_is_not_encoded(frame, match):
    """A recorder's mistake is named before it travels."""
    with pytest.raises(FrameError, match=match):
        encode_frame(frame)


def test_a_frame_has_a_largest_size():
    """More counters than the limit are refused when encoding, too."""
    counts = np.zeros((1, codec.MAX_FRAME_BYTES // 8 + 1), dtype=np.int64)
    frame = Frame(
        small_frame(layers_in_flight=()).header,
        np.zeros(1, dtype=np.uint64),
        (PhaseTotals(Phase.MIXED, 1, 1, counts),),
    )
    with pytest.raises(FrameError, match="the limit is"):
        encode_frame(frame)


def test_small_counts_travel_in_few_bytes():
    """A layer-by-expert table of one step takes less than a third of its int32 size."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(8 * 1024, np.full(256, 1 / 256), size=58).astype(np.int64)
    frame = Frame(
        small_frame(layers_in_flight=()).header,
        np.zeros(58, dtype=np.uint64),
        (PhaseTotals(Phase.MIXED, 1, 1024, counts),),
    )
    assert len(encode_frame(frame)) * 3 < counts.size * 4
