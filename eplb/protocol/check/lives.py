"""A group that has lost a rank re-forms: under a new run, with what its members hold and what they load again.

The same rules as ``eplb.agent.reform`` and ``eplb.agent.emergency``, on rows as tuples: a test holds the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol.check.world import EMPTY, Group, Rank, own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.world import Row, Shape


def reforms(
    shape: Shape, layers: int, ranks: tuple[Rank, ...], group: Group
) -> Iterator[tuple[str, tuple[Rank, ...], Group]]:
    """Every way on: the others go on without the lost ranks, these come back empty, or the engine starts anew."""
    lost = [number for number, rank in enumerate(ranks) if not rank.alive]
    if not lost and not any(ranks[number].left for number in group.members):
        return
    everybody = tuple(range(len(ranks)))
    living = tuple(number for number in everybody if number not in lost)
    ways = []
    if set(group.members) & set(lost):
        ways.append(("re-form without", living))
    ways.append(("re-form with", everybody))
    for name, members in ways if living else ():
        rows = joint_rows(shape, layers, ranks, members)
        if rows is not None:
            term = max(ranks[number].term for number in living)
            yield name, *_live(shape, group, members, rows, term)
    yield "start anew", *_live(shape, group, everybody, (shape.base,) * layers, 0)


def joint_rows(
    shape: Shape, layers: int, ranks: tuple[Rank, ...], members: tuple[int, ...]
) -> tuple[Row, ...] | None:
    """What the members' slots hold, by layer, and experts that nobody holds loaded into slots that can be spared.

    None: the members have fewer slots than experts.
    """
    if len(members) * shape.width < shape.experts:
        return None
    taken, rows = [0] * len(ranks), []
    for layer in range(layers):
        slots = [EMPTY] * (len(ranks) * shape.width)
        for number in members:
            for place, expert in enumerate(ranks[number].holds[layer] if ranks[number].alive else ()):
                slots[number * shape.width + place] = max(expert, EMPTY)
        _load(shape, slots, members, taken)
        rows.append(tuple(slots))
    return tuple(rows)


def _load(shape: Shape, slots: list[int], members: tuple[int, ...], taken: list[int]) -> None:
    """Give each expert without a copy the slot of fewest loads, empty before spare; ``taken``: loads by rank, in all layers."""
    here = [0] * len(taken)

    def price(slot: int) -> tuple[bool, int, int, int, int]:
        held, rank = slots[slot], slot // shape.width
        return held != EMPTY, here[rank], taken[rank], 0 if held == EMPTY else -slots.count(held), slot

    own_slots = [slot for slot in range(len(slots)) if slot // shape.width in members]
    for expert in [expert for expert in range(shape.experts) if expert not in slots]:
        free = [slot for slot in own_slots if slots[slot] == EMPTY or slots.count(slots[slot]) > 1]
        slot = min(free, key=price)
        slots[slot] = expert
        here[slot // shape.width] += 1
        taken[slot // shape.width] += 1


def _live(
    shape: Shape, group: Group, members: tuple[int, ...], rows: tuple[Row, ...], term: int
) -> tuple[tuple[Rank, ...], Group]:
    served = frozenset(enumerate(rows))
    now = []
    for number in range(len(shape.base) // shape.width):
        if number in members:
            holds = tuple(own(shape, row, number) for row in rows)
            now.append(Rank(holds, rows, term=term, served=served))
        else:
            now.append(Rank(holds=(), serves=(), alive=False))
    return tuple(now), Group(group.run + 1, members, group.model)
