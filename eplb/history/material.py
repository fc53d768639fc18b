"""Slices for one plan, weighed: the window's own and those of its history."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from eplb.history.choice import choose
from eplb.history.features import feature, noise, squared_distances
from eplb.history.forecast import effective, expected_mix, moment_weights, recency, trust
from eplb.history.moments import MOMENT_MS, MOMENT_STEPS
from eplb.history.packing import unpack
from eplb.history.planned_on import PlannedOn
from eplb.history.regimes import find_regimes, keep_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.config import HistoryConfig
    from eplb.history.moments import Moment

LEAST_WEIGHT = 1e-9
"""Of all weight together; slices of less are left out: they tell nothing, and the solver takes no weight near 0."""

WINDOW_PARTS = 4
"""Parts of the window that are told apart, so that a window in which the regime changes is known as one that is mixed."""

_NO_IDS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What the solver is given.

    ``tokens``: int64 [slices, layers, experts], oldest first, of which the last ``held_out`` judge the plan.
    ``weights``: float64 [slices - held_out] > 0, None = all equal. ``ids``: int64 [past moments], their regimes, empty where they were not told apart;
    ``next_id``: first id that was never given.
    """

    tokens: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    held_out: int
    planned_on: PlannedOn
    ids: NDArray[np.int64]
    next_id: int


@dataclass(frozen=True, slots=True, eq=False)
class Recent:
    """The window: ``own`` int64 [slices, layers, experts] to plan on, ``judges`` the newest, oldest first; ``now_ms`` the store's time."""

    own: NDArray[np.int64]
    judges: NDArray[np.int64]
    now_ms: int

    def parts(self) -> list[NDArray[np.int64]]:
        """The slices to plan on in up to WINDOW_PARTS parts of neighbours."""
        return [part for part in np.array_split(self.own, WINDOW_PARTS) if len(part)]


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Moments before the window, at least one, oldest first, with the id of the regime that each had, int64 [moments], -1 = none."""

    moments: tuple[Moment, ...]
    ids: NDArray[np.int64]
    next_id: int


@dataclass(frozen=True, slots=True, eq=False)
class _Weighed:
    """Weights of moments and then of the window's parts, float64 [n], summing to 1, and their regimes, int64 [n] or empty."""

    weights: NDArray[np.float64]
    ids: NDArray[np.int64]
    next_id: int


def window_only(tokens: NDArray[np.int64], held_out: int, use: str) -> Material:
    """A window without a history: int64 [slices, layers, experts], the last ``held_out`` judge."""
    planned = len(tokens) - held_out
    told = PlannedOn(use, planned, 0, 0.0, float(planned))
    return Material(tokens, None, held_out, told, _NO_IDS, 0)


def mix(recent: Recent, past: Past, config: HistoryConfig, horizon_s: float, most_slices: int) -> Material:
    """The slices that a plan is made on, at most ``most_slices``, and those that judge it."""
    parts = recent.parts()
    weighed = _weigh(recent, parts, past, config, horizon_s)
    weights = _with_window_share(weighed.weights, len(past.moments), config.window_share)
    groups = [len(moment.steps) for moment in past.moments] + [len(part) for part in parts]
    of_slice = np.repeat(weights / np.array(groups), groups)
    of_slice = np.where(of_slice < LEAST_WEIGHT, 0.0, of_slice)
    places, chosen = choose(of_slice, most_slices)
    steps = [(moment, step) for moment in past.moments for step in moment.steps]
    old = [place for place in places.tolist() if place < len(steps)]
    own = recent.own[[place - len(steps) for place in places[len(old) :].tolist()]]
    tokens = [unpack(steps[place][1].packed, *steps[place][0].shape) for place in old]
    oldest_ms = min((steps[place][1].time_ms for place in old), default=recent.now_ms)
    told = PlannedOn(
        use=config.use,
        window_slices=len(own),
        history_slices=len(old),
        span_h=(recent.now_ms - oldest_ms) / 3_600_000,
        effective_slices=effective(chosen),
        regimes=_shares(weighed.ids, weights),
    )
    stacked = np.concatenate(
        [np.array(tokens, dtype=np.int64).reshape(-1, *own.shape[1:]), own, recent.judges]
    )
    ids = weighed.ids[: len(past.moments)]
    return Material(stacked, chosen, len(recent.judges), told, ids, weighed.next_id)


def _weigh(
    recent: Recent, parts: list[NDArray[np.int64]], past: Past, config: HistoryConfig, horizon_s: float
) -> _Weighed:
    """By age alone, or by what is expected of every regime too."""
    now_s = recent.now_ms / 1000
    times_s = np.array([moment.time_s for moment in past.moments] + [now_s] * len(parts))
    fade = recency(now_s - times_s, config.half_life_s)
    base = fade * np.array([len(moment.steps) for moment in past.moments] + [MOMENT_STEPS] * len(parts))
    if config.use == "pooled":
        return _Weighed(base / fsum(base.tolist()), _NO_IDS, past.next_id)
    sums = [part.sum(axis=0) for part in parts]
    distances = squared_distances(
        [moment.feature for moment in past.moments] + [feature(counts) for counts in sums]
    )
    noises = np.array([moment.noise for moment in past.moments] + [noise(counts) for counts in sums])
    numbers = [moment.number for moment in past.moments] + [recent.now_ms // MOMENT_MS] * len(parts)
    labels = find_regimes(distances, noises, np.array(numbers, dtype=np.int64))
    now = np.arange(len(times_s)) >= len(past.moments)
    expected = expected_mix(labels, times_s, fade, now, horizon_s)
    weights = moment_weights(labels, expected, trust(distances, labels, fade), base)
    before = np.concatenate([past.ids, np.full(len(parts), -1, dtype=np.int64)])
    return _Weighed(weights, *keep_ids(labels, before, past.next_id))


def _with_window_share(weights: NDArray[np.float64], moments: int, share: float) -> NDArray[np.float64]:
    """The same weights where the window has ``share`` of them anyway; else it is given so much, and the rest is scaled."""
    own = fsum(weights[moments:].tolist())
    if own >= share:
        return weights
    scale = np.where(np.arange(len(weights)) < moments, (1.0 - share) / (1.0 - own), share / own)
    scaled: NDArray[np.float64] = weights * scale
    return scaled


def _shares(ids: NDArray[np.int64], weights: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    shares = {name: fsum(weights[ids == name].tolist()) for name in np.unique(ids).tolist()}
    return tuple(sorted(((n, round(s, 4)) for n, s in shares.items()), key=lambda pair: (-pair[1], pair[0])))
