"""How strongly experts go together: pairs of experts that the same tokens pick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.coactivation import coactivation

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_EXPECTED = 5.0
"""Tokens that independence must expect of a pair before its lift says anything."""
STRONG_PART = 100
"""The strong pairs of a layer are one in so many."""
TOP_PART = 10
"""The top pairs are one in so many."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Of every layer, float64 [layers], NaN = the sample is too small.

    ``strongest_lift``, ``strong_lift``: tokens with both experts over tokens expected of independent experts with the same loads,
    for the strongest pair, and the mean of the strongest ``1 / STRONG_PART``. ``top_mass``: part of all pairs of picks that the
    ``1 / TOP_PART`` of the expert pairs with most tokens holds.
    """

    strongest_lift: NDArray[np.float64]
    strong_lift: NDArray[np.float64]
    top_mass: NDArray[np.float64]


def pairs_of(routes: NDArray[np.int16], experts: int) -> Pairs:
    """Measure sampled sets of experts, int16 [samples, layers, top_k], -1 = no pick."""
    found = [_layer(routes[:, layer], experts) for layer in range(routes.shape[1])]
    table = np.array(found, dtype=np.float64).reshape(-1, 3)
    return Pairs(table[:, 0], table[:, 1], table[:, 2])


def _layer(sets: NDArray[np.int16], experts: int) -> tuple[float, float, float]:
    picked = np.bincount(sets[sets >= 0], minlength=experts).astype(np.float64)
    tokens = int((sets >= 0).any(axis=1).sum())
    upper = np.triu_indices(experts, 1)
    together = coactivation(sets, experts)[upper].astype(np.float64)
    if not together.any():
        return np.nan, np.nan, np.nan
    expected = (picked[:, None] * picked)[upper] / tokens
    known = expected >= LEAST_EXPECTED
    lift = np.sort(together[known] / expected[known])[::-1]
    ordered = np.sort(together)[::-1]
    return (
        float(lift[0]) if lift.size else np.nan,
        float(lift[: max(1, lift.size // STRONG_PART)].mean()) if lift.size else np.nan,
        float(ordered[: max(1, ordered.size // TOP_PART)].sum() / ordered.sum()),
    )
