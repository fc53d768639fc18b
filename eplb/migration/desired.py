"""What the store asks for and what ranks report, as facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from eplb.agent.wire import LiveRecord, Offer, decode_live, decode_offer, encode_offer
from eplb.errors import OfferError
from eplb.migration.membership import serving_run
from eplb.migration.plan_wire import decode_plan, encode_plan
from eplb.protocol import ALL_GUARDS, ranks_of_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectors.facts import PoolFacts
    from eplb.migration.plan import Plan

T = TypeVar("T")

MOST_COUNT = 1 << 62
"""Terms, versions and times are below; what is not was not written by a daemon."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired map as a plan, and the wave of it that is on offer.

    ``map_version`` the version that the pool serves once the plan is live; ``offered_ms`` store time at which the offer was
    written; ``damaged`` names of fields that could not be read and count as absent.
    """

    term: int = 0
    map_version: int = 0
    plan: Plan | None = None
    offer: Offer | None = None
    offered_ms: int = 0
    damaged: tuple[str, ...] = ()

    def fields(self) -> dict[str, bytes]:
        """Fields for the store; the term is the fence and is given beside them."""
        return {
            "map_version": str(self.map_version).encode(),
            "map": b"" if self.plan is None else encode_plan(self.plan),
            "offer": b"" if self.offer is None else encode_offer(self.offer),
            "offered_ms": str(self.offered_ms).encode(),
        }


def read_desired(fields: Mapping[str, bytes]) -> Desired:
    """Read the fields of the desired hash; what is damaged is named and counts as absent."""
    damaged: list[str] = []
    return Desired(
        term=_number(fields, "term", damaged),
        map_version=_number(fields, "map_version", damaged),
        plan=_record(fields, "map", decode_plan, damaged),
        offer=_record(fields, "offer", decode_offer, damaged),
        offered_ms=_number(fields, "offered_ms", damaged),
        damaged=tuple(damaged),
    )


def read_records(raw: Mapping[int, bytes]) -> tuple[dict[int, LiveRecord], dict[int, str]]:
    """Live records by rank, and why others could not be read."""
    records: dict[int, LiveRecord] = {}
    damaged: dict[int, str] = {}
    for rank, data in raw.items():
        try:
            record = decode_live(data)
        except OfferError as error:
            damaged[rank] = str(error)
            continue
        if record.rank == rank:
            records[rank] = record
        else:
            damaged[rank] = f"the record under rank {rank} says that it is rank {record.rank}'s"
    return records, damaged


def of_one_run(
    facts: PoolFacts, records: Mapping[int, LiveRecord], *, guards: frozenset[str] = ALL_GUARDS
) -> dict[int, LiveRecord]:
    """The records that speak of this pool's present group; shape and ranks must be the pool's.

    A record of an earlier life of the group, or of a larger one, says nothing about this one.
    """
    fitting = {
        rank: record
        for rank, record in records.items()
        if 0 <= rank < facts.ranks and len(record.digests) == facts.layers
    }
    runs = {rank: record.run_id for rank, record in fitting.items()}
    present = ranks_of_run(runs, serving_run(facts, fitting), guards=guards)
    return {rank: record for rank, record in fitting.items() if rank in present}


def _number(fields: Mapping[str, bytes], name: str, damaged: list[str]) -> int:
    try:
        found = int(fields.get(name) or 0)
    except ValueError:
        found = -1
    if not 0 <= found < MOST_COUNT:
        damaged.append(name)
        return 0
    return found


def _record(
    fields: Mapping[str, bytes], name: str, decode: Callable[[bytes], T], damaged: list[str]
) -> T | None:
    raw = fields.get(name)
    if not raw:
        return None
    try:
        return decode(raw)
    except OfferError:
        damaged.append(name)
        return None
