"""What the group moved, counted from the maps that rank 0 switched to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.demo.facts import RankSwitch


def arrivals(before: NDArray[np.int32], after: NDArray[np.int32], slots_per_rank: int) -> int:
    """Slots of one layer that got an expert which their rank did not hold: rows int32 [slots]."""
    held = before.reshape(-1, slots_per_rank)
    wanted = after.reshape(-1, slots_per_rank)
    return sum(
        len(set(new.tolist()) - set(old.tolist()) - {-1}) for old, new in zip(held, wanted, strict=True)
    )


class MoveLedger:
    """Follows rank 0's switches. ``waves`` switches, ``moves`` arrivals, ``moved_bytes`` their weights."""

    def __init__(self, facts: PoolFacts, start_map: NDArray[np.int32]) -> None:
        self._facts = facts
        self._rows = start_map.copy()
        self.waves = 0
        self.moves = 0

    def add(self, switch: RankSwitch) -> None:
        """Take one rank's switch; those of ranks other than 0 say the same and are left out."""
        if switch.rank != 0:
            return
        self.waves += 1
        for place, layer in enumerate(switch.layers):
            self.moves += arrivals(self._rows[layer], switch.rows[place], self._facts.slots_per_rank)
            self._rows[layer] = switch.rows[place]

    @property
    def moved_bytes(self) -> int:
        """Bytes of all arrivals' weights."""
        return self.moves * self._facts.bytes_per_expert
