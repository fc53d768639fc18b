"""Whether the store may be acted on: it must not throw keys away; what is wrong with it and with its records is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from eplb.decisions import Code
from eplb.gate import Verdict, refuse
from eplb.migration import Desired

if TYPE_CHECKING:
    from eplb.ranks import LiveRanks
    from eplb.store.health import StoreHealth

NOTHING_DESIRED = Desired()


class Trust:
    """Says once what is wrong with a pool's store and records, and when it ends."""

    def __init__(self, pool: str, mode: str) -> None:
        self._mode = mode
        self._log = structlog.get_logger("eplb").bind(pool=pool)
        self._told: dict[str, str] = {}

    def judge(
        self, health: StoreHealth, ranks: LiveRanks, desired: Desired = NOTHING_DESIRED
    ) -> Verdict | None:
        """Why no map may be moved now, or None. A store that may evict still serves modes observe and advise.

        A record that cannot be read counts as none, which the gate and the actuator answer for themselves; nor does a field of the
        desired map that cannot.
        """
        self._tell("store_memory", health.sentence)
        self._tell("records_refused", ranks.damage)
        self._tell("offer_not_read", _unread_offer(ranks, desired), anew=True)
        self._tell("desired_not_read", _unread_fields(desired))
        if health.may_evict and self._mode == "auto":
            return refuse(Code.STORE_MAY_EVICT, health.sentence, "maxmemory-policy noeviction")
        return None

    def _tell(self, event: str, sentence: str, *, anew: bool = False) -> None:
        """``anew``: another sentence is news; those that count up or down are not."""
        before, self._told[event] = self._told.get(event, ""), sentence
        if sentence and (not before or (anew and sentence != before)):
            self._log.warning(event, reason=sentence)
        elif before and not sentence:
            self._log.info(f"{event}_well_again")


def _unread_fields(desired: Desired) -> str:
    return f"{', '.join(desired.damaged)} cannot be read and counts as absent" if desired.damaged else ""


def _unread_offer(ranks: LiveRanks, desired: Desired) -> str:
    # Such an offer has no name, so that the wave ends by expiry; without this nobody would be told why.
    first = ranks.first
    if first is None or first.state != "refused" or first.offer or not first.refusals:
        return ""
    if desired.offer is None and "offer" not in desired.damaged:
        # A rank's last word stands until it has another, also about an offer that is gone.
        return ""
    rank, code, sentence = first.refusals[0]
    return f"rank {rank} cannot read what is on offer ({code}): {sentence}"
