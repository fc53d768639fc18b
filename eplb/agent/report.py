"""What a rank reports: its live record, left with the link at every gate and marked when there is news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.agent.wire import LiveRecord
from eplb.protocol import RankState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.agent.link import Link
    from eplb.agent.live import LiveMap
    from eplb.agent.side import Member
    from eplb.agent.standing import Standing

RELOADED_NAMED = 16
"""Experts that a record names; the rest is counted."""


class Reporter:
    """Makes the live records of one rank in one life of its group; the ``first`` member's carry the whole map.

    ``reloaded`` (layer, slot, expert) that this life began by loading from a checkpoint.
    """

    def __init__(
        self,
        link: Link,
        member: Member,
        run_id: int,
        incarnation: int,
        reloaded: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self._link, self._member = link, member
        self._run_id, self._incarnation = run_id, incarnation
        self._reloaded = tuple((layer, expert) for layer, _, expert in reloaded)
        self._told: tuple[object, ...] = ()

    def report(self, standing: Standing, live: LiveMap, group_step: int) -> None:
        """Leave a record of what is served and of the last offer."""
        member = self._member
        first = member.rank == member.members[0]
        stuck = standing.state is RankState.STUCK
        record = LiveRecord(
            pool=member.facts.pool,
            rank=member.rank,
            incarnation=self._incarnation,
            run_id=self._run_id,
            term_seen=standing.term_seen,
            map_version=live.map_version,
            group_step=group_step,
            state=str(standing.state),
            offer=standing.offer_key,
            digests=live.wire_digests,
            members=member.members,
            refusals=standing.refusals if first or stuck else (),
            map_rows=live.wire_rows if first else None,
            shares_rows=live.wire_shares if first else None,
            facts=member.facts if first else None,
            model_digest=member.model_digest,
            reloaded=self._reloaded[:RELOADED_NAMED] if first else (),
            reloaded_experts=len(self._reloaded) if first else 0,
        )
        news = (
            standing.state, standing.offer_key, standing.term_seen, live.map_version, live.wire_digests, standing.refusals,
        )  # fmt: skip
        self._link.publish(record, changed=news != self._told)
        self._told = news
