"""Parts of a row's change that can be done one after the other without an expert ever being without a slot.

A slot that changes takes one expert away and brings another. An expert that no unchanged slot holds must have arrived
somewhere before its last slot is taken, or in the same moment. So one of its leaving slots waits for one of its arriving
slots, and every slot waits for one other at most: what remains are paths, done slot by slot from their end, and rings,
which are swaps and are done whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Part:
    """Slots that change together, and the place among the parts of the one that must come before or with it, -1 = none."""

    slots: tuple[int, ...]
    after: int


def is_sound(row: NDArray[np.int32], experts: int, slots_per_rank: int) -> bool:
    """Whether every expert has a slot and none lies twice on a rank: int32 [slots]."""
    held = row[row >= 0]
    ranks = np.flatnonzero(row >= 0) // slots_per_rank
    return bool(np.unique(held).size == experts and np.unique(ranks * experts + held).size == held.size)


def parts_of(
    base: NDArray[np.int32], target: NDArray[np.int32], experts: int, slots_per_rank: int
) -> tuple[Part, ...]:
    """The parts of one row's change, each after the one that it waits for: int32 [slots] twice, aligned.

    A base that is not sound itself is changed in one part, because no row before the target would be sound.
    """
    changed = np.flatnonzero(base != target).tolist()
    if not changed:
        return ()
    if not is_sound(base, experts, slots_per_rank):
        return (Part(tuple(changed), -1),)
    return _ordered(changed, _waits(base, target, changed))


def _waits(base: NDArray[np.int32], target: NDArray[np.int32], changed: list[int]) -> dict[int, int]:
    """Which slot waits for which. Where an expert leaves a choice, no ring is closed if that can be helped."""
    safe = set(base[base == target].tolist())
    leaving: dict[int, list[int]] = {}
    arriving: dict[int, list[int]] = {}
    for slot in changed:
        leaving.setdefault(int(base[slot]), []).append(slot)
        arriving.setdefault(int(target[slot]), []).append(slot)
    bound = [e for e in leaving if e >= 0 and e not in safe and e in arriving]
    waits: dict[int, int] = {}
    for expert in sorted(bound, key=lambda e: (len(leaving[e]) * len(arriving[e]), e)):
        pairs = [(d, a) for d in leaving[expert] for a in arriving[expert]]
        last, first = min(pairs, key=lambda pair: (_ring(waits, *pair), pair))
        waits[last] = first
    return waits


def _ring(waits: dict[int, int], last: int, first: int) -> int:
    """Length of the ring that waiting of ``last`` for ``first`` would close, 0 = none."""
    length, slot = 1, first
    while slot != last:
        if slot not in waits:
            return 0
        slot = waits[slot]
        length += 1
    return length


def _ordered(changed: list[int], waits: dict[int, int]) -> tuple[Part, ...]:
    parts: list[Part] = []
    part_of: dict[int, int] = {}
    for start in changed:
        path: list[int] = []
        slot: int | None = start
        while slot is not None and slot not in part_of and slot not in path:
            path.append(slot)
            slot = waits.get(slot)
        if slot in path:
            ring = path[path.index(slot) :]
            path = path[: path.index(slot)]
            _add(parts, part_of, ring, -1)
        for each in reversed(path):
            _add(parts, part_of, [each], part_of.get(waits.get(each, -1), -1))
    return tuple(parts)


def _add(parts: list[Part], part_of: dict[int, int], slots: list[int], after: int) -> None:
    part_of |= dict.fromkeys(slots, len(parts))
    parts.append(Part(tuple(sorted(slots)), after))
