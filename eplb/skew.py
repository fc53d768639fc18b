"""How uneven the experts of a trace are, and what that does to ranks that hold them in the order of their ids."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from eplb.noise import noise_floor
from eplb.start_map import start_map
from placement import Placement, Topology, evaluate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement import LoadTrace

TOP_EXPERTS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """Means over layers with load; all numbers NaN without any.

    ``hottest_ratio``: load of the hottest expert over the mean expert, mean over slices and layers. ``top_share``: part of a
    layer's picks that go to its ``TOP_EXPERTS`` hottest experts, over the whole trace. ``gini``: 0 = all alike, towards 1 = one
    has all, over the whole trace. ``zero_cells``: (layer, expert) pairs of these layers without a pick; ``cells``: all pairs.
    """

    hottest_ratio: float
    top_share: float
    gini: float
    zero_cells: int
    cells: int


def skew_of(trace: LoadTrace) -> Skew:
    """Measure a trace."""
    whole = trace.tokens.sum(axis=0)
    whole = whole[whole.any(axis=1)]
    if not len(whole):
        return Skew(float("nan"), float("nan"), float("nan"), 0, 0)
    ordered = np.sort(whole, axis=1).astype(np.float64)
    totals = ordered.sum(axis=1)
    return Skew(
        hottest_ratio=_mean(hottest(trace)),
        top_share=float((ordered[:, -TOP_EXPERTS:].sum(axis=1) / totals).mean()),
        gini=float(_gini(ordered, totals).mean()),
        zero_cells=int((whole == 0).sum()),
        cells=int(whole.size),
    )


def hottest(trace: LoadTrace) -> NDArray[np.float64]:
    """Load of the hottest expert over the mean expert, float64 [slices, layers]; NaN where a layer has no load."""
    peak = trace.tokens.max(axis=2).astype(np.float64)
    total = trace.tokens.sum(axis=2).astype(np.float64)
    ratio = np.full(peak.shape, np.nan)
    np.divide(peak * trace.experts, total, out=ratio, where=total > 0)
    return ratio


def id_order(trace: LoadTrace, topology: Topology) -> Placement:
    """The map that engines start with: experts in the order of their ids, then again from the first."""
    return Placement(start_map(trace.layers, trace.experts, topology.slots))


def id_order_ratio(trace: LoadTrace, ranks: int) -> float:
    """Mean ratio of a pool of so many ranks that holds the experts in the order of their ids; NaN without load."""
    topology = Topology.uniform(ranks=ranks, nodes=1, slots_per_rank=ceil(trace.experts / ranks))
    return evaluate(id_order(trace, topology), trace, topology).mean_ratio


def floor_ratio(trace: LoadTrace, ranks: int, top_k: int) -> float:
    """Mean ratio that sampling noise alone would show on balanced ranks, see ``eplb.noise``; NaN without load."""
    pairs = trace.tokens.sum(axis=2) / ranks
    return 1.0 + _mean(noise_floor(pairs, ranks, trace.experts, top_k))


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _gini(ordered: NDArray[np.float64], totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Gini coefficient of every row of rising values: (2 sum_i i x_i / (n sum x)) - (n + 1) / n, i from 1."""
    n = ordered.shape[1]
    place = np.arange(1, n + 1, dtype=np.float64)
    result: NDArray[np.float64] = 2.0 * (ordered * place).sum(axis=1) / (n * totals) - (n + 1.0) / n
    return result
