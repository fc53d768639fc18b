"""The frame codec: one message of one rank as bytes, and back.

Layout, all little-endian::

    prefix   magic, schema, header bytes, body bytes, raw bytes, checksum of everything else
    header   fixed fields, then layers in flight (u32 each), then the pool's name (UTF-8)
    body     zstd of: layer digests, table of totals, table of closed rows, table of samples,
             counters of totals and closed rows, counters of samples

Counters are byte-shuffled: all lowest bytes first, then the next ones, and only as many of these planes as the largest
value needs. Decoding trusts nothing: the length of every part is computed from the header and compared with what is
there before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from collectors.errors import FrameError
from collectors.facts import ClosedRow, Frame, FrameHeader, Kind, Phase, PhaseTotals, StepSample
from collectors.planes import COUNTER_BYTES, inflated, joined, planes_needed, shuffled, unshuffled

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"EPLF"
SCHEMA = 1
COUNTER_DTYPE = b"<i8\0"
"""Type of a counter before its bytes are shuffled; a frame that says anything else is refused."""
MAX_FRAME_BYTES = 32 * 1024 * 1024
"""Limit of the encoded frame, of its decompressed body and of its decoded int64 counters, in bytes each."""

_ZSTD_LEVEL = 1
_PREFIX = struct.Struct("<4sHHIIQ")
_HEADER = struct.Struct("<4sBBBxIIIIIIIIIIHxxQQQQqQQ")
_TOTALS = struct.Struct("<BQQ")
_CLOSED = struct.Struct("<IBQ")
_SAMPLE = struct.Struct("<qBQQ4d")
_LAYER = struct.Struct("<I")
_CHECKSUM_BYTES = 8
_MAX_POOL_BYTES = 255


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes that the header declares, from which the length of every part follows."""

    layers: int
    width: int
    totals: int
    closed: int
    samples: int
    cumulative_planes: int
    sample_planes: int

    @property
    def cumulative_values(self) -> int:
        return (self.totals * self.layers + self.closed) * self.width

    @property
    def sample_values(self) -> int:
        return self.samples * self.layers * self.width

    @property
    def decoded_bytes(self) -> int:
        return (self.cumulative_values + self.sample_values) * COUNTER_BYTES

    @property
    def table_bytes(self) -> int:
        tables = self.totals * _TOTALS.size + self.closed * _CLOSED.size + self.samples * _SAMPLE.size
        return self.layers * COUNTER_BYTES + tables

    @property
    def raw_bytes(self) -> int:
        planes = self.cumulative_values * self.cumulative_planes + self.sample_values * self.sample_planes
        return self.table_bytes + planes


def encode_frame(frame: Frame) -> bytes:
    """The frame as bytes for the store.

    Raises:
        FrameError: arrays of different shapes, a negative count, a field out of range, or more than MAX_FRAME_BYTES.
    """
    layers = _layers_of(frame)
    width = _width_of(frame, layers)
    cumulative = joined([*(t.counts for t in frame.totals), *(c.counts for c in frame.closed)])
    samples = joined([s.counts for s in frame.samples])
    shape = _Shape(
        layers=layers,
        width=width,
        totals=len(frame.totals),
        closed=len(frame.closed),
        samples=len(frame.samples),
        cumulative_planes=planes_needed(cumulative),
        sample_planes=planes_needed(samples),
    )
    _check_size(shape)
    try:
        header = _pack_header(frame.header, shape)
        tables = _pack_tables(frame)
    except (struct.error, OverflowError, TypeError) as error:
        raise FrameError(f"frame: a field is out of range ({error}); correct the recorder's input") from error
    parts = [tables, shuffled(cumulative, shape.cumulative_planes), shuffled(samples, shape.sample_planes)]
    raw = b"".join(parts)
    body = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(raw)
    if len(header) + len(body) + _PREFIX.size > MAX_FRAME_BYTES:
        raise FrameError(f"frame: {len(body)} bytes exceed {MAX_FRAME_BYTES}; take fewer samples per frame")
    sizes = (MAGIC, SCHEMA, len(header), len(body), len(raw))
    return _PREFIX.pack(*sizes, _checksum(sizes, header, body)) + header + body


def decode_frame(data: bytes) -> Frame:
    """Read a frame; its arrays are int64 and read-only.

    Raises:
        FrameError: magic, schema, a length, the checksum or a value is wrong; the message names which.
    """
    header_bytes, body_bytes, raw_bytes, checksum = _read_prefix(data)
    view = memoryview(data)
    header = bytes(view[_PREFIX.size : _PREFIX.size + header_bytes])
    body = bytes(view[_PREFIX.size + header_bytes :])
    if checksum != _checksum((MAGIC, SCHEMA, header_bytes, body_bytes, raw_bytes), header, body):
        raise FrameError("frame: checksum does not match; it was damaged on its way and is dropped")
    facts, shape = _unpack_header(header)
    if shape.raw_bytes != raw_bytes:
        raise FrameError(f"frame: raw bytes is {raw_bytes}, but its header describes {shape.raw_bytes}")
    frame = _read_body(facts, shape, inflated(body, raw_bytes))
    _check_values(frame, shape)
    return frame


