"""What the ranks of one pool report about themselves, read from the store's live records."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import live_map_digest
from eplb.migration import read_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LiveRecord


@dataclass(frozen=True, slots=True)
class LiveRanks:
    """The readable live records of one pool, by rank; ``unreadable`` counts those that are damaged.

    Only rank 0's record carries the map's rows and the pool's facts.
    """

    records: dict[int, LiveRecord]
    unreadable: int = 0

    @classmethod
    def read(cls, raw: Mapping[int, bytes]) -> LiveRanks:
        """Decode what ``Store.read_live`` gave; a damaged record counts as none."""
        records, damaged = read_records(raw)
        return cls(records, len(damaged))

    @property
    def first(self) -> LiveRecord | None:
        """Rank 0's record."""
        return self.records.get(0)

    @property
    def rows(self) -> NDArray[np.int32] | None:
        """The live map, int32 [layers, slots], None while rank 0 has not reported."""
        return None if self.first is None else self.first.physical_to_logical()

    @property
    def shares(self) -> NDArray[np.float64] | None:
        """The live shares, float64 [layers, slots], None while dispatch is not weighted."""
        first = self.first
        return (
            None
            if first is None or first.shares_rows is None
            else np.array(first.shares_rows, dtype=np.float64)
        )

    @property
    def layer_digests(self) -> NDArray[np.uint64] | None:
        """Digests of the live map by layer, uint64 [layers]."""
        return None if self.first is None else np.array(self.first.digests, dtype=np.uint64)

    @property
    def live_digest(self) -> int:
        """Digest of the whole live map, 0 while it is unknown."""
        digests = self.layer_digests
        return 0 if digests is None else live_map_digest(digests)

    @property
    def map_version(self) -> int:
        """The highest map_version that any rank reports."""
        return max((record.map_version for record in self.records.values()), default=0)

    @property
    def term_seen(self) -> int:
        """The highest term that any rank has seen."""
        return max((record.term_seen for record in self.records.values()), default=0)

    def problem(self, facts: PoolFacts) -> str:
        """How the ranks differ from the configuration or from each other, "" = they do not."""
        first = self.first
        if first is None or first.facts is None:
            return ""
        for field in fields(facts):
            ours, theirs = getattr(facts, field.name), getattr(first.facts, field.name)
            if field.name == "bytes_per_expert" and 0 in (ours, theirs):
                continue
            if ours != theirs:
                return f"the ranks report {field.name} {theirs}, the configuration has {ours}; correct one of them"
        beyond = [rank for rank in self.records if rank >= facts.ranks]
        return f"rank {min(beyond)} reports, the pool has ranks 0 to {facts.ranks - 1}" if beyond else ""
