"""What the ranks of one pool report about themselves, read from the store's live records."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import live_map_digest
from eplb.migration import of_one_run, read_records
from eplb.migration.membership import lost_ranks, members_of, serving_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LiveRecord


@dataclass(frozen=True, slots=True)
class LiveRanks:
    """The live records of the group that serves now, by rank; only the first member's carries the map's rows and the pool's facts.

    ``members`` pool ranks of the group that serves now, ``lost`` those of the configuration that are none.
    ``damaged`` why a record could not be read, by rank. ``mismatch`` how the ranks differ from the configuration, "" = they
    do not.
    """

    records: dict[int, LiveRecord]
    damaged: dict[int, str]
    members: tuple[int, ...]
    lost: tuple[int, ...]
    mismatch: str = ""

    @classmethod
    def read(cls, raw: Mapping[int, bytes], facts: PoolFacts) -> LiveRanks:
        """Decode what ``Store.read_live`` gave; records of an earlier or larger group are left out."""
        records, damaged = read_records(raw)
        present = of_one_run(facts, records)
        members = members_of(facts, present)
        return cls(present, damaged, members, lost_ranks(facts, members), _mismatch(records, facts))

    @property
    def first(self) -> LiveRecord | None:
        """The record of the group's first member."""
        return self.records.get(self.members[0])

    @property
    def run_id(self) -> int | None:
        """The life of the group that serves now, None while no rank has reported."""
        return next((record.run_id for record in self.records.values()), None)

    @property
    def rows(self) -> NDArray[np.int32] | None:
        """The live map, int32 [layers, slots], None while the first member has not reported."""
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
    def agree(self) -> bool:
        """Whether all ranks that report serve the same map."""
        return len({record.digests for record in self.records.values()}) <= 1

    @property
    def map_version(self) -> int:
        """The map_version that all ranks have reached."""
        return min((record.map_version for record in self.records.values()), default=0)

    @property
    def term_seen(self) -> int:
        """The highest term that any rank has seen."""
        return max((record.term_seen for record in self.records.values()), default=0)

    @property
    def damage(self) -> str:
        """Which rank's record cannot be read, and why; "" = all can."""
        if not self.damaged:
            return ""
        rank, reason = min(self.damaged.items())
        more = f" (and {len(self.damaged) - 1} more)" if len(self.damaged) > 1 else ""
        return f"the live record of rank {rank}{more} is refused: {reason}"

    @property
    def experts_lost(self) -> str:
        """Why this life cannot serve, when an expert is lost; else ""."""
        told = {
            said
            for record in self.records.values()
            for _, code, said in record.refusals
            if code == "expert_lost"
        }
        return "; ".join(sorted(told)[:4])

    @property
    def reloaded(self) -> tuple[tuple[int, int], ...]:
        """The first few (layer, expert) that this life began by loading from a checkpoint."""
        return () if self.first is None else self.first.reloaded

    @property
    def stuck(self) -> tuple[int, ...]:
        """Ranks whose last switch could not be read back, or that left the group."""
        return tuple(sorted(rank for rank, record in self.records.items() if record.state == "stuck"))


def _mismatch(records: Mapping[int, LiveRecord], facts: PoolFacts) -> str:
    run_id = serving_run(facts, records)
    told = [record.facts for record in records.values() if record.run_id == run_id and record.facts]
    if not told:
        return ""
    for field in fields(facts):
        ours, theirs = getattr(facts, field.name), getattr(told[0], field.name)
        if field.name == "bytes_per_expert" and 0 in (ours, theirs):
            continue
        if ours != theirs:
            return (
                f"the ranks report {field.name} {theirs}, the configuration has {ours}; correct one of them"
            )
    return ""
