"""What an engine that moves by itself makes of an offer that its group has agreed to: one layer, committed on all ranks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol.check.ranks import Gate
from eplb.protocol.check.world import EMPTY, own
from eplb.protocol.facts import Known, RankState
from eplb.protocol.rank import Event
from eplb.protocol.refusals import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.ranks import Ranks
    from eplb.protocol.check.world import Group, Left, Offer, Rank


class Commits:
    """Ends of an engine's move; every decision about it is the protocol's own."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def ends(self, ranks: tuple[Rank, ...], group: Group, left: Left) -> Iterator[Gate]:
        """The engines commit: well, or with the changed slots of one rank, or the row that its router reads, as they were."""
        members = [ranks[number] for number in group.members]
        offer = members[0].hand
        if offer is None or any(rank.state is not RankState.COMMITTING for rank in members):
            return
        here = {expert for rank in members for expert in rank.holds[offer.layer]}
        for deaf in (None, *group.members):
            less = left if deaf is None else left.spend("writes")
            if less is None:
                continue
            now = tuple(
                self._commit(rank, number, offer, here if number != deaf else set())
                if number in group.members
                else rank
                for number, rank in enumerate(ranks)
            )
            name = "the engines commit" if deaf is None else "the engines commit, a slot deaf"
            yield Gate(name, now, less, fault=deaf is not None)
            if deaf is not None and offer.target != ranks[deaf].serves[offer.layer]:
                kept = self._commit(ranks[deaf], deaf, offer, here, routes=False)
                yield Gate(
                    "the engines commit, a router keeps its row",
                    tuple(
                        kept if n == deaf else self._commit(r, n, offer, here) if n in group.members else r
                        for n, r in enumerate(ranks)
                    ),
                    less,
                    fault=True,
                )

    def _commit(self, rank: Rank, number: int, offer: Offer, here: set[int], *, routes: bool = True) -> Rank:
        """``here``: experts that the engine can bring; a slot that is to get another keeps what it held. ``routes`` by the new row."""
        shape, layer = self._ranks.shape, offer.layer
        target, row = own(shape, offer.target, number), own(shape, rank.serves[layer], number)
        slots = tuple(
            expert if expert not in (EMPTY, before) and expert in here else held
            for expert, before, held in zip(target, row, rank.holds[layer], strict=True)
        )
        wrong = not routes or any(
            expert not in (EMPTY, held) for expert, held in zip(target, slots, strict=True)
        )
        found = Known(weights_fault=Refusal(Code.WEIGHTS_DIFFER, "read back wrong") if wrong else None)
        serves = offer.target if routes else rank.serves[layer]
        done = self._ranks.decide(rank, Event.LAYER_COMMITTED, offer, Known())
        rank = self._ranks.take(rank, done, offer)._replace(
            holds=(*rank.holds[:layer], slots, *rank.holds[layer + 1 :]),
            serves=(*rank.serves[:layer], serves, *rank.serves[layer + 1 :]),
            served=rank.served | {(layer, serves)},
        )
        return self._ranks.take(rank, self._ranks.decide(rank, Event.WRITTEN, offer, found), offer)
