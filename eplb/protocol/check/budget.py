"""What may still come, as small integers: all that can be left within bounds, what each fault leaves, and what has no less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.protocol.check.world import KINDS, Left

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.protocol.check.numbers import Column
    from eplb.protocol.check.parts import Parts

SPENDS = ("", *KINDS, "plans", "losses+messages")
"""What a step can spend, by number; the first is nothing, ``+`` joins two faults."""


class Budget:
    """``after`` [left, spends] keys of what a step leaves, -1 = there is none left to spend; ``spent`` faults by left.

    ``covered`` [left, words] uint64: bit k of the words is set if no kind has more in ``k`` than in this left. ``nothing`` the key of the least.
    """

    def __init__(self, start: Left, parts: Parts) -> None:
        known = {start: parts.key(start)}
        queue, rows = [start], list[list[int]]()
        for left in queue:
            row = []
            for spends in SPENDS:
                less = _less(left, spends)
                if less is not None and less not in known:
                    known[less] = parts.key(less)
                    queue.append(less)
                row.append(-1 if less is None else known[less])
            rows.append(row)
        self.nothing = known[min(queue, key=lambda left: sum(left) - left.faults)]
        self.after: Column = np.array(rows, np.int32)
        self.spent: Column = np.array([start.faults - left.faults for left in queue], np.int32)
        self.covered: NDArray[np.uint64] = _bits(np.array(queue))


def _less(left: Left, spends: str) -> Left | None:
    if not spends:
        return left
    if spends == "plans":
        return left._replace(plans=left.plans - 1) if left.plans else None
    less: Left | None = left
    for kind in spends.split("+"):
        less = less and less.spend(kind)
    return less


def _bits(lefts: NDArray[np.int64]) -> NDArray[np.uint64]:
    covers = (lefts[:, None] >= lefts[None]).all(axis=2)
    words = -(-len(lefts) // 64)
    padded = np.zeros((len(lefts), words * 64), bool)
    padded[:, : len(lefts)] = covers
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)