def _read_prefix(data: bytes) -> tuple[int, int, int, int]:
    if len(data) < _PREFIX.size:
        raise FrameError(f"frame: {len(data)} bytes, shorter than the {_PREFIX.size} bytes of its prefix")
    magic, schema, header_bytes, body_bytes, raw_bytes, checksum = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise FrameError(f"frame: magic is {magic!r}, expected {MAGIC!r}; this is not a frame")
    if schema != SCHEMA:
        raise FrameError(
            f"frame: schema is {schema}, this version reads {SCHEMA}; run the same version on both sides"
        )
    expected = _PREFIX.size + header_bytes + body_bytes
    if len(data) != expected:
        raise FrameError(f"frame: {len(data)} bytes, but its prefix declares {expected}")
    if len(data) > MAX_FRAME_BYTES or raw_bytes > MAX_FRAME_BYTES:
        raise FrameError(
            f"frame: {len(data)} bytes for {raw_bytes} raw bytes, the limit of both is {MAX_FRAME_BYTES}"
        )
    return header_bytes, body_bytes, raw_bytes, checksum


def _checksum(sizes: tuple[bytes, int, int, int, int], header: bytes, body: bytes) -> int:
    digest = blake2b(_PREFIX.pack(*sizes, 0), digest_size=_CHECKSUM_BYTES)
    digest.update(header)
    digest.update(body)
    return int.from_bytes(digest.digest(), "little")


def _layers_of(frame: Frame) -> int:
    if frame.layer_digests.ndim != 1:
        raise FrameError(f"frame: layer_digests has shape {frame.layer_digests.shape}, expected [layers]")
    return len(frame.layer_digests)


def _width_of(frame: Frame, layers: int) -> int:
    shapes = {t.counts.shape for t in frame.totals} | {s.counts.shape for s in frame.samples}
    shapes |= {(layers, *c.counts.shape) for c in frame.closed}
    if not shapes:
        return 0
    first = shapes.pop()
    if shapes or len(first) != 2 or first[0] != layers:
        raise FrameError(
            f"frame: counts of shapes {sorted({first, *shapes})}, expected one [{layers}, width]"
        )
    return int(first[1])


def _check_size(shape: _Shape) -> None:
    largest = max(shape.decoded_bytes, shape.raw_bytes)
    if largest > MAX_FRAME_BYTES:
        raise FrameError(
            f"frame: {shape.layers} layers x {shape.width} counts, {shape.totals} totals, {shape.closed} closed rows and "
            f"{shape.samples} samples make {largest} bytes, the limit is {MAX_FRAME_BYTES}"
        )


def _pack_header(header: FrameHeader, shape: _Shape) -> bytes:
    pool = header.pool.encode()
    if not 0 < len(pool) <= _MAX_POOL_BYTES:
        raise FrameError(f"frame: the pool's name has {len(pool)} bytes, must be 1 to {_MAX_POOL_BYTES}")
    fixed = _HEADER.pack(
        COUNTER_DTYPE,
        int(header.kind),
        shape.cumulative_planes,
        shape.sample_planes,
        header.rank,
        header.ranks,
        shape.layers,
        shape.width,
        header.scope_copies,
        header.stride,
        shape.totals,
        shape.closed,
        shape.samples,
        len(header.layers_in_flight),
        len(pool),
        header.incarnation,
        header.run_id,
        header.term_seen,
        header.seq,
        header.group_step,
        header.age_ms,
        header.live_digest,
    )
    return fixed + b"".join(_LAYER.pack(layer) for layer in header.layers_in_flight) + pool


