"""Whether a plan kept its promise, by slices since the switch, and whether the map before is to be put back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement import LoadTrace, evaluate
from placement.layer import ordered_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.decisions import PlanFacts
    from placement import Placement, Topology

NOISE = 2.0
"""Standard errors within which a gain may be chance."""

MOST_ABOVE = 1.2
"""Observed over predicted ratio above which a plan had less effect than it promised, whatever else changed."""


@dataclass(frozen=True, slots=True)
class Realised:
    """What a plan brought: fall of the mean ratio on the same slices, its standard error, and the ratio that is measured now.

    ``slices`` it rests on. ``gap`` was added to the earlier map's value: measured minus evaluated ratio of that map while it was live.
    """

    gain: float
    error: float
    observed_ratio: float
    slices: int
    gap: float = 0.0


def realised(
    tokens: NDArray[np.int64],
    ratio: NDArray[np.float64],
    before: Placement,
    topology: Topology,
    *,
    dispatch: str,
    gap: float = 0.0,
) -> Realised:
    """Compare the map before a plan with what is measured under the plan, slice by slice.

    ``tokens``: int64 [slices, layers, experts]; ``ratio``: float64 [slices, layers], measured, NaN = no load. ``gap``: mean measured minus mean
    evaluated ratio of the earlier map while it was live, for what an evaluation cannot see, such as which copy each token took.
    """
    would = mean_by_slice(evaluate(before, LoadTrace(tokens), topology, dispatch=dispatch).ratio)
    served = mean_by_slice(ratio)
    known = np.isfinite(would) & np.isfinite(served)
    fall = would[known] + gap - served[known]
    if not len(fall):
        return Realised(math.nan, math.nan, math.nan, 0, gap)
    return Realised(
        gain=ordered_sum(fall) / len(fall),
        error=standard_error(fall),
        observed_ratio=ordered_sum(served[known]) / len(fall),
        slices=len(fall),
        gap=gap,
    )


def mean_by_slice(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the layers with load, float64 [slices], NaN = none has any."""
    known = np.isfinite(ratio)
    count = known.sum(axis=1)
    summed = np.cumsum(np.where(known, ratio, 0.0), axis=1)[:, -1]
    return np.where(count > 0, summed / np.maximum(count, 1), np.nan)


def standard_error(values: NDArray[np.float64]) -> float:
    """Of the mean of these values; infinite for fewer than two."""
    count = len(values)
    if count < 2:
        return math.inf
    mean = ordered_sum(values) / count
    return math.sqrt(ordered_sum((values - mean) ** 2) / (count - 1) / count)


def kept_promise(found: Realised, predicted: float, least_delivered: float) -> bool:
    """Whether the gain may be at least ``least_delivered`` of the promise, and not below 0, within :data:`NOISE`; what is not known may."""
    if not math.isfinite(found.gain) or not math.isfinite(found.error):
        return True
    return found.gain + NOISE * found.error >= max(0.0, least_delivered * predicted)


def missed(found: Realised, predicted_ratio: float) -> bool:
    """Whether the ratio is more than 20 % above the promised one."""
    return found.observed_ratio > MOST_ABOVE * predicted_ratio


def fell_short(found: Realised, plan: PlanFacts, least_delivered: float) -> bool:
    """Whether a plan is worth a person's look: it brought surely too little, or the ratio is far above the promised one."""
    return not kept_promise(found, plan.gain, least_delivered) or missed(found, plan.ratio_after)
