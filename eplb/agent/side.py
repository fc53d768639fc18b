"""What one rank brings to a migration, unchanged for the life of its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.protocol import ALL_GUARDS, Known

if TYPE_CHECKING:
    from collectors.facts import PoolFacts
    from eplb.agent.digests import DigestTable
    from eplb.agent.memory import ExpertMemory, Tensors
    from eplb.agent.transport import Transport


@dataclass(frozen=True, slots=True)
class Member:
    """Which rank of which pool and group this is, and of what model; ``members`` pool ranks of the group by place in it."""

    facts: PoolFacts
    rank: int
    members: tuple[int, ...]
    model_digest: int


@dataclass(frozen=True, slots=True)
class RankSide:
    """Facts, weights, the way they travel, and what they must be.

    ``rank`` number in the pool; ``members`` pool ranks of the group by place in it.
    ``staging_bytes_max`` bounds the memory beside the live storage, in bytes; None = a wave may take what it needs.
    ``guards`` names of the guards that hold; fewer than all are for negative controls.
    """

    facts: PoolFacts
    rank: int
    members: tuple[int, ...]
    memory: ExpertMemory
    transport: Transport
    table: DigestTable
    staging_bytes_max: int | None = None
    guards: frozenset[str] = ALL_GUARDS

    def owns(self, slot: int) -> bool:
        """True for a group-wide slot id of this rank."""
        return slot // self.facts.slots_per_rank == self.rank

    def compare(self, layer: int, expert: int, tensors: Tensors) -> Known:
        """What a comparison of one expert's bytes and output with the table finds wrong."""
        weights = self.table.check_bytes(self.memory, layer, expert, tensors)
        if weights is not None and "weights_right" in self.guards:
            return Known(weights_fault=weights)
        probe = self.table.check_probe(self.memory, layer, expert, tensors)
        return Known(weights_fault=weights, probe_fault=probe)
