"""How much each moment counts: what is likely to be served while a plan lives, and how far its regime can be trusted alone.

Two things are weighed that pull apart. A regime's own moments are the right kind of traffic, but few; all moments are many, but partly of the
wrong kind. And the regime of now may be over before the plan is. Both are measured on the history itself.
"""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIOR_MOMENTS = 3.0
"""So many moments' worth of "as on average" is believed before any change of regime has been seen."""


def recency(ages_s: NDArray[np.float64], half_life_s: float) -> NDArray[np.float64]:
    """Weight by age, float64 [n]: 1 now, a half after ``half_life_s``.

    A hyperbola, half_life / (half_life + age): what is old fades without vanishing, and division is the same on every machine.
    """
    return half_life_s / (half_life_s + np.maximum(ages_s, 0.0))


def expected_mix(
    labels: NDArray[np.int64],
    times_s: NDArray[np.float64],
    fade: NDArray[np.float64],
    now: NDArray[np.bool_],
    horizon_s: float,
) -> NDArray[np.float64]:
    """Share of every regime while a plan made now serves, float64 [regimes].

    ``labels`` int64 [n], 0..k-1; ``times_s`` float64 [n]; ``fade`` float64 [n], weight by age; ``now`` bool [n], the window's own.
    For each regime of the window: which regimes came within ``horizon_s`` after its moments, in the part of the history where that is
    known, and PRIOR_MOMENTS of the average.
    """
    regimes = np.arange(int(labels.max()) + 1)
    usual = _shares(labels, fade, regimes)
    today = _shares(labels, now.astype(np.float64), regimes)
    lag_s = times_s[None, :] - times_s[:, None]
    after = (lag_s > 0) & (lag_s <= horizon_s)
    followed = after.any(axis=1)
    weight = np.where(followed, fade / np.maximum(after.sum(axis=1), 1), 0.0)
    mix = np.zeros(len(regimes))
    for regime in regimes[today > 0].tolist():
        source = np.where(labels == regime, weight, 0.0)
        by_moment = np.cumsum(source[:, None] * after, axis=0)[-1]
        came = np.array([_sum(by_moment[labels == other]) for other in regimes.tolist()])
        mix += today[regime] * (came + PRIOR_MOMENTS * usual) / (_sum(came) + PRIOR_MOMENTS)
    return mix


def trust(
    distances: NDArray[np.int64], labels: NDArray[np.int64], fade: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much of a regime's share its own moments may carry, float64 [regimes]; the rest is carried by all moments.

    James and Stein's shrinkage: bias^2 / (bias^2 + variance / n), where the variance is that of moments around their regime's centre, the
    bias the distance of that centre from the centre of all, and n the effective number of its moments.
    ``distances``: int64 [n, n], squared, noise and all; ``labels`` int64 [n]; ``fade`` float64 [n].
    """
    count = len(labels)
    spread_all = int(distances.sum()) / 2 / count**2
    out = np.zeros(int(labels.max()) + 1)
    for regime in range(len(out)):
        own = labels == regime
        size = int(own.sum())
        inside = int(distances[np.ix_(own, own)].sum()) / 2
        if size < 2:
            continue
        variance = inside / (size * (size - 1)) / effective(fade[own])
        raw = int(distances[own].sum()) / (size * count) - inside / size**2 - spread_all
        bias = max(raw - inside / (size * (size - 1)) / size, 0.0)
        out[regime] = bias / (bias + variance) if bias > 0 else 0.0
    return out


def moment_weights(
    labels: NDArray[np.int64],
    mix: NDArray[np.float64],
    trusted: NDArray[np.float64],
    base: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Weight of every moment, float64 [n], summing to 1.

    ``mix``, ``trusted``: float64 [regimes]; ``base``: float64 [n], what a moment counts within its regime.
    """
    own_sum = np.array([_sum(base[labels == regime]) for regime in range(len(mix))])
    alone = np.where(own_sum > 0, mix * trusted, 0.0)
    shared = max(1.0 - _sum(alone), 0.0)
    weights: NDArray[np.float64] = base * (
        (alone / np.where(own_sum > 0, own_sum, 1.0))[labels] + shared / _sum(base)
    )
    return weights


def effective(weights: NDArray[np.float64]) -> float:
    """Effective number of things weighted unequally (Kish 1965): (sum w)^2 / sum w^2; 0 = none counts."""
    squares = _sum(np.square(weights))
    return _sum(weights) ** 2 / squares if squares > 0 else 0.0


def _shares(
    labels: NDArray[np.int64], weights: NDArray[np.float64], regimes: NDArray[np.int64]
) -> NDArray[np.float64]:
    sums = np.array([_sum(weights[labels == regime]) for regime in regimes.tolist()])
    return sums / _sum(sums)


def _sum(values: NDArray[np.float64]) -> float:
    return fsum(values.tolist())
