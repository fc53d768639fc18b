"""The only writer of offers: waves of a plan, one at a time, each checked against the live map at the moment of writing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eplb.agent.header import MAX_OFFER_BYTES
from eplb.agent.wire import Offer, encode_offer
from eplb.errors import PlanError, PlanStale
from eplb.migration.desired import Desired, of_one_run
from eplb.migration.status import MigrationStatus, State, observe
from eplb.migration.waves import waves

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange, LiveRecord
    from eplb.migration.plan import Plan


class Actuator:
    """Writes offers through ``write_desired(term, fields)``, which is to refuse an older term than the store's.

    ``offer_expires_s`` seconds that ranks hold an offer without a vote; ``staging_slots`` and ``bytes_per_rank`` bound a wave
    (see :func:`eplb.migration.waves.waves`). It keeps nothing between calls: a new leader goes on from the store.
    """

    def __init__(
        self,
        facts: PoolFacts,
        write_desired: Callable[[int, dict[str, bytes]], None],
        *,
        offer_expires_s: float = 60.0,
        staging_slots: int | None = None,
        bytes_per_rank: int | None = None,
    ) -> None:
        self._facts = facts
        self._write_desired = write_desired
        self._offer_expires_s = offer_expires_s
        self._staging_slots = staging_slots
        self._bytes_per_rank = bytes_per_rank

    def observe(self, desired: Desired, live: dict[int, LiveRecord], now_ms: int) -> MigrationStatus:
        """Where the migration stands; see :func:`eplb.migration.status.observe`."""
        return observe(self._facts, desired, live, now_ms)

    def begin(
        self, plan: Plan, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int
    ) -> Desired:
        """Offer the first wave of a plan; its base is checked against the live map again.

        Raises:
            PlanStale: ranks are missing or disagree, or the live map is not the plan's base.
            PlanError: a wave is on offer, the plan changes nothing, or a layer does not fit into staging.
        """
        live = of_one_run(self._facts, live)
        status = self.observe(desired, live, now_ms)
        if status.busy:
            raise PlanError(f"plan {plan.plan_id}: {status.offer} is {status.state}; one wave at a time")
        rows = self._live_map(live)
        if live[0].digests != plan.base_digests:
            raise PlanStale(f"plan {plan.plan_id}: the live map is no longer its base; plan anew")
        version = 1 + max([desired.map_version, *(record.map_version for record in live.values())])
        return self._offer(Desired(term, version, plan), self._waves(plan, rows), 0, now_ms)

    def offer_next(self, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int) -> Desired:
        """Offer the wave after the one that all ranks serve.

        Raises:
            PlanError: the wave on offer is not live on all ranks, or nothing is left to move.
            PlanStale: ranks are missing or disagree, or a layer serves neither base nor target.
        """
        live = of_one_run(self._facts, live)
        status = self.observe(desired, live, now_ms)
        if status.state is not State.WAVE_LIVE or desired.plan is None or desired.offer is None:
            raise PlanError(f"no next wave: {status.state}: {status.sentence}")
        left = self._waves(desired.plan, self._live_map(live))
        return self._offer(replace(desired, term=term), left, desired.offer.wave + 1, now_ms)

    def offer_again(self, desired: Desired, *, term: int, now_ms: int) -> Desired:
        """Offer the same wave under a new leader's term, because ranks refuse the term before it.

        Raises:
            PlanError: nothing is on offer.
        """
        if desired.offer is None:
            raise PlanError("nothing is on offer that could be offered again")
        offer = replace(desired.offer, term=term)
        return self._write(replace(desired, term=term, offer=offer, offered_ms=now_ms, damaged=()))

    def close(self, desired: Desired, *, term: int) -> Desired:
        """Take the last offer off once the plan is live; the desired map stays on record."""
        return self._write(replace(desired, term=term, offer=None, damaged=()))

    def withdraw(self, desired: Desired, *, term: int) -> Desired:
        """Take the offer and its plan off: refused, expired or unwanted. Ranks let go of what they staged."""
        return self._write(replace(desired, term=term, offer=None, plan=None, damaged=()))

    def _waves(self, plan: Plan, rows: NDArray[np.int32]) -> list[tuple[LayerChange, ...]]:
        return waves(
            self._facts, plan, rows, staging_slots=self._staging_slots, bytes_per_rank=self._bytes_per_rank
        )

    def _live_map(self, live: dict[int, LiveRecord]) -> NDArray[np.int32]:
        missing = [rank for rank in range(self._facts.ranks) if rank not in live]
        rows = live[0].physical_to_logical() if 0 in live else None
        if missing or rows is None:
            raise PlanStale(
                f"no live map: ranks {missing or [0]} have not reported what they serve; wait for them"
            )
        other = [rank for rank, record in live.items() if record.digests != live[0].digests]
        if other:
            raise PlanStale(
                f"ranks {other} serve another map than rank 0; wait until they agree or restart them"
            )
        return rows

    def _offer(
        self, desired: Desired, left: list[tuple[LayerChange, ...]], wave: int, now_ms: int
    ) -> Desired:
        plan = desired.plan
        if plan is None or not left:
            raise PlanError("nothing is left to move")
        offer = Offer(
            pool=self._facts.pool,
            term=desired.term,
            plan_id=plan.plan_id,
            wave=wave,
            waves=wave + len(left),
            map_version=desired.map_version,
            expires_after_s=self._offer_expires_s,
            changes=left[0],
        )
        size = len(encode_offer(offer))
        if size > MAX_OFFER_BYTES:
            raise PlanError(
                f"plan {plan.plan_id}: wave {wave + 1} is an offer of {size} bytes, ranks read at most {MAX_OFFER_BYTES}; "
                "lower migration.staging_slots, so that waves have fewer layers"
            )
        return self._write(replace(desired, offer=offer, offered_ms=now_ms, damaged=()))

    def _write(self, desired: Desired) -> Desired:
        self._write_desired(desired.term, desired.fields())
        return desired
