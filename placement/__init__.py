"""Place the experts of a mixture-of-experts model on ranks: arrays in, arrays out.

Pure functions of their arguments: no files, clock, environment or logging; equal input gives equal bytes.
"""

from __future__ import annotations

from placement.cost import Roofline
from placement.dispatch import Dispatch
from placement.errors import (
    InfeasibleError,
    MapError,
    PlacementError,
    TopologyError,
    TraceError,
    UnsupportedError,
)
from placement.kernel_warmup import compile_kernels
from placement.limits import Limits
from placement.placement import EMPTY, Placement, Violation, violations
from placement.result import Point, Reason, Result
from placement.routes import Routes
from placement.score import Score, evaluate
from placement.solver import solve
from placement.split import Bottleneck, SharesChange, Split, exact_shares, improve_shares
from placement.topology import Topology, least_redundancy
from placement.trace import LoadTrace
from placement.traffic import fan_out, random_fan_out

__all__ = [
    "EMPTY",
    "Bottleneck",
    "Dispatch",
    "InfeasibleError",
    "Limits",
    "LoadTrace",
    "MapError",
    "Placement",
    "PlacementError",
    "Point",
    "Reason",
    "Result",
    "Roofline",
    "Routes",
    "Score",
    "SharesChange",
    "Split",
    "Topology",
    "TopologyError",
    "TraceError",
    "UnsupportedError",
    "Violation",
    "compile_kernels",
    "evaluate",
    "exact_shares",
    "fan_out",
    "improve_shares",
    "least_redundancy",
    "random_fan_out",
    "solve",
    "violations",
]
