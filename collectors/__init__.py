"""What runs inside an engine's ranks: count, sample, frame, publish. Needs numpy, redis and zstandard only."""

from __future__ import annotations

from collectors.errors import CollectorError, CountError, FactsError, FrameError
from collectors.facts import (
    NO_MAP_DIGEST,
    ClosedRow,
    Frame,
    FrameHeader,
    Kind,
    Phase,
    PhaseTotals,
    PoolFacts,
    StepSample,
)
from collectors.frame import decode_frame, encode_frame
from collectors.picks import RoutedCounts, StepPicks, count_routed
from collectors.publisher import Publisher, PublisherStats
from collectors.recorder import Recorder

__all__ = [
    "NO_MAP_DIGEST",
    "ClosedRow",
    "CollectorError",
    "CountError",
    "FactsError",
    "Frame",
    "FrameError",
    "FrameHeader",
    "Kind",
    "Phase",
    "PhaseTotals",
    "PoolFacts",
    "Publisher",
    "PublisherStats",
    "Recorder",
    "RoutedCounts",
    "StepPicks",
    "StepSample",
    "count_routed",
    "decode_frame",
    "encode_frame",
]
