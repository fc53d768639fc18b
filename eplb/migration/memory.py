"""The price in memory: what redundant experts and staging take from every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.errors import PlanError

if TYPE_CHECKING:
    from collectors.facts import PoolFacts


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the rank that needs most: slots beyond one copy of each expert, in all layers, and staging for one wave."""

    redundant_bytes: int
    staging_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.redundant_bytes + self.staging_bytes


def memory_estimate(facts: PoolFacts, wave_slots: int) -> MemoryEstimate:
    """What a pool takes beyond one copy of each expert; ``wave_slots``: most experts that one wave brings to a rank.

    Redundant slots are dealt over all ranks, so the fullest holds redundant / ranks of them, rounded up, in every layer.
    """
    redundant = -(-(facts.slots - facts.experts) // facts.ranks)
    return MemoryEstimate(
        redundant_bytes=redundant * facts.layers * facts.bytes_per_expert,
        staging_bytes=wave_slots * facts.bytes_per_expert,
    )


def check_headroom(estimate: MemoryEstimate, headroom_bytes: int | None) -> None:
    """Refuse what does not fit; ``headroom_bytes``: memory of a rank that may be taken, None = unknown, never refused.

    Raises:
        PlanError: the estimate is more than the headroom.
    """
    if headroom_bytes is not None and estimate.total_bytes > headroom_bytes:
        raise PlanError(
            f"redundant experts need {estimate.redundant_bytes} bytes and staging {estimate.staging_bytes} on a rank, together "
            f"{estimate.total_bytes}; the headroom is {headroom_bytes}: lower slots_per_rank or migration.staging_slots"
        )
