"""Random numbers that are the same on any machine and with any version of numpy.

Bits come from PCG64, whose raw stream numpy promises to keep, normals are sums of them, and the exponential is made of additions and
multiplications alone: no library function whose last digit differs between processors decides anything.
"""

from __future__ import annotations

from math import factorial, prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BITS = 16
UNIT = 2**BITS
SUMMED = 12
"""Uniform numbers in a normal one: their variance is a twelfth each. No draw lies beyond six standard deviations."""
HALVINGS = 8
STEPS = 40
TERMS = 10
MOST_EXPONENT = 40.0


class Draws:
    """A stream of random numbers, named by whole numbers: the same name, the same stream."""

    def __init__(self, *name: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(name))

    def uniform(self, *shape: int) -> NDArray[np.uint16]:
        """Whole numbers 0..65535, all alike: uint16 of that shape."""
        count = prod(shape)
        raw = self._bits.random_raw(-(-count // 4)).astype("<u8", copy=False)
        return raw.view("<u2")[:count].astype(np.uint16, copy=False).reshape(shape)

    def normals(self, *shape: int) -> NDArray[np.float64]:
        """Normal numbers of mean 0 and variance 1, by the sum of uniform ones: float64 of that shape."""
        parts = self.uniform(SUMMED, *shape)
        total = np.zeros(shape, dtype=np.int64)
        for part in parts:
            total += part
        result: NDArray[np.float64] = (total - SUMMED * (UNIT - 1) / 2) / UNIT
        return result


def exponential(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^x by a power series of x / 2^8, squared eight times; ``x`` is cut to -40..40. The relative error is below 1e-13."""
    reduced = np.clip(x, -MOST_EXPONENT, MOST_EXPONENT) / 2**HALVINGS
    value = np.full(reduced.shape, 1.0 / factorial(TERMS))
    for term in range(TERMS - 1, -1, -1):
        value = value * reduced + 1.0 / factorial(term)
    for _ in range(HALVINGS):
        value = value * value
    return value


def logarithm(x: float) -> float:
    """Natural logarithm of a number x from e^-40 to e^40, by Halley's steps on ``exponential``: y + 2 (x - e^y) / (x + e^y)."""
    y = 0.0
    for _ in range(STEPS):
        power = float(exponential(np.array(y)))
        y += 2.0 * (x - power) / (x + power)
    return y
