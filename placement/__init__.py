"""Place the experts of a mixture-of-experts model on ranks: arrays in, arrays out.

Pure functions of their arguments: no files, clock, environment or logging; equal input gives equal bytes.
"""

from __future__ import annotations

from placement.errors import (
    InfeasibleError,
    MapError,
    PlacementError,
    TopologyError,
    TraceError,
    UnsupportedError,
)
from placement.limits import Limits
from placement.placement import EMPTY, Placement, Violation, violations
from placement.result import Point, Reason, Result
from placement.score import Score, evaluate
from placement.solver import solve
from placement.topology import Topology, least_redundancy
from placement.trace import LoadTrace

__all__ = [
    "EMPTY",
    "InfeasibleError",
    "Limits",
    "LoadTrace",
    "MapError",
    "Placement",
    "PlacementError",
    "Point",
    "Reason",
    "Result",
    "Score",
    "Topology",
    "TopologyError",
    "TraceError",
    "UnsupportedError",
    "Violation",
    "evaluate",
    "least_redundancy",
    "solve",
    "violations",
]
