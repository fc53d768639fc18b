"""Fixed shares for many slices at once: descent on the smooth maximum over ranks of every slice.

The mean over slices of the 16-norm over ranks (``placement.norm``) is convex in the shares, so that any start with no share
at 0 leads to the same value. Every step multiplies the shares of an expert by factors that fall with the heat of the
copy's rank and scales them back to 1; a step that does not help is halved. There is no randomness and no BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.norm import power, root

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.flow import Hosting
    from placement.layer import Layer

STEPS = 200
FIRST_STEP = 0.3
LEAST_STEP = 1e-5
LEAST_FACTOR = 0.05
"""No share falls faster than this in one step: a copy that is right in the end must be able to come back."""
SMALL = 1e-30


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The copies of one layer that share, and the load without a choice.

    ``loads``: float64 [slices, pairs], load of each pair's expert; ``base``: float64 [slices, ranks], cost of the experts with
    one copy; ``owner``: int64 [pairs], experts numbered from 0; ``rank``: int64 [pairs]; ``inverse_speed``: float64 [ranks];
    ``weights``: float64 [slices].
    """

    loads: NDArray[np.float64]
    base: NDArray[np.float64]
    owner: NDArray[np.int64]
    rank: NDArray[np.int64]
    inverse_speed: NDArray[np.float64]
    weights: NDArray[np.float64]

    def costs(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cost of every rank, float64 [slices, ranks]."""
        added = np.zeros(self.base.shape[::-1])
        np.add.at(added, self.rank, (self.loads * part).T)
        return self.base + added.T * self.inverse_speed

    def to_one(self, part: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale the parts of every expert to 1."""
        total = np.zeros(int(self.owner.max()) + 1)
        np.add.at(total, self.owner, part)
        return part / total[self.owner]


def make_pairs(held: Hosting, layer: Layer) -> tuple[Pairs, NDArray[np.int64]]:
    """The pairs of one instance whose experts have a choice of ranks, and their places in ``held``, int64 [pairs]."""
    copies = np.bincount(held.expert, minlength=layer.experts)[held.expert]
    some, fixed = np.flatnonzero(copies > 1), np.flatnonzero(copies == 1)
    base = np.zeros((layer.ranks, len(layer.weights)))
    np.add.at(base, held.rank[fixed], layer.loads[:, held.expert[fixed]].T)
    _, owner = np.unique(held.expert[some], return_inverse=True)
    pairs = Pairs(
        layer.loads[:, held.expert[some]], base.T * layer.inverse_speed, owner, held.rank[some],
        layer.inverse_speed, layer.weights,
    )  # fmt: skip
    return pairs, some


def descend(pairs: Pairs) -> NDArray[np.float64]:
    """Parts of every pair with a low smooth objective, float64 [pairs], starting from even ones."""
    part = pairs.to_one(np.ones(len(pairs.owner)))
    costs = pairs.costs(part)
    value, size = _value(pairs, costs), FIRST_STEP
    for _ in range(STEPS):
        slope = _slope(pairs, costs, part)
        steepest = float(np.abs(slope).max())
        if steepest <= SMALL:
            break
        while size >= LEAST_STEP:
            tried = pairs.to_one(part * np.maximum(1.0 - size * slope / steepest, LEAST_FACTOR))
            new_costs = pairs.costs(tried)
            new_value = _value(pairs, new_costs)
            if new_value < value:
                break
            size /= 2
        else:
            break
        part, costs, value = tried, new_costs, new_value
        size *= 1.3
    return part


def _norm(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    return root(np.cumsum(power(costs), axis=1)[:, -1])


def _value(pairs: Pairs, costs: NDArray[np.float64]) -> float:
    return float(np.cumsum(_norm(costs) * pairs.weights)[-1])


def _slope(pairs: Pairs, costs: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Derivative by every part less the mean of its expert: d norm / d cost = (cost / norm)^15."""
    heat = costs / np.maximum(_norm(costs), SMALL)[:, None]
    heat = power(heat) / np.maximum(heat, SMALL)
    by_pair = pairs.weights[:, None] * pairs.loads * (heat * pairs.inverse_speed)[:, pairs.rank]
    slope = np.cumsum(by_pair, axis=0)[-1]
    mean = np.zeros(int(pairs.owner.max()) + 1)
    np.add.at(mean, pairs.owner, slope * part)
    result: NDArray[np.float64] = slope - mean[pairs.owner]
    return result
