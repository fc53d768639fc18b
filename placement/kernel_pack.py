# ruff: noqa: PLR0917 - compiled functions take arrays by place
"""Packing, compiled: every copy goes to the rank that raises the smooth maximum least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.kernel import mean_root
from placement.kernel_cache import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def pack_copies(
    order: NDArray[np.int64],
    first: int,
    unit: NDArray[np.float64],
    weights: NDArray[np.float64],
    inverse_speed: NDArray[np.float64],
    may: NDArray[np.bool_],
    has: NDArray[np.bool_],
    free: NDArray[np.int64],
    costs: NDArray[np.float64],
    powers: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> int:
    """Place the copies ``order[first:]`` and return the place of the first that fits nowhere, or ``len(order)``.

    ``order``: int64 [copies], experts. ``unit``: [experts, slices], load of one copy. ``may``, ``has``: [experts, ranks].
    ``free``: [ranks]. ``costs``: [ranks, slices]. ``has``, ``free`` and ``costs`` are updated.
    ``powers``: [ranks, slices] and ``sums``: [3, slices], zeros to work in.
    """
    ranks, slices = costs.shape
    n = np.uintp(slices)
    total, trial, roots = sums[0], sums[1], sums[2]
    for rank in range(ranks):
        raise_costs(costs[rank], powers[rank], n)
        for t in range(n):
            total[t] += powers[rank, t]
    for at in range(first, len(order)):
        expert = order[at]
        best, lowest = -1, np.inf
        for rank in range(ranks):
            if free[rank] > 0 and may[expert, rank] and not has[expert, rank]:
                raised(total, costs[rank], powers[rank], unit[expert], inverse_speed[rank], trial, n)
                value = mean_root(trial, roots, weights, n)
                if value < lowest:
                    best, lowest = rank, value
        if best < 0:
            return at
        has[expert, best] = True
        free[best] -= 1
        for t in range(n):
            costs[best, t] += unit[expert, t] * inverse_speed[best]
            total[t] -= powers[best, t]
        raise_costs(costs[best], powers[best], n)
        for t in range(n):
            total[t] = max(total[t], 0.0) + powers[best, t]
    return len(order)


@compiled
def raise_costs(costs: NDArray[np.float64], powers: NDArray[np.float64], n: np.uintp) -> None:
    """Compute 16th powers."""
    for t in range(n):
        x = costs[t]
        x *= x
        x *= x
        x *= x
        x *= x
        powers[t] = x


@compiled
def raised(
    total: NDArray[np.float64],
    costs: NDArray[np.float64],
    powers: NDArray[np.float64],
    unit: NDArray[np.float64],
    inverse_speed: float,
    trial: NDArray[np.float64],
    n: np.uintp,
) -> None:
    """Sum of the 16th powers after one rank takes one more copy."""
    for t in range(n):
        x = costs[t] + unit[t] * inverse_speed
        x *= x
        x *= x
        x *= x
        x *= x
        trial[t] = max(total[t] - powers[t], 0.0) + x
