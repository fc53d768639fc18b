"""The map that engines start with, when nothing else is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def start_map(layers: int, experts: int, slots: int) -> NDArray[np.int32]:
    """Experts in the order of their ids, then again from the first, int32 [layers, slots]."""
    return np.tile(np.arange(slots, dtype=np.int32) % experts, (layers, 1))
