"""The imbalance that remains when nothing is left to balance: sampling noise of one step."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@lru_cache(maxsize=256)
def expected_max_of_normals(ranks: int) -> float:
    """Expected maximum of ``ranks`` independent standard normals, by quadrature of 1 - F(x)^n.

    E[max] = integral over x > 0 of (1 - F^n) minus integral over x < 0 of F^n; 0 for one rank.
    """
    x = np.linspace(-9.0, 9.0, 7201)
    cdf = np.array([0.5 * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x])
    power = cdf**ranks
    return float(np.trapezoid(np.where(x > 0.0, 1.0 - power, -power), x))


def noise_floor(
    tokens_per_rank: NDArray[np.float64] | NDArray[np.int64], ranks: int, experts: int, top_k: int
) -> NDArray[np.float64]:
    """Excess that a perfectly balanced placement would still show: float64, the shape of ``tokens_per_rank``.

    ``tokens_per_rank``: mean (token, expert) pairs a rank receives in the slice. The formula is
    ``m(G) * sqrt((1 - 1/G) * (E - k) / (E - 1) / mu)``: the expected maximum of G normals over the standard deviation of a
    rank's count, where a token's k experts are distinct, so its picks are drawn without replacement. Tokens of one request are
    correlated, so a real floor may be higher. NaN where there is no load.
    """
    mu = np.asarray(tokens_per_rank, dtype=np.float64)
    distinct = (experts - top_k) / max(experts - 1, 1)
    with np.errstate(divide="ignore"):
        floor = expected_max_of_normals(ranks) * np.sqrt((1.0 - 1.0 / ranks) * distinct / mu)
    return np.where(mu > 0.0, floor, np.nan)
