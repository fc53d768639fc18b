"""Which slices the solver gets when there are more than it takes."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def choose(weights: NDArray[np.float64], most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """At most ``most`` of the slices and their weights: places int64 [chosen], ascending, and float64 [chosen].

    Systematic sampling with chances in proportion to weight (Madow 1949): those that weigh much are all taken, of the others every so
    many, spread evenly over time, and weight / chance keeps every stretch of time as heavy as it was. No draw is involved.
    ``weights``: float64 [slices], at least 0, in the order of time.
    """
    chance = _chances(weights, most)
    # Steps of a cumulative sum: a half keeps the first and the last stretch alike.
    reached = np.floor(np.cumsum(chance) + 0.5)
    taken = np.flatnonzero((np.diff(reached, prepend=0.0) > 0) & (chance > 0))[:most]
    return taken, weights[taken] / chance[taken]


def _chances(weights: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Chance of every slice: in proportion to its weight, at most 1, and ``most`` in sum where there are more."""
    chance = np.where(weights > 0, 1.0, 0.0)
    if chance.sum() <= most:
        return chance
    sure = np.zeros(len(weights), dtype=np.bool_)
    while True:
        open_ = (weights > 0) & ~sure
        rate = (most - int(sure.sum())) / fsum(weights[open_].tolist())
        more = open_ & (weights * rate >= 1.0)
        if not more.any():
            return np.where(sure, 1.0, np.where(open_, weights * rate, 0.0))
        sure |= more
