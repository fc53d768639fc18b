"""The only writer of offers: waves of a plan, one at a time, each checked against the live map at the moment of writing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eplb.agent.header import MAX_OFFER_BYTES
from eplb.agent.wire import Offer, encode_offer
from eplb.errors import PlanError, PlanStale
from eplb.migration.desired import Desired, of_one_run
from eplb.migration.membership import first_of, members_of
from eplb.migration.plan import remaining
from eplb.migration.status import MigrationStatus, observe
from eplb.migration.waves import merged, waves
from eplb.protocol import ALL_GUARDS, WAITS_FOR, Act, ActFacts, Code, decide_act

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
    ``guards`` names of the guards that hold; fewer than all are for negative controls.
    """

    def __init__(
        self,
        facts: PoolFacts,
        write_desired: Callable[[int, dict[str, bytes]], None],
        *,
        offer_expires_s: float = 60.0,
        staging_slots: int | None = None,
        bytes_per_rank: int | None = None,
        guards: frozenset[str] = ALL_GUARDS,
    ) -> None:
        self._facts = facts
        self._write_desired = write_desired
        self._offer_expires_s = offer_expires_s
        self._staging_slots = staging_slots
        self._bytes_per_rank = bytes_per_rank
        self._guards = guards
        self.pace_bytes: int | None = None
        """Bytes that the next wave should bring to a rank at most; see :mod:`eplb.migration.pace`."""

    def observe(self, desired: Desired, live: dict[int, LiveRecord], now_ms: int) -> MigrationStatus:
        """Where the migration stands; see :func:`eplb.migration.status.observe`."""
        return observe(self._facts, desired, live, now_ms, guards=self._guards)

    def begin(
        self, plan: Plan, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int
    ) -> Desired:
        """Offer the first wave of a plan; its base is checked against the live map again.

        Raises:
            PlanStale: ranks are missing or disagree, or the live map is not the plan's base.
            PlanError: a wave is on offer, the plan changes nothing, or a link does not fit into staging.
        """
        present = self._allow(Act.BEGIN, plan, desired, live, now_ms)
        version = 1 + max([desired.map_version, *(record.map_version for record in present.values())])
        return self._offer(Desired(term, version, plan), present, 0, now_ms)

    def offer_next(self, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int) -> Desired:
        """Offer the wave after the one that all ranks serve.

        Raises:
            PlanError: the wave on offer is not live on all ranks, or nothing is left to move.
            PlanStale: ranks are missing or disagree, or a layer serves neither base nor target.
        """
        present = self._allow(Act.OFFER_NEXT, desired.plan, desired, live, now_ms)
        wave = 0 if desired.offer is None else desired.offer.wave + 1
        return self._offer(replace(desired, term=term), present, wave, now_ms)

    def offer_again(
        self, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int
    ) -> Desired:
        """Offer the same wave under a new leader's term, because ranks refuse the term before it.

        Raises:
            PlanError: nothing is on offer, or it is in doubt.
        """
        self._allow(Act.OFFER_AGAIN, desired.plan, desired, live, now_ms)
        if desired.offer is None:
            raise PlanError("nothing is on offer that could be offered again")
        offer = replace(desired.offer, term=term)
        return self._write(replace(desired, term=term, offer=offer, offered_ms=now_ms, damaged=()))

    def close(self, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int) -> Desired:
        """Take the last offer off once the plan is live; the desired map stays on record.

        Raises:
            PlanError: not all ranks serve what is on offer.
        """
        if desired.offer is not None:
            self._allow(Act.CLOSE, desired.plan, desired, live, now_ms)
        return self._write(replace(desired, term=term, offer=None, damaged=()))

    def withdraw(self, desired: Desired, live: dict[int, LiveRecord], *, term: int, now_ms: int) -> Desired:
        """Take the offer and its plan off: refused, expired or unwanted. Ranks let go of what they staged.

        Raises:
            PlanError: the wave is in doubt, so that it may be live already.
        """
        self._allow(Act.WITHDRAW, desired.plan, desired, live, now_ms)
        return self._write(replace(desired, term=term, offer=None, plan=None, damaged=()))

    def _allow(
        self, act: Act, plan: Plan | None, desired: Desired, live: dict[int, LiveRecord], now_ms: int
    ) -> dict[int, LiveRecord]:
        """The records that count, if the protocol's table allows the act now."""
        present = of_one_run(self._facts, live, guards=self._guards)
        status = self.observe(desired, live, now_ms)
        first, members = first_of(self._facts, present), members_of(self._facts, present)
        served = None if first is None or first.map_rows is None else first.digests
        back = plan if plan is not None and plan.puts_back else None
        facts = ActFacts(
            state=status.state,
            due=WAITS_FOR.get(act, status.state),
            offer=status.offer,
            sentence=status.sentence,
            silent=tuple(rank for rank in members if rank not in present) or (() if served else members[:1]),
            other=tuple(
                rank
                for rank, record in present.items()
                if served and record.digests != served and not (back and back.starts_from(record.digests))
            ),
            base_is_live=act is not Act.BEGIN or plan is None or served == plan.base_digests,
        )
        refusal = decide_act(act, facts, guards=self._guards)
        if refusal is None:
            return present
        name = f"plan {plan.plan_id}: " if plan is not None else ""
        kind = PlanStale if refusal.code is Code.STALE else PlanError
        raise kind(f"{name}{act} is refused ({refusal.code}): {refusal.sentence}")

    def _waves(
        self, plan: Plan, rows: NDArray[np.int32], digests: tuple[int, ...]
    ) -> list[tuple[LayerChange, ...]]:
        if plan.puts_back:
            return [merged(remaining(plan, digests))]
        return waves(
            self._facts,
            plan,
            rows,
            digests,
            staging_slots=self._staging_slots,
            bytes_per_rank=self._bytes_per_rank,
            pace_bytes=self.pace_bytes,
        )

    def _offer(self, desired: Desired, live: dict[int, LiveRecord], wave: int, now_ms: int) -> Desired:
        plan, first = desired.plan, first_of(self._facts, live)
        rows = None if first is None else first.physical_to_logical()
        left = [] if plan is None or first is None or rows is None else self._waves(plan, rows, first.digests)
        if plan is None or first is None or not left:
            raise PlanError("nothing is left to move")
        offer = Offer(
            pool=self._facts.pool,
            run_id=first.run_id,
            model_digest=first.model_digest,
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
