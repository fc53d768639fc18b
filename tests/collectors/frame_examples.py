"""Frames for tests: a small one, hypothesis strategies, equality, and bytes resealed with a right checksum."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from collectors import ClosedRow, Frame, FrameHeader, Kind, Phase, PhaseTotals, StepSample
from collectors import frame as codec

U32 = 2**32 - 1
U64 = 2**64 - 1
I64 = 2**63 - 1


def small_frame(**header: Any) -> Frame:
    """Two layers, three columns, everything present once."""
    facts = {
        "pool": "main",
        "rank": 1,
        "ranks": 4,
        "kind": Kind.ROUTED_SLOTS,
        "scope_copies": 1,
        "incarnation": 11,
        "run_id": 12,
        "term_seen": 13,
        "seq": 14,
        "group_step": 15,
        "age_ms": 16,
        "stride": 2,
        "live_digest": 17,
        "layers_in_flight": (1,),
    }
    counts = np.array([[1, 2, 70_000], [0, 5, 6]], dtype=np.int64)
    return Frame(
        header=FrameHeader(**{**facts, **header}),
        layer_digests=np.array([21, 22], dtype=np.uint64),
        totals=(PhaseTotals(Phase.DECODE, 3, 99, counts),),
        closed=(ClosedRow(1, Phase.DECODE, 20, np.array([7, 8, 9], dtype=np.int64)),),
        samples=(StepSample(14, Phase.DECODE, 4, 17, counts // 10, step_us=12.5, a2a_us=0.0),),
    )


def counters(*shape: int) -> st.SearchStrategy[np.ndarray]:
    size = int(np.prod(shape))
    top = st.sampled_from([0, 1, 255, 256, 65_535, 2**40, I64])
    values = top.flatmap(lambda most: st.lists(st.integers(0, most), min_size=size, max_size=size))
    return values.map(lambda v: np.array(v, dtype=np.int64).reshape(shape))


times = st.none() | st.floats(0, 1e12)
phases = st.sampled_from(Phase)


@st.composite
def headers(draw: st.DrawFn, layers: int) -> FrameHeader:
    ranks = draw(st.integers(1, U32))
    in_flight = st.lists(st.integers(0, layers - 1), max_size=layers, unique=True) if layers else st.just([])
    return FrameHeader(
        pool=draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)),
        rank=draw(st.integers(0, ranks - 1)),
        ranks=ranks,
        kind=draw(st.sampled_from(Kind)),
        scope_copies=draw(st.integers(1, U32)),
        incarnation=draw(st.integers(0, U64)),
        run_id=draw(st.integers(0, U64)),
        term_seen=draw(st.integers(0, U64)),
        seq=draw(st.integers(0, U64)),
        group_step=draw(st.integers(-1, I64)),
        age_ms=draw(st.integers(0, U64)),
        stride=draw(st.integers(1, U32)),
        live_digest=draw(st.integers(0, U64)),
        layers_in_flight=tuple(draw(in_flight)),
    )


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    layers, width = draw(st.integers(0, 3)), draw(st.integers(1, 4))
    closed_layers = st.lists(st.integers(0, layers - 1), max_size=3) if layers else st.just([])
    digest = st.integers(0, U64)
    return Frame(
        header=draw(headers(layers)),
        layer_digests=np.array(draw(st.lists(digest, min_size=layers, max_size=layers)), dtype=np.uint64),
        totals=tuple(
            PhaseTotals(phase, draw(st.integers(0, U64)), draw(st.integers(0, U64)), draw(counters(layers, width)))
            for phase in draw(st.lists(phases, unique=True))
        ),
        closed=tuple(
            ClosedRow(layer, draw(phases), draw(digest), draw(counters(width))) for layer in draw(closed_layers)
        ),
        samples=tuple(
            StepSample(step, draw(phases), draw(st.integers(0, U64)), draw(digest), draw(counters(layers, width)),
                       *(draw(times) for _ in range(4)))
            for step in draw(st.lists(st.integers(-1, I64), max_size=3))
        ),
    )  # fmt: skip


def plain(value: Any) -> Any:
    """A frame as plain data that compares by value."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tolist()
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def parts(data: bytes) -> tuple[bytes, bytes, int]:
    """Header, body and declared raw bytes of an encoded frame."""
    _, _, header_bytes, body_bytes, raw_bytes, _ = codec._PREFIX.unpack_from(data)
    start = codec._PREFIX.size
    return data[start : start + header_bytes], data[start + header_bytes :][:body_bytes], raw_bytes


def sealed(header: bytes, body: bytes, raw_bytes: int, schema: int = codec.SCHEMA) -> bytes:
    """A frame of these parts whose lengths and checksum are right, whatever the parts say."""
    sizes = (codec.MAGIC, schema, len(header), len(body), raw_bytes)
    return codec._PREFIX.pack(*sizes, codec._checksum(sizes, header, body)) + header + body
