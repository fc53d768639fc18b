"""Round numbers for axes, and the steps of colours."""

from __future__ import annotations

from math import ceil, floor, log10

EXPERT_STEPS = (0.25, 0.5, 0.8, 1.25, 2.0, 3.0, 5.0, 8.0)
"""Where the next colour begins for the load of an expert, in multiples of the mean expert."""
RANK_STEPS = (0.7, 0.85, 0.95, 1.05, 1.15, 1.3, 1.6, 2.0)
"""The same for the load of a rank."""
LEAST_SPAN = 0.05
"""Shortest axis: differences below it are not worth a picture."""


def round_ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> tuple[float, ...]:
    """Round numbers from at most ``low`` to at least ``high``, about ``most`` of them and at least ``LEAST_SPAN`` apart in all.

    ``whole``: whole numbers only.
    """
    high = max(high, low + LEAST_SPAN)
    rough = max((high - low) / most, 1.0 if whole else 0.0)
    size = 10.0 ** floor(log10(rough))
    steps = (size * each for each in (1, 2, 2.5, 5, 10))
    step = next(each for each in steps if each >= rough * (1 - 1e-9) and not (whole and each % 1))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return tuple(round(at * step, 10) for at in range(first, last + 1))


def places(count: int, most: int = 6) -> tuple[int, ...]:
    """Which of ``count`` things in a row are named: the first, then every n-th, n round."""
    if count <= most:
        return tuple(range(count))
    least = count / most
    size = 10 ** floor(log10(least))
    step = next(size * each for each in (1, 2, 5, 10) if size * each >= least)
    return tuple(range(0, count, int(step)))
