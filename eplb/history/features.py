"""What tells one kind of traffic from another: square roots of expert shares, in whole numbers so that distances are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DIMENSIONS = 1024
"""Larger ones are sketched to so many: distances keep within some 4 % (sqrt(2 / 1024)), and cost does not grow with the model."""

SCALE = 4096
"""Whole-number units of one: rounding adds less than the noise of a million picks."""

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well-mixed bits of whole numbers, uint64 of any shape: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        bits = values + np.uint64(_GOLDEN)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(_MIX[0])
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(_MIX[1])
    out: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return out


def feature(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Square roots of the shares of every layer, int64 [min(layers x experts, DIMENSIONS)], from int64 [layers, experts].

    The distance of two is Hellinger's: an expert's noise is then the same whatever its share (Var sqrt(p) = 1/4n).
    """
    total = counts.sum(axis=1, keepdims=True)
    roots = np.rint(np.sqrt(counts / np.maximum(total, 1)) * SCALE).ravel()
    if roots.size <= DIMENSIONS:
        whole: NDArray[np.int64] = roots.astype(np.int64)
        return whole
    bits = mixed(np.arange(roots.size, dtype=np.uint64))
    signed = np.where(bits >> np.uint64(63), -roots, roots)
    places = (bits % np.uint64(DIMENSIONS)).astype(np.int64)
    # Whole numbers far below 2^53: the sum is exact in any order.
    sketch: NDArray[np.int64] = np.bincount(places, weights=signed, minlength=DIMENSIONS).astype(np.int64)
    return sketch


def noise(counts: NDArray[np.int64]) -> int:
    """Squared distance of a feature from that of endless traffic of the same kind, if its picks were independent.

    (used experts - 1) / 4n a layer of n picks, the variance of square roots.
    """
    total = counts.sum(axis=1)
    spread = ((counts > 0).sum(axis=1) - 1) * (SCALE * SCALE) // (4 * np.maximum(total, 1))
    return int(spread[total > 0].sum())


def squared_distances(features: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Squared distances of all pairs, int64 [n, n]; whole numbers, so exact and not a matter of BLAS."""
    rows = np.stack(features)
    norms = np.square(rows).sum(axis=1)
    distances: NDArray[np.int64] = norms[:, None] + norms[None, :] - 2 * (rows @ rows.T)
    return distances
