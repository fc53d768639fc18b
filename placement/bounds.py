"""What no placement can beat, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.layer import ordered_sum
from placement.replicas import least_largest_copy

if TYPE_CHECKING:
    from placement.layer import Layer

MEAN = "mean"
REPLICA_GRANULARITY = "replica_granularity"
NO_DATA = "no_data"


def layer_bound(layer: Layer) -> float:
    """Lower bound on the objective of one layer, 1.0 = perfect balance.

    In every slice the costliest rank is at least the mean, and at least the smallest possible largest copy at the highest
    speed (bounds 1 and 2 of the field notes: W / sum of speeds, and lambda of the greedy replica counts).
    """
    if not layer.loaded:
        return 1.0
    fastest = 1.0 / float(layer.inverse_speed.min())
    slots = int(layer.capacity().sum())
    copy = least_largest_copy(layer.loads[:, :-1], slots, layer.ranks, enough=fastest) / fastest
    return ordered_sum(layer.weights * np.maximum(1.0, copy))
