"""What a trace looks like in numbers: recorded or synthetic, measured in one and the same way.

Every statistic is a mean over layers with load, taken of each layer alone, unless its name says otherwise. A statistic that a trace
cannot give is None: pairs need picks, drift two domains, and so on. The definitions are ours: the publications whose ranges stand in
``targets`` do not all say theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from eplb.generate.pairs import pairs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.formats.facts import TraceFile

RANKS = 32
"""Ranks whose ratio tells how unequal neighbours in id order are; half the experts where there are fewer than twice as many."""
HOT_PART = 10
"""The hot set of a layer is one expert in so many."""
LEAST_DOMAIN_SHARE = 0.05
"""A domain with a smaller part of all picks is too thin to compare."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of a trace; None = the trace cannot tell.

    ``hottest_expert``, ``hottest_expert_worst``: picks of the hottest expert over the mean expert, and the same in the worst layer.
    ``top_tenth_share``: part of the picks that the hottest tenth of the experts takes. ``rank_ratio``, ``rank_ratio_low``,
    ``rank_ratio_high``: hottest rank over mean with the experts in id order on ``RANKS`` ranks; least and most skewed layer.
    ``pair_lift``: tokens with both experts of the strongest pair over the number that independence expects; ``strong_pair_lift``:
    the same for the strongest hundredth of the pairs. ``top_pair_mass``: part of all pairs that the tenth with most tokens makes up.
    ``domain_cosine``, ``domain_hot_overlap``: cosine of the loads of two domains, and the part of the hot set that they share; mean
    over pairs of domains. ``phase_cosine``, ``phase_spearman``: cosine and rank correlation of prefill and decode loads.
    ``slice_noise``: spread of an expert's load between slices of one domain and phase beyond independent tokens, relative to its
    mean, weighted by load.
    """

    hottest_expert: float | None
    hottest_expert_worst: float | None
    top_tenth_share: float | None
    rank_ratio: float | None
    rank_ratio_low: float | None
    rank_ratio_high: float | None
    pair_lift: float | None
    strong_pair_lift: float | None
    top_pair_mass: float | None
    domain_cosine: float | None
    domain_hot_overlap: float | None
    phase_cosine: float | None
    phase_spearman: float | None
    slice_noise: float | None


def statistics_of(file: TraceFile, top_k: int | None = None) -> Statistics:
    """Measure a trace; ``top_k``: picks of a token in a layer, None = from its routes, else taken as 1 in ``slice_noise``."""
    tokens = file.trace.tokens
    loads = _loaded(tokens.sum(axis=0))
    routes = file.trace.routes
    pairs = None if routes is None else pairs_of(routes.experts, file.trace.experts)
    width = top_k or (1 if routes is None else routes.top_k)
    peak = _over_mean(loads)
    ratio = _rank_ratio(loads)
    by_domain = _by_name(tokens, file.domain, LEAST_DOMAIN_SHARE)
    by_phase = _by_name(tokens, file.phase, 0.0)
    domains = list(combinations([by_domain[name] for name in sorted(by_domain)], 2))
    phases = [(by_phase["prefill"], by_phase["decode"])] if {"prefill", "decode"} <= set(by_phase) else []
    return Statistics(
        hottest_expert=_mean(peak),
        hottest_expert_worst=_last(np.sort(peak)),
        top_tenth_share=_mean(_top_share(loads)),
        rank_ratio=_mean(ratio),
        rank_ratio_low=_last(np.sort(ratio)[::-1]),
        rank_ratio_high=_last(np.sort(ratio)),
        pair_lift=None if pairs is None else _mean(pairs.strongest_lift),
        strong_pair_lift=None if pairs is None else _mean(pairs.strong_lift),
        top_pair_mass=None if pairs is None else _mean(pairs.top_mass),
        domain_cosine=_mean(np.array([cosine(*pair) for pair in domains])),
        domain_hot_overlap=_mean(np.array([hot_overlap(*pair) for pair in domains])),
        phase_cosine=_mean(np.array([cosine(*pair) for pair in phases])),
        phase_spearman=_mean(np.array([spearman(*pair) for pair in phases])),
        slice_noise=slice_noise(tokens, _kinds(file), width),
    )


def cosine(one: NDArray[np.int64], two: NDArray[np.int64]) -> float:
    """Mean over layers of the cosine of two loads, int64 [layers, experts]; NaN without a layer that both load."""
    a, b = (load.astype(np.float64) for load in (one, two))
    both = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    return _nan_mean((a * b).sum(axis=1)[both > 0] / both[both > 0])


def hot_overlap(one: NDArray[np.int64], two: NDArray[np.int64]) -> float:
    """Mean over layers of the part of the hot set that two loads, int64 [layers, experts], share; NaN without common layers."""
    size = max(1, one.shape[1] // HOT_PART)
    shared = [
        len(set(_hottest(a, size)) & set(_hottest(b, size))) / size
        for a, b in zip(one, two, strict=True)
        if a.any() and b.any()
    ]
    return _nan_mean(np.array(shared))


def spearman(one: NDArray[np.int64], two: NDArray[np.int64]) -> float:
    """Mean over layers of the rank correlation of two loads, int64 [layers, experts]; NaN where one has no spread."""
    found = [_correlation(_ranks(a), _ranks(b)) for a, b in zip(one, two, strict=True)]
    return _nan_mean(np.array([value for value in found if value is not None]))


def slice_noise(tokens: NDArray[np.int64], kinds: Sequence[tuple[str, str]], top_k: int) -> float | None:
    """Relative spread of loads between slices of one kind that independent tokens do not explain; None = fewer than two of any.

    ``tokens``: int64 [slices, layers, experts]. With N_t picks in slice t and an expert's share p, independent tokens give a
    count the variance N_t p (1 - k p), and (1 - N_t / N) of that around the measured p; noise^2 = excess over that / sum (N_t p)^2.
    """
    excess = square = 0.0
    groups = [
        np.array([at for at, kind in enumerate(kinds) if kind == each]) for each in dict.fromkeys(kinds)
    ]
    for group in (each for each in groups if len(each) > 1):
        for layer in range(tokens.shape[1]):
            more, size = _excess(tokens[group, layer].astype(np.float64), top_k)
            excess += more
            square += size
    return sqrt(max(0.0, excess / square)) if square else None


def _excess(counts: NDArray[np.float64], top_k: int) -> tuple[float, float]:
    picks = counts.sum(axis=1, keepdims=True)
    known = (picks > 0).ravel()
    counts, picks = counts[known], picks[known]
    if len(counts) < 2:
        return 0.0, 0.0
    share = counts.sum(axis=0) / picks.sum()
    expected = picks * share
    left = 1.0 - picks / picks.sum()
    sampling = expected * np.maximum(0.0, 1.0 - top_k * share)
    return float(((counts - expected) ** 2 / left - sampling).sum()), float((expected**2).sum())


def _kinds(file: TraceFile) -> list[tuple[str, str]]:
    nothing = ("",) * file.trace.slices
    return list(zip(file.domain or nothing, file.phase or nothing, strict=True))


def _by_name(
    tokens: NDArray[np.int64], names: tuple[str, ...] | None, least_share: float
) -> dict[str, NDArray[np.int64]]:
    if names is None:
        return {}
    whole = tokens.sum()
    found = {
        name: tokens[[at for at, each in enumerate(names) if each == name]].sum(axis=0)
        for name in set(names) - {""}
    }
    return {name: load for name, load in found.items() if load.sum() > least_share * whole}


def _loaded(loads: NDArray[np.int64]) -> NDArray[np.float64]:
    kept: NDArray[np.float64] = loads[loads.any(axis=1)].astype(np.float64)
    return kept


def _over_mean(loads: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = loads.max(axis=1) / loads.mean(axis=1)
    return result


def _top_share(loads: NDArray[np.float64]) -> NDArray[np.float64]:
    size = max(1, loads.shape[1] // HOT_PART)
    result: NDArray[np.float64] = np.sort(loads, axis=1)[:, -size:].sum(axis=1) / loads.sum(axis=1)
    return result


def _rank_ratio(loads: NDArray[np.float64]) -> NDArray[np.float64]:
    experts = loads.shape[1]
    ranks = min(RANKS, max(1, experts // 2))
    return _over_mean(np.add.reduceat(loads, np.arange(ranks) * experts // ranks, axis=1))


def _hottest(load: NDArray[np.int64], size: int) -> list[int]:
    hot: list[int] = np.argsort(-load, kind="stable")[:size].tolist()
    return hot


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Place of each value in rising order; equal values share the mean of their places."""
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    places: NDArray[np.float64] = (ends - (counts - 1) / 2.0)[number]
    return places


def _correlation(one: NDArray[np.float64], two: NDArray[np.float64]) -> float | None:
    a, b = one - one.mean(), two - two.mean()
    both = sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / both if both else None


def _nan_mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else float("nan")


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


def _last(values: NDArray[np.float64]) -> float | None:
    return float(values[-1]) if values.size else None
