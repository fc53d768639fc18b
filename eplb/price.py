"""What balance is worth in time: a line through measured step times, and the saving and the price of a plan by it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.layer import ordered_sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from eplb.window import WindowView

LEAST_SLICES = 20
"""A line through fewer measured steps follows chance."""

LEAST_SPREAD = 0.002
"""Steps whose cost differs by less (standard deviation / mean) say nothing about what cost costs."""

LEAST_SIGNIFICANCE = 3.0
"""A slope must be this many times its own standard error above 0."""

OUTLIER = 4.0
"""A step further than this many scaled median deviations from the line is left out: a pause of the engine, not of the load."""

REFITS = 3

ANY_PHASE = -1
"""A slice of several phases: an interval of the window, which is a sum over steps."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """``step_us = base_us + us_per_token x cost``, where cost is the sum over layers of the costliest rank's tokens.

    ``error_us_per_token`` standard error of the slope. ``slices`` the line goes through, ``left_out`` as outliers.
    """

    base_us: float
    us_per_token: float
    error_us_per_token: float
    slices: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class NoFit:
    """Why steps have no price: a sentence."""

    sentence: str


@dataclass(frozen=True, slots=True)
class PhasePrice:
    """One phase of a pool: microseconds that one token less on the costliest rank saves, and forwards a second."""

    us_per_token: float
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class Pricing:
    """What turns tokens into time, by phase; ``source`` fitted or configured; ``no_price`` says why a phase has none."""

    phases: Mapping[int, PhasePrice]
    source: str = ""
    no_price: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a plan saves and what it asks.

    ``saved_us_per_s`` microseconds of serving saved in each second, by the prediction on slices that the plan did not see; NaN = unknown.
    ``stall_s`` predicted stall while it moves; ``slowdown_s`` what serving lost, by bytes, while earlier plans moved.
    ``source`` of the price of a token: fitted or configured, empty = none; ``no_price`` why there is none.
    """

    saved_us_per_s: float = math.nan
    stall_s: float = 0.0
    slowdown_s: float = 0.0
    source: str = ""
    no_price: str = "no step time is known"

    @property
    def known(self) -> bool:
        """Whether the saving is known in time."""
        return math.isfinite(self.saved_us_per_s)

    @property
    def price_s(self) -> float:
        """All that the plan asks, in seconds."""
        return self.stall_s + self.slowdown_s

    def saved_s(self, horizon_s: float, correction: float = 1.0) -> float:
        """Seconds saved over a horizon, the prediction corrected by what earlier plans delivered; NaN = unknown."""
        return self.saved_us_per_s * 1e-6 * correction * horizon_s

    def pays(self, horizon_s: float, correction: float = 1.0) -> bool:
        """Whether the saving over the horizon is above the price; a plan that asks nothing pays if it saves anything."""
        return self.saved_s(horizon_s, correction) > self.price_s


def fit_step_time(cost: NDArray[np.float64], step_us: NDArray[np.float64]) -> StepFit | NoFit:
    """Least squares of step times over cost, both float64 [slices], NaN = not measured; outliers are left out and the rest fitted anew.

    ``cost``: sum over layers of the tokens on the costliest rank. A line is refused, with the reason, through fewer than
    :data:`LEAST_SLICES` steps, steps of equal cost, or with a slope that its own error does not tell from 0. Sums go from the first to the last step, so that
    every machine gets the same line.
    """
    known = np.isfinite(cost) & np.isfinite(step_us)
    cost, step_us = cost[known], step_us[known]
    measured = len(cost)
    if measured < LEAST_SLICES:
        return NoFit(f"{measured} steps with a measured time, a price needs {LEAST_SLICES}")
    keep = np.ones(measured, dtype=np.bool_)
    for _ in range(REFITS):
        if (problem := _unusable(cost[keep])) is not None:
            return problem
        base_us, slope, error = _line(cost[keep], step_us[keep])
        inliers = _near(step_us - base_us - slope * cost)
        if inliers.sum() < LEAST_SLICES or np.array_equal(inliers, keep):
            break
        keep = inliers
    if not slope > LEAST_SIGNIFICANCE * error:
        return NoFit(
            f"step times do not follow the load: {slope:.3g} us a token with an error of {error:.3g} over {int(keep.sum())} steps"
        )
    return StepFit(base_us, slope, error, int(keep.sum()), measured - int(keep.sum()))