def _unpack_header(data: bytes) -> tuple[FrameHeader, _Shape]:
    if len(data) < _HEADER.size:
        raise FrameError(f"frame: its header has {len(data)} bytes, expected at least {_HEADER.size}")
    (
        dtype, kind, cumulative_planes, sample_planes, rank, ranks, layers, width, scope_copies, stride,
        totals, closed, samples, in_flight, pool_bytes, incarnation, run_id, term_seen, seq, group_step, age_ms, live_digest,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    if dtype != COUNTER_DTYPE:
        raise FrameError(f"frame: counters are {dtype!r}, this version reads {COUNTER_DTYPE!r}")
    expected = _HEADER.size + in_flight * _LAYER.size + pool_bytes
    if len(data) != expected:
        raise FrameError(
            f"frame: its header has {len(data)} bytes, but {in_flight} layers in flight make {expected}"
        )
    if kind not in list(Kind):
        raise FrameError(f"frame: kind is {kind}, expected one of {[int(k) for k in Kind]}")
    if max(cumulative_planes, sample_planes) > COUNTER_BYTES:
        raise FrameError(
            f"frame: {cumulative_planes} and {sample_planes} byte planes, a counter has {COUNTER_BYTES}"
        )
    shape = _Shape(layers, width, totals, closed, samples, cumulative_planes, sample_planes)
    _check_size(shape)
    split = _HEADER.size + in_flight * _LAYER.size
    try:
        pool = data[split:].decode()
    except UnicodeDecodeError as error:
        raise FrameError("frame: the pool's name is not UTF-8") from error
    return FrameHeader(
        pool=pool,
        rank=rank,
        ranks=ranks,
        kind=Kind(kind),
        scope_copies=scope_copies,
        incarnation=incarnation,
        run_id=run_id,
        term_seen=term_seen,
        seq=seq,
        group_step=group_step,
        age_ms=age_ms,
        stride=stride,
        live_digest=live_digest,
        layers_in_flight=tuple(layer for (layer,) in _LAYER.iter_unpack(data[_HEADER.size : split])),
    ), shape


def _pack_tables(frame: Frame) -> bytes:
    parts = [np.asarray(frame.layer_digests, dtype="<u8").tobytes()]
    parts += [_TOTALS.pack(int(t.phase), t.steps, t.tokens) for t in frame.totals]
    parts += [_CLOSED.pack(c.layer, int(c.phase), c.digest) for c in frame.closed]
    parts += [
        _SAMPLE.pack(s.group_step, int(s.phase), s.tokens, s.live_digest, *map(_time_to_wire, _times(s)))
        for s in frame.samples
    ]
    return b"".join(parts)


def _times(sample: StepSample) -> tuple[float | None, float | None, float | None, float | None]:
    return sample.step_us, sample.moe_wait_us, sample.a2a_us, sample.expert_us


def _time_to_wire(value_us: float | None) -> float:
    # NaN marks "not measured": 0 is a time.
    return math.nan if value_us is None else value_us


def _time_from_wire(value_us: float) -> float | None:
    return None if math.isnan(value_us) else value_us


def _read_body(header: FrameHeader, shape: _Shape, raw: bytes) -> Frame:
    view = memoryview(raw)
    totals_at = shape.layers * COUNTER_BYTES
    closed_at = totals_at + shape.totals * _TOTALS.size
    samples_at = closed_at + shape.closed * _CLOSED.size
    counters_at = shape.table_bytes + shape.cumulative_values * shape.cumulative_planes
    cumulative = unshuffled(
        view[shape.table_bytes : counters_at], shape.cumulative_values, shape.cumulative_planes
    )
    per_step = unshuffled(view[counters_at:], shape.sample_values, shape.sample_planes)
    split = shape.totals * shape.layers * shape.width
    of_totals = cumulative[:split].reshape(shape.totals, shape.layers, shape.width)
    of_closed = cumulative[split:].reshape(shape.closed, shape.width)
    of_samples = per_step.reshape(shape.samples, shape.layers, shape.width)
    rows = zip(_SAMPLE.iter_unpack(view[samples_at : shape.table_bytes]), of_samples, strict=True)
    return Frame(
        header=header,
        layer_digests=_own_digests(view[:totals_at]),
        totals=tuple(
            PhaseTotals(_phase(phase), steps, tokens, counts)
            for (phase, steps, tokens), counts in zip(
                _TOTALS.iter_unpack(view[totals_at:closed_at]), of_totals, strict=True
            )
        ),
        closed=tuple(
            ClosedRow(layer, _phase(phase), digest, counts)
            for (layer, phase, digest), counts in zip(
                _CLOSED.iter_unpack(view[closed_at:samples_at]), of_closed, strict=True
            )
        ),
        samples=tuple(_sample(fields, counts) for fields, counts in rows),
    )


def _own_digests(raw: memoryview) -> NDArray[np.uint64]:
    # A copy: a view would keep the whole body, samples included, alive with the digests.
    digests = np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=True)
    digests.flags.writeable = False
    return digests


def _sample(
    fields: tuple[int, int, int, int, float, float, float, float], counts: NDArray[np.int64]
) -> StepSample:
    group_step, phase, tokens, live_digest, *times = fields
    return StepSample(group_step, _phase(phase), tokens, live_digest, counts, *map(_time_from_wire, times))


def _phase(code: int) -> Phase:
    try:
        return Phase(code)
    except ValueError as error:
        raise FrameError(f"frame: phase is {code}, expected one of {[int(p) for p in Phase]}") from error


def _check_values(frame: Frame, shape: _Shape) -> None:
    header = frame.header
    if header.rank >= header.ranks:
        raise FrameError(f"frame: rank {header.rank} of {header.ranks} ranks")
    if min(header.scope_copies, header.stride) < 1:
        raise FrameError(
            f"frame: scope_copies {header.scope_copies} and stride {header.stride} must be at least 1"
        )
    layers = (*header.layers_in_flight, *(row.layer for row in frame.closed))
    if any(layer >= shape.layers for layer in layers):
        raise FrameError(f"frame: names layer {max(layers)}, but has {shape.layers} layers")
    if len({totals.phase for totals in frame.totals}) != shape.totals:
        raise FrameError("frame: holds the totals of a phase twice")
    for sample in frame.samples:
        if any(value is not None and not 0 <= value < math.inf for value in _times(sample)):
            raise FrameError(f"frame: a time of step {sample.group_step} is negative or infinite")
