"""Stray offers: what another program, an operator or a bug could put into the store, each wrong in one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol.check.world import Offer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.world import Control, Group, Row, Shape


def strays(shape: Shape, serves: tuple[Row, ...], control: Control, group: Group) -> Iterator[Offer]:
    """One offer for each thing that can be wrong with an offer; all else in it is right. ``serves``: the live rows."""
    target = shape.target
    whole = len(group.members) * shape.width == len(target)
    good = Offer(99, 0, 1, control.fence, group.run, 0, serves[0], target, target, group.model)
    twice = tuple(target[0] if expert == 1 else expert for expert in target)
    other = (*target[shape.width :], *target[: shape.width])
    if not whole:
        yield good._replace(flaw="a slot of no member")
        return
    yield good._replace(pool=1, flaw="another pool")
    yield good._replace(named=twice, target=twice, flaw="an expert without a slot")
    yield good._replace(target=other, flaw="another row than its digest names")
    yield good._replace(base=other, flaw="another base")
    yield good._replace(run=group.run + 7, flaw="another run")
    yield good._replace(model=group.model + 1, flaw="another model")
    if len(serves) > 1:
        yield good._replace(layer=1, base=serves[1], flaw="a wave ahead of time")
    if control.fence > 0:
        yield good._replace(term=control.fence - 1, flaw="an older term")
