"""The smooth maximum that the search walks on: the 16-norm over ranks of each slice's costs.

A hard maximum is blind to the second hottest rank: it stalls while several ranks tie, and it follows the noise of single
slices. The 16-norm falls whenever a hot rank cools, and needs only squarings and square roots, which every machine
rounds alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

POWER = 16


def power(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Raise to the 16th power, in a new array of the same shape."""
    result = np.square(costs)
    for _ in range(3):
        np.square(result, out=result)
    return result


def root(powers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the 16th root in place and return it; rounding below 0 counts as 0."""
    np.maximum(powers, 0.0, out=powers)
    for _ in range(4):
        np.sqrt(powers, out=powers)
    return powers


def smooth_max(
    costs: NDArray[np.float64],
    ranks: NDArray[np.int64],
    new: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Smooth maximum after rank ``ranks[i]`` alone takes the cost ``new[:, i]``, float64 [candidates].

    ``costs``: float64 [slices, ranks]; ``new``: float64 [slices, candidates]; ``weights``: float64 [slices].
    """
    powers = power(costs)
    rest = np.cumsum(powers, axis=1)[:, -1:] - powers[:, ranks]
    np.maximum(rest, 0.0, out=rest)
    rest += power(new)
    result: NDArray[np.float64] = (root(rest) * weights[:, None]).sum(axis=0)
    return result
