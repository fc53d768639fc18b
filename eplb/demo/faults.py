"""Real faults, put into one rank after the first switch of the group, to show that the run notices them by their symptoms.

``wrong-expert``: the weights of the rank's busiest slot are overwritten with another expert's. ``lost-token``: one routed
contribution is dropped on its way back to its token. ``split-switch``: the rank does not take over the switch that all voted for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.checker import LOST_TOKEN, SPLIT_SWITCH, WRONG_EXPERT
from eplb.demo.combine import combine_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.demo.memory import SlotMemory
    from eplb.demo.model import Floats

FAULTS = (WRONG_EXPERT, LOST_TOKEN, SPLIT_SWITCH)
FAULTY_RANK = 1


def overwrite_slot(
    memory: SlotMemory, rows: NDArray[np.int32], received: NDArray[np.int64], first_slot: int
) -> str:
    """Give a rank's busiest slot another expert's weights: rows int32 [layers, slots], received int64 [layers, slots_per_rank]."""
    layer, place = (int(x) for x in np.unravel_index(int(received.argmax()), received.shape))
    slot = first_slot + place
    expert = int(rows[layer, slot])
    other = next(int(x) for x in rows[layer] if x not in (-1, expert))
    memory.load(layer, slot, other)
    return f"row {layer} slot {slot}: expert {expert} overwritten with {other}"


class DropOne:
    """A combine that loses the first contribution that comes back to it, once."""

    def __init__(self) -> None:
        self._dropped = False

    def __call__(self, into: Floats, tokens: NDArray[np.int64], rows: Floats) -> int:
        """Add all rows but the dropped one."""
        first = 0 if self._dropped else 1
        self._dropped = True
        return combine_all(into, tokens[first:], rows[first:])
