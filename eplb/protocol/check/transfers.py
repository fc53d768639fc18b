"""How a transfer that runs can end: well, not at all, on some ranks only, or with damage that a comparison finds or misses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.protocol.check.ranks import Gate
from eplb.protocol.facts import Arrived, Known, RankState
from eplb.protocol.rank import Event, decide_rank
from eplb.protocol.refusals import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.protocol.check.world import Group, Left, Rank


class Transfers:
    """Ends of transfers under a set of guards."""

    def __init__(self, guards: frozenset[str]) -> None:
        self.guards = guards

    def ends(self, ranks: tuple[Rank, ...], group: Group, left: Left) -> Iterator[Gate]:
        """The transfer that runs ends: well, not at all, or with damage on one rank."""
        running = [number for number in group.members if ranks[number].alive and ranks[number].transferring]
        if not running:
            return
        whole = all(ranks[number].alive for number in group.members)
        if whole:
            yield Gate("transfer ends", self._ended(ranks, running, Arrived.COMPLETE), left)
        else:
            yield Gate("transfer breaks", self._ended(ranks, running, Arrived.FAILED), left)
        less = left.spend("transfers")
        if less is None or not whole:
            return
        yield Gate("transfer fails", self._ended(ranks, running, Arrived.FAILED), less, fault=True)
        for number in running:
            if ranks[number].hand is None:
                continue
            half = self._ended(ranks, [number], Arrived.FAILED)
            yield Gate(
                "transfer ends on some",
                self._ended(half, [n for n in running if n != number], Arrived.COMPLETE),
                less,
                fault=True,
            )
            for kind in ("bytes", "layout"):
                yield Gate(f"{kind} damaged", self._damaged(ranks, running, number, kind), less, fault=True)

    def _damaged(
        self, ranks: tuple[Rank, ...], running: list[int], number: int, kind: str
    ) -> tuple[Rank, ...]:
        refusal = Refusal(Code.WEIGHTS_DIFFER, kind)
        known = Known(weights_fault=refusal) if kind == "bytes" else Known(probe_fault=refusal)
        caught = decide_rank(RankState.STAGING, Event.ARRIVED, known=known, guards=self.guards).refusal
        if caught is not None:
            return self._ended(ranks, running, Arrived.FAILED)
        ended = self._ended(ranks, running, Arrived.COMPLETE)
        return tuple(rank._replace(staged=kind) if n == number else rank for n, rank in enumerate(ended))

    @staticmethod
    def _ended(ranks: tuple[Rank, ...], which: list[int], how: Arrived) -> tuple[Rank, ...]:
        def end(rank: Rank) -> Rank:
            arrived = how if rank.arrived is Arrived.RUNNING else rank.arrived
            return rank._replace(arrived=arrived, leaving=False)

        return tuple(end(rank) if number in which else rank for number, rank in enumerate(ranks))
