"""Which ranks form the group that serves now, from live records alone; a rank that is configured and no member is lost.

A record stays in the store when its rank is gone, so records of several lives lie side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb import protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LiveRecord


def serving_run(facts: PoolFacts, records: Mapping[int, LiveRecord]) -> int | None:
    """The ``run_id`` of the life that serves now, None without a record; see :func:`eplb.protocol.serving_run`."""
    return protocol.serving_run(
        protocol.Told(record.run_id, _named(facts, record), record.map_rows is not None)
        for record in records.values()
    )


def members_of(facts: PoolFacts, present: Mapping[int, LiveRecord]) -> tuple[int, ...]:
    """Pool ranks of the life that these records, all of one run, speak of; without records all of the pool."""
    return _named(facts, next(iter(present.values()))) if present else tuple(range(facts.ranks))


def first_of(facts: PoolFacts, present: Mapping[int, LiveRecord]) -> LiveRecord | None:
    """The record of the first member, which carries the map; None while it has not reported."""
    return present.get(members_of(facts, present)[0])


def lost_ranks(facts: PoolFacts, members: Iterable[int]) -> tuple[int, ...]:
    """Ranks of the configuration that are no members."""
    return tuple(sorted(set(range(facts.ranks)).difference(members)))


def _named(facts: PoolFacts, record: LiveRecord) -> tuple[int, ...]:
    # A record is untrusted: members that the pool does not have would make every rank wait for them.
    known = tuple(sorted({rank for rank in record.members if 0 <= rank < facts.ranks}))
    return known or tuple(range(facts.ranks))