def _unusable(cost: NDArray[np.float64]) -> NoFit | None:
    mean = ordered_sum(cost) / len(cost)
    spread = math.sqrt(ordered_sum((cost - mean) ** 2) / len(cost)) / mean if mean > 0.0 else 0.0
    if spread >= LEAST_SPREAD:
        return None
    return NoFit(f"all {len(cost)} measured steps carry nearly the same load (spread {spread:.2%})")


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float]:
    """Intercept, slope and the slope's standard error of ordinary least squares."""
    count = len(x)
    mean_x, mean_y = ordered_sum(x) / count, ordered_sum(y) / count
    spread = ordered_sum((x - mean_x) ** 2)
    slope = ordered_sum((x - mean_x) * (y - mean_y)) / spread
    base = mean_y - slope * mean_x
    left = ordered_sum((y - base - slope * x) ** 2)
    return base, slope, math.sqrt(left / (count - 2) / spread)


def _near(residual: NDArray[np.float64]) -> NDArray[np.bool_]:
    middle = np.median(residual)
    # 1.4826 makes the median deviation of normal residuals their standard deviation.
    scale = 1.4826 * float(np.median(np.abs(residual - middle)))
    return np.asarray(np.abs(residual - middle) <= OUTLIER * scale + 1e-9, dtype=np.bool_)


def step_cost(view: WindowView) -> NDArray[np.float64]:
    """Sum over layers of the tokens on the most loaded rank, float64 [slices]; layers without load count nothing.

    Ratios are over the members of a slice's own life; of one with other members the cost is not known, NaN.
    """
    tokens = view.tokens.sum(axis=2) / len(view.members)
    busiest = np.where(tokens > 0, np.nan_to_num(view.ratio) * tokens, 0.0)
    return np.where(view.same_members, np.cumsum(busiest, axis=1)[:, -1], np.nan)


def price_phases(views: Sequence[tuple[int, WindowView]], configured_us_per_token: float | None) -> Pricing:
    """The price of a token in every phase, from its own steps; a configured price stands in where steps have none.

    ``views``: (phase, view of that phase alone). A window of intervals has no step to fit: with a configured price its falls count an interval at a time.
    """
    phases: dict[int, PhasePrice] = {}
    reasons: list[str] = []
    source = ""
    for phase, view in views:
        fit = fit_step_time(step_cost(view), view.step_us_by_slice)
        steps_per_s = view.steps / view.span_s if view.span_s > 0.0 else 0.0
        if isinstance(fit, StepFit):
            phases[phase], source = PhasePrice(fit.us_per_token, steps_per_s), source or "fitted"
        elif configured_us_per_token is not None:
            phases[phase], source = PhasePrice(configured_us_per_token, steps_per_s), "configured"
        else:
            reasons.append(fit.sentence)
    if configured_us_per_token is not None and not any(view.run_ids.any() for _, view in views):
        per_s = max((view.slices / view.span_s for _, view in views if view.span_s > 0.0), default=0.0)
        phases[ANY_PHASE] = PhasePrice(configured_us_per_token, per_s)
    return Pricing(phases, source, "; ".join(dict.fromkeys(reasons)))


def worth_of(
    falls: Sequence[tuple[int, float]],
    pricing: Pricing,
    *,
    exposed_share: float,
    stall_s: float,
    slowdown_s: float,
) -> Worth:
    """What a plan saves and asks.

    ``falls``: (phase, mean fall of the cost of one step), by the slices that the plan did not see; phase -1 = of several. ``exposed_share``: the part of
    the time that nothing hides. A phase without a price saves nothing that is known; if none has one, the saving is unknown.
    """
    saved = [
        pricing.phases[phase].us_per_token * pricing.phases[phase].steps_per_s * fall * exposed_share
        for phase, fall in falls
        if phase in pricing.phases and math.isfinite(fall)
    ]
    if not saved:
        reason = pricing.no_price or "no slice that the plan did not see is of a phase with a price"
        return Worth(stall_s=stall_s, slowdown_s=slowdown_s, no_price=reason)
    return Worth(math.fsum(saved), stall_s, slowdown_s, pricing.source, "")
