"""Rules of records from the store as untrusted input: refused by name in bounded memory, never an error of another kind."""

import json
import tracemalloc
from dataclasses import asdict
from hashlib import blake2b

import numpy as np
import pytest
from agent_crew import FACTS, offer, rotated, start_map
from hypothesis import given
from hypothesis import strategies as st

from collectors.digests import layer_map_digests
from eplb.agent.wire import (
    LIVE_SCHEMA,
    MAX_SEALED_BYTES,
    OFFER_SCHEMA,
    LiveRecord,
    decode_live,
    decode_offer,
    encode_live,
    encode_offer,
)
from eplb.errors import OfferError
from eplb.migration import observe, read_desired, read_records
from eplb.migration.plan import make_plan
from eplb.migration.plan_wire import PLAN_SCHEMA, decode_plan, encode_plan
from eplb.ranks import LiveRanks

BASE = start_map()
TARGET = rotated(BASE)
OFFER = offer(FACTS, BASE, TARGET)
PLAN = make_plan(FACTS, BASE, TARGET, created_ms=1)
LIVE = LiveRecord(
    pool="p", rank=0, incarnation=1, run_id=2, term_seen=3, map_version=4, group_step=5, state="serving", offer="",
    digests=tuple(int(x) for x in layer_map_digests(FACTS.model_layers, BASE)),
    map_rows=tuple(tuple(int(x) for x in row) for row in BASE), facts=FACTS,
)  # fmt: skip
KINDS = {
    "offer": (OFFER_SCHEMA, OFFER, encode_offer, decode_offer),
    "plan": (PLAN_SCHEMA, PLAN, encode_plan, decode_plan),
    "live": (LIVE_SCHEMA, LIVE, encode_live, decode_live),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def sealed(schema, body):
    """The body with a right checksum, as somebody would write it who wants it read; NaN and Infinity are written as they are."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    check = blake2b(text.encode(), digest_size=8).hexdigest()
    return f'{{"schema":"{schema}","check":"{check}","body":{text}}}'.encode()


@kinds
def test_a_sound_record_is_read_as_it_was(kind):
    """Types and ranges let the real ones through."""
    _, record, encode, decode = KINDS[kind]
    assert decode(encode(record)) == record


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@kinds
@given(data=st.data())
def test_a_field_of_another_type_is_refused_or_harmless(kind, data):
    """Any field replaced by anything, under a right checksum: the reader names it, or what it gives is of the right types."""
    schema, record, _, decode = KINDS[kind]
    body = json.loads(json.dumps(asdict(record)))
    body[data.draw(st.sampled_from(sorted(body)))] = data.draw(JUNK)
    try:
        found = decode(sealed(schema, body))
    except OfferError:
        return
    for name, value in asdict(found).items():
        assert type(value) in {type(getattr(record, name)), int, float, dict, tuple, type(None)}


@kinds
@given(junk=st.binary(max_size=300))
def test_bytes_that_are_no_record_are_refused(kind, junk):
    """Never another error, which would end the cycle of a whole pool."""
    with pytest.raises(OfferError):
        KINDS[kind][3](junk)


@kinds
@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 200_000,
        b'{"body":' * 50_000,
        b'{"schema":"x","check":"y","body":{"a":' + b"9" * 10_000 + b"}}",
        b'{"schema":"x","check":"y","body":{"a":NaN}}',
        b'{"schema":"x","check":"y","body":{"a":1e999}}',
        b'{"schema":"x","check":"y","body":[["a",1]]}',
        b'{"schema":{"x":1},"check":"y","body":{}}',
        b"\xff\xfe",
        b"",
        b"null",
    ],
    ids=["deep", "deep_body", "huge_int", "nan", "infinite", "list", "schema", "utf16", "empty", "null"],
)
def test_hostile_json_is_refused(kind, raw):
    """Depth, numbers of ten thousand digits, NaN and shapes."""
    with pytest.raises(OfferError):
        KINDS[kind][3](raw)


@kinds
def test_a_record_that_is_too_large_is_not_even_parsed(kind):
    """No memory is taken for what is refused."""
    raw = b'{"schema":"x","check":"y","body":{"a":"' + b"x" * MAX_SEALED_BYTES + b'"}}'
    tracemalloc.start()
    with pytest.raises(OfferError, match="at most"):
        KINDS[kind][3](raw)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


@kinds
@pytest.mark.parametrize("change", ["unknown", "missing"])
def test_unknown_and_missing_fields_are_refused(kind, change):
    """A record of another version is not guessed at."""
    schema, record, _, decode = KINDS[kind]
    body = json.loads(json.dumps(asdict(record)))
    body.pop("pool") if change == "missing" else body.update(extra=1)
    with pytest.raises(OfferError):
        decode(sealed(schema, body))


@pytest.mark.parametrize(
    "change",
    [
        {"digests": [2**64, 1, 2]},
        {"digests": [1]},
        {"term_seen": "x"},
        {"term_seen": 2**53 + 1},
        {"map_version": -1},
        {"rank": None},
        {"map_rows": [[0, 1], [1]]},
        {"map_rows": [[99] * 12] * 3},
        {"facts": None},
        {"shares_rows": [[0.5]]},
        {"refusals": [[1, 2, 3, 4]]},
        {"run_id": 1e30},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_live_record_that_would_trip_the_daemon_counts_as_damaged(change):
    """One bad rank is named; the others are read."""
    body = json.loads(json.dumps(asdict(LIVE)))
    raw = {0: sealed(LIVE_SCHEMA, {**body, **change}), 1: encode_live(LIVE)}
    records, damaged = read_records(raw)
    assert records == {}
    assert set(damaged) == {0, 1}
    assert "says that it is rank 0" in damaged[1]


@given(
    st.dictionaries(st.sampled_from(["map", "offer", "map_version", "offered_ms"]), st.binary(max_size=60))
)
def test_whatever_stands_under_desired_the_status_is_computed(fields):
    """Damage is named and counts as absent; no leader is stopped by it."""
    ranks = LiveRanks.read({}, FACTS)
    observe(FACTS, read_desired(fields), ranks.records, 1000)


@pytest.mark.parametrize("raw", [b"9" * 4000, b"-1", b"x", b"1e9", b"9" * 5000])
def test_a_counter_that_no_daemon_wrote_counts_as_none(raw):
    """Else it would reach metrics and the next term."""
    desired = read_desired({"term": raw, "map_version": raw, "offered_ms": raw})
    assert (desired.term, desired.map_version, desired.offered_ms) == (0, 0, 0)
    assert desired.damaged == ("term", "map_version", "offered_ms")


def test_rows_become_an_array_of_the_pools_shape():
    """What passed the reader can be used without another check."""
    ranks = LiveRanks.read({0: encode_live(LIVE)}, FACTS)
    assert np.array_equal(ranks.rows, BASE)
    assert ranks.layer_digests.dtype == np.uint64
