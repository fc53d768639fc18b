"""What one rank brings to a migration, unchanged for the life of its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectors.facts import PoolFacts
    from eplb.agent.digests import DigestTable
    from eplb.agent.memory import ExpertMemory
    from eplb.agent.transport import Transport


@dataclass(frozen=True, slots=True)
class RankSide:
    """Facts, weights, the way they travel, and what they must be.

    ``rank`` number in the pool; ``members`` pool ranks of the group by place in it.
    ``staging_bytes_max`` bounds the memory beside the live storage, in bytes; None = a wave may take what it needs.
    """

    facts: PoolFacts
    rank: int
    members: tuple[int, ...]
    memory: ExpertMemory
    transport: Transport
    table: DigestTable
    staging_bytes_max: int | None = None

    def owns(self, slot: int) -> bool:
        """True for a group-wide slot id of this rank."""
        return slot // self.facts.slots_per_rank == self.rank
