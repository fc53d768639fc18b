"""The gate's header: eight words that are read exactly or not at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.agent.gate import Gate
from eplb.agent.group import ThreadGroup
from eplb.agent.header import MAX_OFFER_BYTES, Action, Header, decode_header, encode_header, signed_word
from eplb.errors import ConfigError, MigrationError

words = st.integers(min_value=0, max_value=(1 << 62) - 1)
headers = st.builds(
    Header, st.sampled_from(Action), words, words, words,
    st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1), st.integers(min_value=0, max_value=MAX_OFFER_BYTES),
)  # fmt: skip


@given(headers)
def test_a_header_is_read_as_it_was_written(header):
    assert decode_header(encode_header(header)) == header


@given(headers, st.integers(min_value=0, max_value=511))
def test_a_header_with_any_bit_flipped_is_refused(header, bit):
    raw = bytearray(encode_header(header).tobytes())
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MigrationError):
        decode_header(np.frombuffer(bytes(raw), dtype=np.int64))


def test_an_offer_longer_than_the_limit_is_refused_before_memory_is_taken():
    with pytest.raises(MigrationError, match="limit"):
        decode_header(encode_header(Header(Action.PREPARE, 1, 1, 1, 1, MAX_OFFER_BYTES + 1)))


@given(st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_a_digest_keeps_its_bits_as_a_signed_word(value):
    assert signed_word(value) % (1 << 64) == value


def test_gates_are_at_the_first_and_every_nth_forward():
    gate = Gate(ThreadGroup.create(1)[0], 20)
    assert [call for call in range(60) if gate.due()] == [0, 20, 40]


def test_a_gate_more_often_than_every_20_forwards_is_a_named_error():
    with pytest.raises(ConfigError, match="at least 20"):
        Gate(ThreadGroup.create(1)[0], 19)
