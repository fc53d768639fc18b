"""Small pools and honest counts for tests of the recorder and the publisher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collectors import Kind, Phase, PoolFacts, Recorder, decode_frame, encode_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pool(**facts: Any) -> PoolFacts:
    """Two ranks, four experts on six slots, layers 3 and 5, top-2."""
    shape = {
        "pool": "main",
        "ranks": 2,
        "nodes": 1,
        "slots_per_rank": 3,
        "experts": 4,
        "top_k": 2,
        "model_layers": (3, 5),
    }
    return PoolFacts(**{**shape, **facts})


def digests(*values: int) -> NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def recorder(kind: Kind = Kind.ROUTED, facts: PoolFacts | None = None, **options: Any) -> Recorder:
    """A registered recorder of rank 0 under map digests 101, 102, ..."""
    facts = facts or pool()
    made = Recorder(facts, options.pop("rank", 0), kind, **options)
    assert made.register(7, -1, digests(*range(101, 101 + facts.layers)))
    return made


def spread(kind: Kind, tokens: int, facts: PoolFacts | None = None) -> NDArray[np.int64]:
    """Counts of a step with so many tokens, spread over the columns: int64 [layers, width]."""
    facts = facts or pool()
    width = facts.width(kind)
    row = np.bincount(np.arange(tokens * facts.top_k) % width, minlength=width)
    return np.tile(row, (facts.layers, 1)).astype(np.int64)


PHYSICAL = [Kind.ROUTED_SLOTS, Kind.RECEIVED_SLOTS]
GOOD = spread(Kind.ROUTED, 4)


def totals_of(frame, phase=Phase.DECODE):
    return next(t for t in frame.totals if t.phase is phase)


def taken(rec):
    """Snapshot, as it comes out at the other end of the wire."""
    return decode_frame(encode_frame(rec.snapshot(0)))
