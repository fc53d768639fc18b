"""Value whole maps where a layer's value depends on the layers before it: ``nearest`` deals far source ranks from one sequence.

The search values rows by the mean over deals. The points that it offers carry the value of the deal that the engine
would make for that very map, as ``evaluate`` has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placement.layer import ordered_sum
from placement.search import GAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placement.frontier import Frontier
    from placement.objective import Objective
    from placement.placement import Placement

MOST_DEALT = 32
"""Points of a frontier that are valued as a whole; of more, an even choice with both ends."""


def dealt(
    frontier: Frontier, deal: Callable[[], Objective], mean: Objective, weights: NDArray[np.float64]
) -> Frontier:
    """The frontier with the dealt value of its points, those that still fall.

    ``deal``: makes the objective at the start of its sequence; ``mean``: the objective that valued the rows; ``weights``: float64
    [layers], part of every layer. What else a point's value holds, traffic for one, stays.
    """
    count = len(frontier.moves)
    some = np.unique(np.arange(min(count, MOST_DEALT)) * (count - 1) // max(1, min(count, MOST_DEALT) - 1))
    kept: list[int] = []
    values: list[float] = []
    for point in some.tolist():
        placement = frontier.placement(point)
        value = float(frontier.objective[point]) + change(placement, deal(), mean, weights)
        if not kept or value < values[-1] - GAIN:
            kept.append(point)
            values.append(value)
    return replace(
        frontier, choice=frontier.choice[kept], moves=frontier.moves[kept], objective=np.array(values)
    )


def change(placement: Placement, deal: Objective, mean: Objective, weights: NDArray[np.float64]) -> float:
    """What the deal adds to the objective of a map; ``deal`` is used up."""
    rows = placement.physical_to_logical
    added = [deal.layer(at).value(row) - mean.layer(at).value(row) for at, row in enumerate(rows)]
    return ordered_sum(weights * np.array(added))
