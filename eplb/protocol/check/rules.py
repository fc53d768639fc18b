"""Rules that every state must keep, whatever happened before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol.check.world import EMPTY, WRONG, own
from eplb.protocol.facts import Arrived, Profile, RankState

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.protocol.check.world import Group, Rank, Shape

    Members = dict[int, Rank]


def broken_rule(
    shape: Shape, ranks: tuple[Rank, ...], group: Group, profile: Profile = Profile.STAGED
) -> str:
    """The first rule that the group's members break while they serve together, "" = none.

    A group that has lost a rank, or of which one is stuck or did not hear a vote, does not serve: it re-forms, or its engine is told.
    """
    members = {number: ranks[number] for number in group.members}
    rules: list[tuple[str, Callable[[Shape, Members], bool]]] = [
        ("two transfers of one rank at once", _two_transfers),
        ("a slot was overwritten with weights that are not its expert's", _overwritten),
    ]
    if all(rank.alive and not rank.left for rank in members.values()):
        # What an engine routes by is not in a rank's hands: where it fails, the rank says so and is stuck.
        if profile is Profile.STAGED or all(
            rank.state not in (RankState.STUCK, RankState.COMMITTING) for rank in members.values()
        ):
            rules.append(("ranks that serve together use two maps", _two_maps))
        # An engine that mends what it wrote wrong serves it until then, and says so.
        if all(rank.state not in (RankState.STUCK, RankState.COMMITTING) for rank in members.values()):
            rules += [
                ("a rank serves from a slot whose weights are not what its map says", _unverified),
                ("tokens go to a rank that has left the group", _gone),
                ("an expert has no live copy", _no_copy),
            ]
    return next((name for name, broken in rules if broken(shape, members)), "")


def _two_transfers(_shape: Shape, members: Members) -> bool:
    return any(rank.leaving and rank.arrived is Arrived.RUNNING for rank in members.values())


def _overwritten(_shape: Shape, members: Members) -> bool:
    return any(WRONG in held for rank in members.values() for held in rank.holds)


def _two_maps(_shape: Shape, members: Members) -> bool:
    return len({rank.serves for rank in members.values()}) > 1


def _unverified(shape: Shape, members: Members) -> bool:
    return any(
        expert not in (EMPTY, held[place])
        for number, rank in members.items()
        for row, held in zip(rank.serves, rank.holds, strict=True)
        for place, expert in enumerate(own(shape, row, number))
    )


def _gone(shape: Shape, members: Members) -> bool:
    rows = {row for rank in members.values() for row in rank.serves}
    used = {slot // shape.width for row in rows for slot, expert in enumerate(row) if expert != EMPTY}
    return not used <= set(members)


def _no_copy(shape: Shape, members: Members) -> bool:
    layers = zip(*(rank.holds for rank in members.values()), strict=True)
    return any(not set(range(shape.experts)) <= {x for held in layer for x in held} for layer in layers)
