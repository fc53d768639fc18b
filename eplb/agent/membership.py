"""Members: the pool ranks that make up one life of a group, by place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.agent.refusal import Code, Refusal
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.group import Group
    from eplb.agent.transport import Transport
    from eplb.agent.wire import LayerChange


def slots_of(facts: PoolFacts, members: Sequence[int]) -> NDArray[np.bool_]:
    """Which slots belong to a member: bool [slots]."""
    held = np.zeros((facts.ranks, facts.slots_per_rank), dtype=np.bool_)
    held[list(members)] = True
    return held.reshape(-1)


def by_slot(facts: PoolFacts, gathered: NDArray[Any], members: Sequence[int]) -> NDArray[Any]:
    """What members said of their own slots, [members, layers, slots_per_rank, ...], as [layers, slots, ...]; 0 elsewhere."""
    whole = np.zeros((facts.ranks, *gathered.shape[1:]), dtype=gathered.dtype)
    whole[list(members)] = gathered
    return np.concatenate(list(whole), axis=1)


def stray_slot(facts: PoolFacts, members: Sequence[int], changes: Sequence[LayerChange]) -> Refusal | None:
    """The first slot of a rank that is no member but is to hold an expert, or None."""
    held = slots_of(facts, members)
    for change in changes:
        stray = np.flatnonzero((np.array(change.target) >= 0) & ~held)
        if stray.size:
            slot = int(stray[0])
            rank = slot // facts.slots_per_rank
            sentence = (
                f"layer {change.layer} slot {slot}: it is rank {rank}'s, which is no member of the group"
            )
            return Refusal(Code.NOT_MEMBER, sentence)
    return None


def agree_on_members(
    facts: PoolFacts, group: Group, transport: Transport | None, members: Sequence[int] | None
) -> tuple[int, ...]:
    """The pool ranks of the group by place, None = all of the pool's; every rank calls it. ``transport`` None: the engine has its own.

    Raises:
        MigrationError: on all ranks alike, when the ranks name other members, or some that the pool, the group or the
            transport does not have.
    """
    words = np.full(group.size + 2, -1, dtype=np.int64)
    try:
        named = list(range(facts.ranks) if members is None else members)
        words[0], words[1] = len(named), named[group.rank] if transport is None else transport.rank
        words[2:] = [int(rank) for rank in named] if len(named) == group.size else -1
    except Exception:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        words[0] = -1
    everywhere = group.gather(words).tolist()
    first = everywhere[0][2:]
    for place, (count, speaker, *ranks) in enumerate(everywhere):
        wrong = _wrong(facts, group.size, count, ranks)
        if not wrong and ranks != first:
            wrong = f"its members are {ranks}, those of place 0 are {first}; give all ranks the same members"
        if not wrong and ranks[place] != speaker:
            wrong = f"its transport speaks for pool rank {speaker}, not {ranks[place]}; give both the same members"
        if wrong:
            raise MigrationError(f"place {place} of the group: {wrong}")
    return tuple(first)


def _wrong(facts: PoolFacts, size: int, count: int, ranks: list[int]) -> str:
    if count == -1:
        return "its members are not ranks"
    if count != size:
        return f"the group has {size} ranks, {count} of pool {facts.pool!r} are to be its members"
    if sorted(set(ranks)) != ranks or ranks[0] < 0 or ranks[-1] >= facts.ranks:
        return f"members {ranks} must be different ranks of 0..{facts.ranks - 1}, in rising order"
    return ""
