"""The one offer that a rank holds between the vote to take it and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eplb.agent.offers import asked_of, offer_digest
from eplb.agent.refusal import Code, Refusal
from eplb.agent.rounds import own_arrivals
from eplb.agent.staging import stage
from eplb.agent.tables import tables_of
from eplb.agent.transfer import Transfer
from eplb.agent.wire import decode_offer
from eplb.errors import OfferError
from eplb.protocol import Arrived, Asked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.live import LiveMap
    from eplb.agent.side import RankSide
    from eplb.agent.staging import Staging
    from eplb.agent.tables import Tables
    from eplb.agent.wire import Offer

APPLY_WAIT_S = 0.5
"""Rank 0 may know that a transfer has ended a moment before this rank's own thread does."""


@dataclass(slots=True)
class Hand:
    """An offer that was taken, with memory for its arrivals and the tables of its rows.

    ``seen_s`` by the rank's own monotonic clock; ``rows``: int32 [layers, slots], a copy of the live map of that moment.
    """

    offer: Offer
    asked: Asked
    seen_s: float
    rows: NDArray[np.int32] = field(repr=False)
    staging: Staging
    tables: Tables = field(repr=False)
    transfer: Transfer | None = None

    @property
    def digest(self) -> int:
        """Identity of the offer's bytes."""
        return self.asked.digest

    @property
    def done(self) -> bool:
        """True once the results of all ranks are known here, or this rank's transfer gave up."""
        return self.transfer is not None and self.transfer.done

    def begin(self, side: RankSide, serial: int) -> None:
        """Start the transfer in the background; ``serial`` counts the waves, the same on all ranks."""
        self.transfer = Transfer(side, self.staging, self.rows, self.offer.changes, serial)
        self.transfer.start()

    def let_go(self) -> Transfer | None:
        """Free the staging, now or when the transfer ends; returns a transfer that still runs."""
        if self.transfer is None:
            self.staging.release()
            return None
        self.transfer.leave()
        return None if self.transfer.done else self.transfer

    def arrived(self, wait_s: float = 0.0) -> tuple[Arrived, Refusal | None]:
        """How far the transfer is on all ranks, waited for at most ``wait_s`` seconds, and the first reason if it failed."""
        if self.transfer is None or not self.transfer.wait(wait_s):
            return Arrived.RUNNING, None
        if not self.transfer.refusals:
            return Arrived.COMPLETE, None
        rank, code, sentence = self.transfer.refusals[0]
        return Arrived.FAILED, Refusal(Code(code), f"rank {rank}: {sentence}")


def read_offer(facts: PoolFacts, raw: bytes, named: int) -> tuple[Asked, Offer | None, Refusal | None]:
    """What the bytes ask for, the offer itself, and why it cannot be read; ``named`` is its identity in the header."""
    unread = Asked(digest=named)
    try:
        if offer_digest(raw) != named:
            return unread, None, Refusal(Code.DAMAGED_OFFER, "the bytes are not those that the header names")
        offer = decode_offer(raw)
        return asked_of(facts, offer, named), offer, None
    except OfferError as error:
        return unread, None, Refusal(Code.DAMAGED_OFFER, f"{error!s:.200}")
    except Exception as error:  # noqa: BLE001 - nothing between header and vote may raise
        return unread, None, Refusal.of(Code.INTERNAL, error)


def make_room(side: RankSide, live: LiveMap, asked: Asked, offer: Offer, now_s: float) -> Hand | Refusal:
    """Allocate staging for what the offer brings to this rank, or say why not."""
    try:
        rows = live.rows.copy()
        tables = tables_of(side.facts, offer.changes)
        staging = stage(side, own_arrivals(side.facts, side.rank, rows, offer.changes))
    except Exception as error:  # noqa: BLE001 - nothing between header and vote may raise
        return Refusal.of(Code.INTERNAL, error)
    return staging if isinstance(staging, Refusal) else Hand(offer, asked, now_s, rows, staging, tables)
