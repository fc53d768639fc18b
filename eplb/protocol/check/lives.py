"""A group that has lost a rank re-forms: under a new run, with what its members hold and what they load again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eplb.protocol.check.world import EMPTY, Group, Rank, own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.world import Row, Shape


def reforms(
    shape: Shape, layers: int, ranks: tuple[Rank, ...], group: Group
) -> Iterator[tuple[str, tuple[Rank, ...], Group]]:
    """Every way on: the lost come back empty, the others go on without them, or the engine starts anew."""
    lost = [number for number, rank in enumerate(ranks) if not rank.alive]
    if not lost and not any(ranks[number].left for number in group.members):
        return
    everybody = tuple(range(len(ranks)))
    loads = _Loads(shape, layers, ranks, group)
    living = tuple(number for number in everybody if number not in lost)
    if set(group.members) & set(lost):
        yield from _joined("re-form without", loads, living)
    yield from _joined("re-form with", loads, everybody)
    yield "start anew", *_live(shape, ranks, group, everybody, (shape.base,) * layers)


class _Loads(NamedTuple):
    shape: Shape
    layers: int
    ranks: tuple[Rank, ...]
    group: Group


def _joined(
    name: str, loads: _Loads, members: tuple[int, ...]
) -> Iterator[tuple[str, tuple[Rank, ...], Group]]:
    if not members:
        return
    shape, layers, ranks, group = loads
    rows = [_joint_row(shape, ranks, members, layer) for layer in range(layers)]
    if all(row is not None for row in rows):
        yield name, *_live(shape, ranks, group, members, tuple(row for row in rows if row is not None))


def _joint_row(shape: Shape, ranks: tuple[Rank, ...], members: tuple[int, ...], layer: int) -> Row | None:
    """What the members' slots hold, with experts that nobody holds loaded where a slot is empty or its expert has another copy."""
    slots = [EMPTY] * (len(ranks) * shape.width)
    for number in members:
        for place, expert in enumerate(ranks[number].holds[layer] if ranks[number].alive else ()):
            slots[number * shape.width + place] = max(expert, EMPTY)
    places = [slot for slot in range(len(slots)) if slot // shape.width in members]
    for expert in range(shape.experts):
        if expert in slots:
            continue
        free = next((slot for slot in places if slots[slot] == EMPTY or slots.count(slots[slot]) > 1), None)
        if free is None:
            return None
        slots[free] = expert
    return tuple(slots)


def _live(
    shape: Shape, ranks: tuple[Rank, ...], group: Group, members: tuple[int, ...], rows: tuple[Row, ...]
) -> tuple[tuple[Rank, ...], Group]:
    answered = frozenset.intersection(*(ranks[number].closed for number in group.members))
    served = frozenset(enumerate(rows))
    now = []
    for number in range(len(ranks)):
        if number in members:
            now.append(Rank(tuple(own(shape, row, number) for row in rows), rows, served=served))
        else:
            now.append(Rank(holds=(), serves=(), alive=False))
    return tuple(now), Group(group.run + 1, members, group.answered | answered, group.model)
