"""Where experts go that no living rank holds any more: fewest copies lost, ranks evenly used; no load is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.membership import slots_of
from eplb.errors import GroupTooSmall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts


def living_copies(facts: PoolFacts, rows: NDArray[np.int32]) -> NDArray[np.int64]:
    """Slots that hold each expert: int32 [layers, slots] -> int64 [layers, experts]."""
    return np.stack([np.bincount(row[row >= 0], minlength=facts.experts) for row in rows]).astype(np.int64)


def emergency_rows(
    facts: PoolFacts, members: Sequence[int], rows: NDArray[np.int32]
) -> tuple[NDArray[np.int32], tuple[tuple[int, int, int], ...]]:
    """Give every expert without a copy a slot: (rows, (layer, slot, expert) of each that must be loaded).

    ``rows``: int32 [layers, slots], what the members' slots hold, -1 elsewhere. A slot is taken that is empty, or else one whose
    expert has another copy; never the last copy, and never a second copy on a rank, because the expert has none. Of those the
    one whose rank takes fewest, in the layer and then in all, and whose expert has most copies.

    Raises:
        GroupTooSmall: a layer has fewer such slots than experts without a copy.
    """
    _check_room(facts, members, rows)
    after = rows.copy()
    taken = np.zeros(facts.ranks, dtype=np.int64)
    loads: list[tuple[int, int, int]] = []
    own = [int(slot) for slot in np.flatnonzero(slots_of(facts, members))]
    for layer, copies in enumerate(living_copies(facts, rows)):
        row, here = after[layer], np.zeros(facts.ranks, dtype=np.int64)
        for expert in np.flatnonzero(copies == 0).tolist():
            slot = _choose(facts, own, row, copies, (here, taken))
            rank = slot // facts.slots_per_rank
            if row[slot] >= 0:
                copies[row[slot]] -= 1
            row[slot] = expert
            copies[expert] = 1
            here[rank] += 1
            taken[rank] += 1
            loads.append((layer, slot, expert))
    return after, tuple(loads)


def _choose(
    facts: PoolFacts,
    own: Sequence[int],
    row: NDArray[np.int32],
    copies: NDArray[np.int64],
    taken: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> int:
    def price(slot: int) -> tuple[bool, int, int, int, int]:
        held, rank = int(row[slot]), slot // facts.slots_per_rank
        spare = 0 if held < 0 else int(copies[held])
        return held >= 0, int(taken[0][rank]), int(taken[1][rank]), -spare, slot

    return min((slot for slot in own if row[slot] < 0 or copies[row[slot]] > 1), key=price)


def _check_room(facts: PoolFacts, members: Sequence[int], rows: NDArray[np.int32]) -> None:
    # Every slot that is not some expert's only copy can be taken, whatever the order: the experts need as many slots as they are.
    room = len(members) * facts.slots_per_rank
    if len(rows) and room < facts.experts:
        need = -(-facts.experts // facts.slots_per_rank)
        raise GroupTooSmall(
            f"{len(members)} members of pool {facts.pool!r} have {room} slots in a layer, {facts.experts} experts need "
            f"{facts.experts - room} more; at least {need} ranks must live, start more before the group serves"
        )
