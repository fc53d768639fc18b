"""The first member's choice at a gate: what its cache of the store asks for, and whether the group can be asked now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.agent.delegated import Move
from eplb.agent.header import MAX_OFFER_BYTES, MAX_TERM, Action
from eplb.agent.offers import already_live, offer_digest
from eplb.agent.wire import decode_offer
from eplb.errors import MigrationError
from eplb.protocol import Asked, Effect, Event, Known, RankState

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.facts import PoolFacts
    from eplb.agent.hand import Hand
    from eplb.agent.link import Link, Wanted
    from eplb.agent.live import LiveMap
    from eplb.agent.standing import Standing
    from eplb.protocol import Transition


class First:
    """The part of the rank that reads the store for its group; ``clock`` in monotonic seconds."""

    def __init__(
        self,
        facts: PoolFacts,
        link: Link | None,
        live: LiveMap,
        standing: Standing,
        clock: Callable[[], float],
    ) -> None:
        self._facts, self._link, self._live = facts, link, live
        self._standing, self._clock = standing, clock

    def choose(self) -> tuple[Action, bytes | None]:
        """What the group is to do at this gate, and the offer's bytes if it is to be asked.

        Raises:
            MigrationError: the link names a term that no header can carry.
        """
        wanted = self._link.wanted() if self._link else None
        if wanted is None or self._refused(
            Event.LOOKED, Asked(), Known(cache_age_s=self._clock() - wanted.read_s)
        ):
            return Action.KEEP, None
        if not 0 <= wanted.term <= MAX_TERM:
            raise MigrationError(f"the link names term {wanted.term}, must be 0 to 2**53; nothing is done")
        self._standing.term_seen = max(self._standing.term_seen, wanted.term)
        if isinstance(self._standing.hand, Move):
            return Action.KEEP, None
        if self._standing.hand is not None:
            return self._with_hand(self._standing.hand, wanted), None
        if (
            wanted.offer is None
            or len(wanted.offer) > MAX_OFFER_BYTES
            or not self._asks(wanted.offer, wanted)
        ):
            return Action.KEEP, None
        return Action.PREPARE, wanted.offer

    def _with_hand(self, hand: Hand, wanted: Wanted) -> Action:
        same = wanted.offer is not None and offer_digest(wanted.offer) == hand.digest
        if self._refused(Event.COMPARED, hand.asked, Known(still_wanted=same)):
            return Action.KEEP
        arrived, failure = hand.arrived()
        due = self._take(Event.CALL_DUE, hand.asked, Known(arrived=arrived, failure=failure))
        return Action.APPLY if Effect.CALL_VOTE in due.effects else Action.KEEP

    def _asks(self, raw: bytes, wanted: Wanted) -> bool:
        digest, standing = offer_digest(raw), self._standing
        known = Known(
            stuck=standing.state is RankState.STUCK,
            closed=standing.has_closed(digest),
            leaving=any(not transfer.done for transfer in standing.leaving),
        )
        if self._refused(Event.FOUND, Asked(digest=digest), known):
            return False
        try:
            offer = decode_offer(raw)
            event = Event.FOUND_LIVE if already_live(self._facts, self._live, offer) else Event.WEIGHED
            aged = Known(age_s=self._clock() - wanted.first_seen_s, good_for_s=offer.expires_after_s)
        except Exception:  # noqa: BLE001 - the group refuses it, so that this refusal is reported like any other
            return True
        found = self._take(event, Asked(digest=digest, key=offer.key), aged)
        return Effect.ASK_GROUP in found.effects

    def _refused(self, event: Event, asked: Asked, known: Known) -> bool:
        return self._take(event, asked, known).refusal is not None

    def _take(self, event: Event, asked: Asked, known: Known) -> Transition:
        done = self._standing.decide(event, asked, known)
        self._standing.take(done, asked)
        return done
