"""The one offer that a rank holds between the vote to stage it and the vote to switch, and the doubts about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.agent.membership import stray_slot
from eplb.agent.offers import check_offer, offer_digest
from eplb.agent.refusal import Code, Refusal
from eplb.agent.rounds import own_arrivals
from eplb.agent.staging import stage
from eplb.agent.transfer import Transfer
from eplb.agent.wire import decode_offer
from eplb.errors import OfferError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eplb.agent.header import Header
    from eplb.agent.live import LiveMap
    from eplb.agent.side import RankSide
    from eplb.agent.staging import Staging
    from eplb.agent.wire import Offer

APPLY_WAIT_S = 0.5
"""Rank 0 may know that a transfer has ended a moment before this rank's own thread does."""


@dataclass(slots=True)
class Hand:
    """A judged offer with memory for its arrivals.

    ``seen_s`` by the rank's own monotonic clock; ``rows``: int32 [layers, slots], a copy of the live map of that moment.
    """

    offer: Offer
    digest: int
    seen_s: float
    rows: NDArray[np.int32]
    staging: Staging
    transfer: Transfer | None = None

    def expired(self, now_s: float) -> bool:
        """True when no vote was taken in the time that the offer gave."""
        return now_s - self.seen_s > self.offer.expires_after_s

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

    def check(self, header: Header, live: LiveMap, term_seen: int, now_s: float) -> Refusal | None:
        """The first reason against switching now, or None."""
        offer = self.offer
        if header.offer_digest != self.digest:
            return Refusal(
                Code.OFFER_DIFFERS, f"this rank has prepared offer {offer.key!r}, not the one voted on"
            )
        if offer.term < term_seen:
            return Refusal(Code.OLD_TERM, f"offer has term {offer.term}, this rank has seen {term_seen}")
        if self.expired(now_s):
            return Refusal(
                Code.EXPIRED, f"seen {now_s - self.seen_s:.1f} s ago, good for {offer.expires_after_s} s"
            )
        stale = [c.layer for c in offer.changes if int(live.digests[c.layer]) != c.base_digest]
        if stale:
            return Refusal(Code.BASE_DIFFERS, f"layer {stale[0]}: the live map is no longer the offer's base")
        return self._check_transfer()

    def _check_transfer(self) -> Refusal | None:
        if self.transfer is None or not self.transfer.wait(APPLY_WAIT_S):
            return Refusal(Code.NOT_PREPARED, "the transfer into staging has not ended")
        if self.transfer.refusals:
            rank, code, sentence = self.transfer.refusals[0]
            return Refusal(Code(code), f"rank {rank}: {sentence}")
        return None


def judge_offer(
    side: RankSide,
    live: LiveMap,
    raw: bytes,
    header: Header,
    *,
    term_seen: int,
    now_s: float,
    barred: Refusal | None,
) -> tuple[str, Hand | Refusal]:
    """Read and validate an offer and make room for it: (its key or "", what to hold or why not); never raises.

    ``barred`` is why this rank can take no offer now, however sound; no room is made then.
    """
    key = ""
    try:
        if offer_digest(raw) != header.offer_digest:
            return key, Refusal(Code.DAMAGED_OFFER, "the bytes are not those that the header names")
        offer = decode_offer(raw)
        key = offer.key
        refusal = (
            check_offer(side.facts, live, offer, term_seen)
            or stray_slot(side.facts, side.members, offer.changes)
            or barred
        )
        if refusal is not None:
            return key, refusal
        rows = live.rows.copy()
        staging = stage(side, own_arrivals(side.facts, side.rank, rows, offer.changes))
    except OfferError as error:
        return key, Refusal(Code.DAMAGED_OFFER, f"{error!s:.200}")
    except Exception as error:  # noqa: BLE001 - nothing between header and vote may raise
        return key, Refusal.of(Code.INTERNAL, error)
    if isinstance(staging, Refusal):
        return key, staging
    return key, Hand(offer, header.offer_digest, now_s, rows, staging)
