"""The rank-side agent: meets the group at gates, stages offers, votes, and switches with all others or not at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from eplb.agent.digests import DigestTable
from eplb.agent.gate import Gate
from eplb.agent.hand import APPLY_WAIT_S, Hand, judge_offer
from eplb.agent.header import MAX_OFFER_BYTES, MAX_TERM, UNKNOWN_STEP, Action, Header, encode_header
from eplb.agent.membership import agree_on_members
from eplb.agent.offers import already_live, offer_digest
from eplb.agent.refusal import Code, Refusal, Refusals
from eplb.agent.registration import Start, register
from eplb.agent.side import RankSide
from eplb.agent.switch import Recorder, Switched, write_slots
from eplb.agent.wire import LayerChange, LiveRecord, decode_offer
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.group import Group
    from eplb.agent.link import Link, Wanted
    from eplb.agent.memory import ExpertMemory
    from eplb.agent.transfer import Transfer
    from eplb.agent.transport import Transport

DESIRED_AGE_MAX_S = 5.0
"""An older cache means that the store is away, and a store that is away never changes a map."""
_CLOSED_KEPT = 64


class Agent:
    """One rank's part in moving experts; construct it on all ranks at the same point, after the weights are loaded.

    ``physical_to_logical``: int32 [layers, slots], the map that is served now. ``shares``: float64 [layers, slots] or
    None while dispatch is not weighted. ``run_id``: the first member's is the one that counts; every life of the group has its own.
    ``members`` pool ranks by place in the group, None = all of the pool; the slots of other ranks are empty. ``table`` that
    of an earlier life, whose weights ``reform`` has checked; None = made now from what stands in the slots. ``staging_bytes_max`` bounds the
    memory beside the live storage, in bytes; None = a wave may take what it needs. The engine starts and stops ``link``.

    Raises:
        MigrationError: on all ranks alike, when their maps, facts, tensors, settings or replicas do not agree at the
            start, or one rank's map is malformed.
        ConfigError: on all ranks alike, ``gate_steps`` is below 20.
    """

    state: str
    """serving, staging, prepared, refused, switched or stuck."""
    refusals: Refusals
    """Who refused the last offer and why."""
    members: tuple[int, ...]
    """Pool ranks of the group by place in it; the first one reads the store and reports the map."""
    table: DigestTable
    """What every expert's weights must be."""
    term_seen: int
    """Newest leadership term this rank knows; frames carry it."""

    def __init__(
        self,
        facts: PoolFacts,
        group: Group,
        transport: Transport,
        memory: ExpertMemory,
        physical_to_logical: NDArray[np.int32],
        *,
        run_id: int,
        incarnation: int,
        gate_steps: int = 20,
        link: Link | None = None,
        recorder: Recorder | None = None,
        shares: NDArray[np.float64] | None = None,
        map_version: int = 0,
        staging_bytes_max: int | None = None,
        members: Sequence[int] | None = None,
        table: DigestTable | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = agree_on_members(facts, group, transport, members)
        self.facts, self.rank, self.incarnation = facts, self.members[group.rank], incarnation
        self._first = group.rank == 0
        self._link, self._recorder, self._clock = link, recorder, clock
        start = Start(physical_to_logical, shares, map_version, gate_steps, run_id, self.members, table)
        self._live, self.run_id = register(facts, group, memory, start)
        self._gate = Gate(group, gate_steps, self.members)
        self.table = table or DigestTable.build(facts, group, memory, self._live.rows, self.members)
        self._side = RankSide(
            facts, self.rank, self.members, memory, transport, self.table, staging_bytes_max
        )
        if link is not None:
            link.serve(first=self._first)
        self.state, self.refusals, self.term_seen = "serving", (), 0
        self.stats: dict[str, int] = {"gates": 0, "switches": 0, "refused": 0, "step_differs": 0, "errors": 0}
        self.last_error = ""
        self._offer_key, self._serial = "", 0
        self._hand: Hand | None = None
        self._closed: dict[int, None] = {}
        self._leaving: list[Transfer] = []
        self._detached = False
        self._reported: tuple[object, ...] = ()
        self._report(0)

    @property
    def live(self) -> NDArray[np.int32]:
        """The map that is served now, int32 [layers, slots]; read only."""
        return self._live.rows

    @property
    def shares(self) -> NDArray[np.float64] | None:
        """Shares that are served now, float64 [layers, slots], or None while dispatch is not weighted."""
        return self._live.shares

    @property
    def layer_digests(self) -> NDArray[np.uint64]:
        """Digests of what is served now, uint64 [layers]."""
        return self._live.digests

    @property
    def map_version(self) -> int:
        """Version of the last plan that this rank has switched to as a whole."""
        return self._live.map_version

    @property
    def staging_bytes(self) -> int:
        """Bytes held beside the live storage now, those of a wave that was let go in mid-transfer included."""
        held = self._hand.staging.bytes if self._hand else 0
        return held + sum(transfer.staging_bytes for transfer in self._leaving)

    def before_forward(self, group_step: int) -> Switched | None:
        """Take part in the gate if one is due; call it on every rank before every forward, dummy forwards included.

        Returns what the engine must take over before the forward, or None. Never raises: a rank that cannot go on takes
        no further part, keeps its map and reports ``stuck``.
        """
        if self._detached:
            return None
        try:
            if self._settle():
                self._report(group_step)
            return self._pass_gate(group_step) if self._gate.due() else None
        except Exception as error:  # noqa: BLE001 - nothing here may raise into the engine
            self._detach(error, group_step)
            return None

    def close(self) -> None:
        """Let go of what is staged, take no further part, and leave a last record."""
        if not self._detached:
            self._release()
            self._detached = True
            self._report(-1)

    def _pass_gate(self, group_step: int) -> Switched | None:
        chosen, raw = self._choose(group_step) if self._first else (None, None)
        header = self._gate.open(chosen)
        self.stats["gates"] += 1
        self.term_seen = max(self.term_seen, header.term)
        doubt = self._doubt(header, group_step)
        switched = None
        if header.action is Action.PREPARE:
            self._prepare(header, raw, doubt)
        elif header.action is Action.APPLY:
            switched = self._apply(header, doubt)
        elif self._hand is not None and header.offer_digest != self._hand.digest:
            self._close(((self.rank, str(Code.WITHDRAWN), "rank 0 no longer holds this offer"),))
        self._report(group_step)
        return switched

    def _doubt(self, header: Header, group_step: int) -> Refusal | None:
        if header.group_step in {group_step, UNKNOWN_STEP} and header.run_id == self.run_id:
            return None
        self.stats["step_differs"] += 1
        sentence = f"rank 0 is at step {header.group_step} of run {header.run_id}, this rank at {group_step} of {self.run_id}"
        return Refusal(Code.STEP_DIFFERS, sentence)

    # Rank 0 chooses.

    def _choose(self, group_step: int) -> tuple[NDArray[np.int64], bytes | None]:
        try:
            action, raw = self._next_action()
            digest = self._held() if raw is None else offer_digest(raw)
            header = Header(action, self.term_seen, self.run_id, group_step, digest, len(raw or b""))
            return encode_header(header), raw
        except Exception as error:  # noqa: BLE001 - the others wait for a header
            self._count(error)
        keep = Header(Action.KEEP, self.term_seen, self.run_id, UNKNOWN_STEP, self._held())
        return encode_header(keep), None

    def _held(self) -> int:
        return self._hand.digest if self._hand else 0

    def _next_action(self) -> tuple[Action, bytes | None]:
        wanted = self._link.wanted() if self._link else None
        if wanted is None or self.state == "stuck" or self._clock() - wanted.read_s > DESIRED_AGE_MAX_S:
            return Action.KEEP, None
        if not 0 <= wanted.term <= MAX_TERM:
            raise MigrationError(f"the link names term {wanted.term}, must be 0 to 2**53; nothing is done")
        self.term_seen = max(self.term_seen, wanted.term)
        if self._hand is not None:
            return self._hand_action(self._hand, wanted), None
        raw = wanted.offer
        if (
            raw is None
            or offer_digest(raw) in self._closed
            or self._busy()
            or not self._worth_asking(raw, wanted)
        ):
            return Action.KEEP, None
        return Action.PREPARE, raw

    def _hand_action(self, hand: Hand, wanted: Wanted) -> Action:
        if wanted.offer is None or offer_digest(wanted.offer) != hand.digest:
            self._close(((self.rank, str(Code.WITHDRAWN), "the store no longer asks for this offer"),))
            return Action.KEEP
        return Action.APPLY if hand.done else Action.KEEP

    def _worth_asking(self, raw: bytes, wanted: Wanted) -> bool:
        if len(raw) > MAX_OFFER_BYTES:
            return False
        try:
            offer = decode_offer(raw)
            done = already_live(self.facts, self._live, offer)
            expired = self._clock() - wanted.first_seen_s > offer.expires_after_s
        except Exception:  # noqa: BLE001 - the group refuses it, so that this refusal is reported like any other
            return True
        if done:
            self._remember(offer_digest(raw))
        elif expired:
            why = ((self.rank, str(Code.EXPIRED), "no gate came before it expired"),)
            self._refuse(offer.key, offer_digest(raw), why)
        return not done and not expired

    # Every rank answers.

    def _prepare(self, header: Header, raw: bytes | None, doubt: Refusal | None) -> None:
        raw = self._gate.fetch(raw, header.offer_bytes)
        key, judged = self._judge(raw, header)
        refusal = judged if isinstance(judged, Refusal) else doubt
        refusals = self._gate.vote(refusal)
        if refusals or isinstance(judged, Refusal):
            self._refuse(key, header.offer_digest, refusals)
            return
        self._serial += 1
        self.term_seen = max(self.term_seen, judged.offer.term)
        judged.begin(self._side, self._serial)
        self._hand = judged
        self.state, self.refusals, self._offer_key = "staging", (), key

    def _judge(self, raw: bytes, header: Header) -> tuple[str, Hand | Refusal]:
        if self._hand is not None and header.offer_digest != self._hand.digest:
            self._release()
        barred, term = self._barred(header.offer_digest), self.term_seen
        return judge_offer(
            self._side, self._live, raw, header, term_seen=term, now_s=self._clock(), barred=barred
        )

    def _barred(self, digest: int) -> Refusal | None:
        if self.state == "stuck":
            return Refusal(
                Code.STUCK, "a slot of this rank failed its read-back; repair it or restart the rank"
            )
        if digest in self._closed:
            return Refusal(Code.CLOSED, "this offer was already refused or applied here")
        if self._hand is not None or not all(transfer.wait(APPLY_WAIT_S) for transfer in self._leaving):
            return Refusal(Code.BUSY, "the transfer of an earlier offer has not ended")
        return None

    def _apply(self, header: Header, doubt: Refusal | None) -> Switched | None:
        refusal = doubt or self._check_hand(header)
        refusals = self._gate.vote(refusal)
        if refusals or self._hand is None:
            self._close(refusals)
            return None
        return self._switch(self._hand)

    def _check_hand(self, header: Header) -> Refusal | None:
        if self._hand is None:
            return Refusal(Code.NOT_PREPARED, "this rank holds no offer")
        try:
            return self._hand.check(header, self._live, self.term_seen, self._clock())
        except Exception as error:  # noqa: BLE001 - nothing between header and vote may raise
            return Refusal.of(Code.INTERNAL, error)

    def _switch(self, hand: Hand) -> Switched:
        offer = hand.offer
        moved = [c.layer for c in offer.changes if c.base_digest != c.target_digest]
        self._tell("begin_flight", moved)
        broken = write_slots(hand.staging)
        last = offer.wave == offer.waves - 1 and not broken
        places = tuple((layer, slot) for layer, slot, _ in broken)
        self._live.replace(offer.changes, places, offer.map_version if last else None)
        self._tell("switch", {layer: int(self._live.digests[layer]) for layer in moved})
        self._tell("end_flight", moved)
        self._release()
        self._remember(hand.digest)
        self.stats["switches"] += 1
        self.state = "stuck" if broken else "switched"
        self.refusals = tuple(
            (self.rank, str(Code.WEIGHTS_DIFFER), f"slot {s}: {why}") for _, s, why in broken[:4]
        )
        return self._switched(offer.key, offer.changes, places)

    def _switched(
        self, key: str, changes: Sequence[LayerChange], broken: tuple[tuple[int, int], ...]
    ) -> Switched:
        layers = tuple(sorted(change.layer for change in changes))
        shares = None if self._live.shares is None else self._live.shares[list(layers)]
        return Switched(key, layers, self._live.rows[list(layers)], shares, self.map_version, broken)

    # Bookkeeping.

    def _settle(self) -> bool:
        """Take note of the clock and of the transfer; true when the state changed."""
        before = self.state
        self._leaving = [transfer for transfer in self._leaving if not transfer.done]
        hand = self._hand
        if hand is None:
            return False
        if hand.expired(self._clock()):
            why = f"no vote came within {hand.offer.expires_after_s} s of rank {self.rank}'s own clock"
            self._close(((self.rank, str(Code.EXPIRED), why),))
        elif self.state == "staging" and hand.transfer is not None and hand.done:
            if hand.transfer.refusals:
                self._close(hand.transfer.refusals)
            else:
                self.state = "prepared"
        return self.state != before

    def _busy(self) -> bool:
        return self._hand is not None or any(not transfer.done for transfer in self._leaving)

    def _close(self, refusals: Refusals) -> None:
        hand = self._hand
        self._refuse(hand.offer.key if hand else self._offer_key, hand.digest if hand else 0, refusals)

    def _refuse(self, key: str, digest: int, refusals: Refusals) -> None:
        self._release()
        self._remember(digest)
        self.stats["refused"] += 1
        if self.state != "stuck":
            self.state, self.refusals, self._offer_key = "refused", refusals, key

    def _release(self) -> None:
        if self._hand is None:
            return
        running = self._hand.let_go()
        if running is not None:
            self._leaving.append(running)
        self._hand = None

    def _remember(self, digest: int) -> None:
        self._closed[digest] = None
        while len(self._closed) > _CLOSED_KEPT:
            self._closed.pop(next(iter(self._closed)))

    def _tell(self, call: str, argument: object) -> None:
        if self._recorder is None or not argument:
            return
        try:
            getattr(self._recorder, call)(argument)
        except Exception as error:  # noqa: BLE001 - counting must not stop a switch that the group has decided
            self._count(error)

    def _count(self, error: Exception) -> None:
        self.stats["errors"] += 1
        self.last_error = f"{type(error).__name__}: {error!s:.200}"

    def _detach(self, error: Exception, group_step: int) -> None:
        self._count(error)
        self._detached = True
        self._release()
        self.state = "stuck"
        self.refusals = ((self.rank, str(Code.GROUP_FAILED), self.last_error),)
        self._report(group_step)

    def _report(self, group_step: int) -> None:
        if self._link is None:
            return
        try:
            live, first = self._live, self._first
            record = LiveRecord(
                pool=self.facts.pool,
                rank=self.rank,
                incarnation=self.incarnation,
                run_id=self.run_id,
                term_seen=self.term_seen,
                map_version=live.map_version,
                group_step=group_step,
                state=self.state,
                offer=self._offer_key,
                digests=live.wire_digests,
                members=self.members,
                refusals=self.refusals if first or self.state == "stuck" else (),
                map_rows=live.wire_rows if first else None,
                shares_rows=live.wire_shares if first else None,
                facts=self.facts if first else None,
            )
            news = (
                self.state,
                self._offer_key,
                self.term_seen,
                live.map_version,
                live.wire_digests,
                self.refusals,
            )
            self._link.publish(record, changed=news != self._reported)
            self._reported = news
        except Exception as error:  # noqa: BLE001 - a record is not worth a forward
            self._count(error)
