"""The rank-side agent: meets the group at gates, stages offers, votes, and switches with all others or not at all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from eplb.agent.delegated import Delegated, Move, unmended_layer
from eplb.agent.digests import DigestTable
from eplb.agent.first import First
from eplb.agent.gate import Gate
from eplb.agent.hand import APPLY_WAIT_S, Hand, make_room, read_offer
from eplb.agent.header import UNKNOWN_STEP, Action, Header, encode_header
from eplb.agent.membership import agree_on_members, stray_slot
from eplb.agent.mending import mend
from eplb.agent.offers import offer_digest
from eplb.agent.refusal import Code, Refusal, Refusals
from eplb.agent.registration import Start, register
from eplb.agent.report import Reporter
from eplb.agent.side import Member, RankSide
from eplb.agent.standing import Standing
from eplb.agent.switch import Recorder, Switched, take_over, write_slots
from eplb.errors import MigrationError
from eplb.protocol import ALL_GUARDS, Arrived, Asked, Effect, Event, Known, Profile, RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.group import Group
    from eplb.agent.link import Link
    from eplb.agent.memory import ExpertMemory
    from eplb.agent.mover import Mover
    from eplb.agent.transport import Transport
    from eplb.agent.wire import Offer
    from eplb.protocol import Transition


class Agent:
    """One rank's part in moving experts; construct it on all ranks at the same point, after the weights are loaded.

    ``physical_to_logical``: int32 [layers, slots], the map that is served now. ``shares``: float64 [layers, slots] or
    None while dispatch is not weighted. ``run_id``: the first member's is the one that counts; every life of the group has its own.
    ``members`` pool ranks by place in the group, None = all of the pool; the slots of other ranks are empty. ``table`` that
    of an earlier life, whose weights ``reform`` has checked; None = made now from what stands in the slots; ``term_seen`` and
    ``reloaded`` are those of ``reform`` too. ``staging_bytes_max`` bounds the
    memory beside the live storage, in bytes; None = a wave may take what it needs. The engine starts and stops ``link``.
    ``mover`` an engine that moves weights by itself, on all ranks or on none: the ``delegated`` profile, for which ``transport``
    and ``memory`` are None.
    ``guards`` names of the guards that hold (``eplb.protocol``); fewer than all are for negative controls.

    Raises:
        MigrationError: on all ranks alike, when their maps, facts, tensors, settings or replicas do not agree at the
            start, or one rank's map is malformed. On one rank: there is neither a mover nor both of memory and transport.
        ConfigError: on all ranks alike, ``gate_steps`` is below 20.
    """

    members: tuple[int, ...]
    """Pool ranks of the group by place in it; the first one reads the store and reports the map."""
    table: DigestTable | None
    """What every expert's weights must be; None where the engine moves them by itself."""
    in_doubt: bool = False
    """This rank said yes to a switch and did not hear the result: others may serve the new map, so the engine must form its group
    anew before the next forward."""

    def __init__(
        self,
        facts: PoolFacts,
        group: Group,
        transport: Transport | None,
        memory: ExpertMemory | None,
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
        term_seen: int = 0,
        reloaded: Sequence[tuple[int, int, int]] = (),
        guards: frozenset[str] = ALL_GUARDS,
        mover: Mover | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if mover is None and (memory is None or transport is None):
            raise MigrationError(
                "give an agent memory and transport, or the mover of an engine that moves weights by itself"
            )
        self.members = agree_on_members(facts, group, transport, members)
        self.facts, self.rank, self.incarnation = facts, self.members[group.rank], incarnation
        self._first = group.rank == 0
        self._recorder, self._clock = recorder, clock
        start = Start(
            physical_to_logical, shares, map_version, gate_steps, run_id, self.members, table, mover
        )
        self._live, self.run_id = register(facts, group, memory, start)
        self._gate = Gate(group, gate_steps, self.members)
        self._standing = Standing(self.rank, guards, Profile.STAGED if mover is None else Profile.DELEGATED)
        self.table, self._side, self._delegated = None, None, None
        if mover is not None:
            self._delegated = Delegated(facts, self.rank, mover, self._live, self._standing, tell=self._tell)
            self._model_digest = mover.model_digest
        elif memory is not None and transport is not None:
            self.table = table or DigestTable.build(facts, group, memory, self._live.rows, self.members)
            self._side = RankSide(
                facts, self.rank, self.members, memory, transport, self.table, staging_bytes_max, guards
            )
            self._model_digest = self.table.model_digest
        if link is not None:
            link.serve(first=self._first)
        self._chooser = First(facts, link, self._live, self._standing, clock)
        self._standing.term_seen = term_seen
        member = Member(facts, self.rank, self.members, self._model_digest)
        self._reporter = None if link is None else Reporter(link, member, self.run_id, incarnation, reloaded)
        self.stats: dict[str, int] = {"gates": 0, "switches": 0, "refused": 0, "step_differs": 0, "errors": 0}
        self.last_error = ""
        self._serial = 0
        self._detached = False
        self._report(0)

    @property
    def state(self) -> RankState:
        """Where this rank stands."""
        return self._standing.state

    @property
    def refusals(self) -> Refusals:
        """Who refused the last offer and why."""
        return self._standing.refusals

    @property
    def term_seen(self) -> int:
        """Newest leadership term this rank knows; frames carry it."""
        return self._standing.term_seen

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
        return self._standing.staging_bytes

    def before_forward(self, group_step: int) -> Switched | None:
        """Take part in the gate if one is due; call it on every rank before every forward, dummy forwards included.

        Returns what the engine must take over before the forward, or, if it moves by itself, what it was read back to route by, or
        None. Never raises: a rank that cannot go on takes no further part, keeps its map and reports ``stuck``; look at
        ``in_doubt`` before the forward.
        """
        if self._detached:
            return None
        try:
            committed = self._look(group_step)
            if self._settle():
                self._report(group_step)
            return (self._pass_gate(group_step) if self._gate.due() else None) or committed
        except Exception as error:  # noqa: BLE001 - nothing here may raise into the engine
            self._detach(error, group_step)
            return None

    def close(self) -> None:
        """Let go of what is staged, take no further part, and leave a last record."""
        if not self._detached:
            self._standing.release()
            self._detached = True
            self._report(-1)

    def wait_for_transfers(self, until_s: float) -> bool:
        """Wait, at most until this time of ``time.monotonic``, for transfers that were let go of; true when all have ended."""
        return all(transfer.wait(max(0.0, until_s - time.monotonic())) for transfer in self._standing.leaving)

    def _pass_gate(self, group_step: int) -> Switched | None:
        chosen, raw = self._choose(group_step) if self._first else (None, None)
        header = self._gate.open(chosen)
        self.stats["gates"] += 1
        standing = self._standing
        standing.term_seen = max(standing.term_seen, header.term)
        self.stats["step_differs"] += not self._in_step(header, group_step)
        switched = None
        staged = isinstance(standing.hand, Hand)
        if staged and header.action is not Action.APPLY and header.offer_digest != standing.held:
            why = ((self.rank, str(Code.WITHDRAWN), "rank 0 no longer holds this offer"),)
            self._take(Event.UNNAMED, self._asked(), Known(), said=why)
        if header.action is Action.PREPARE:
            self._prepare(header, raw, group_step)
        elif header.action is Action.APPLY:
            switched = self._apply(header, group_step)
        self._report(group_step)
        return switched

    def _in_step(self, header: Header, group_step: int) -> bool:
        return header.group_step in {group_step, UNKNOWN_STEP} and header.run_id == self.run_id

    def _choose(self, group_step: int) -> tuple[NDArray[np.int64], bytes | None]:
        try:
            action, raw = self._chooser.choose()
            digest = self._standing.held if raw is None else offer_digest(raw)
            header = Header(action, self.term_seen, self.run_id, group_step, digest, len(raw or b""))
            return encode_header(header), raw
        except Exception as error:  # noqa: BLE001 - the others wait for a header
            self._count(error)
        keep = Header(Action.KEEP, self.term_seen, self.run_id, UNKNOWN_STEP, self._standing.held)
        return encode_header(keep), None

    def _prepare(self, header: Header, raw: bytes | None, group_step: int) -> None:
        raw = self._gate.fetch(raw, header.offer_bytes)
        asked, made = self._judge(raw, header, group_step)
        side = self._side
        wire = None if side is None else mend(self._gate.group, side.transport, self._standing.leaving)
        made = made if isinstance(made, Refusal) else wire or made
        self.in_doubt = isinstance(made, Move)  # the one vote of an engine that moves by itself
        refusals = self._gate.vote(made if isinstance(made, Refusal) else None)
        self.in_doubt = False
        if isinstance(made, Refusal):
            self._take(Event.SAID_NO, asked, Known(), said=refusals)
            return
        done = self._take(Event.VOTED_TO_STAGE, asked, _noes(refusals), said=refusals)
        if done.refusal is None:
            self._standing.term_seen = max(self.term_seen, asked.term)
        if Effect.BEGIN_TRANSFER in done.effects and isinstance(made, Hand) and side is not None:
            self._serial += 1
            made.begin(side, self._serial)
            self._standing.hand = made
        if Effect.BEGIN_MOVE in done.effects and isinstance(made, Move) and self._delegated is not None:
            self._delegated.begin(made)

    def _judge(self, raw: bytes, header: Header, group_step: int) -> tuple[Asked, Hand | Move | Refusal]:
        asked, offer, refusal = read_offer(self.facts, raw, header.offer_digest)
        if offer is not None:
            refusal = self._answer(Event.ASKED, asked, lambda: self._known(asked, header, group_step, offer))
        if offer is None or refusal is not None:
            return asked, refusal or Refusal(Code.DAMAGED_OFFER, "not an offer")
        if self._side is None:
            return asked, Move.of(offer, asked)
        return asked, make_room(self._side, self._live, asked, offer, self._clock())

    def _apply(self, header: Header, group_step: int) -> Switched | None:
        hand, asked = self._standing.hand, self._asked()
        refusal = self._answer(Event.CALLED, asked, lambda: self._known(asked, header, group_step))
        self.in_doubt = refusal is None
        refusals = self._gate.vote(refusal)
        self.in_doubt = False
        if refusal is not None or not isinstance(hand, Hand):
            self._take(Event.SAID_NO, asked, Known(), said=refusals)
            return None
        voted = self._standing.decide(Event.VOTED_TO_SWITCH, asked, _noes(refusals))
        if Effect.WRITE_SLOTS in voted.effects:
            return self._switch(hand, asked, voted)
        self._standing.take(voted, asked, refusals)
        return None

    def _answer(self, event: Event, asked: Asked, known: Callable[[], Known]) -> Refusal | None:
        try:
            return self._standing.decide(event, asked, known()).refusal
        except Exception as error:  # noqa: BLE001 - nothing between header and vote may raise
            return Refusal.of(Code.INTERNAL, error)

    def _known(self, asked: Asked, header: Header, group_step: int, offer: Offer | None = None) -> Known:
        """What this rank knows when the group asks; an offer in hand is waited for a moment."""
        standing = self._standing
        hand = standing.hand if isinstance(standing.hand, Hand) else None
        arrived, failure = (Arrived.NONE, None) if hand is None else hand.arrived(APPLY_WAIT_S)
        return Known(
            pool=self.facts.pool,
            run_id=self.run_id,
            model_digest=self._model_digest,
            term_seen=standing.term_seen,
            step=group_step,
            stuck=standing.state is RankState.STUCK,
            served=tuple(int(self._live.digests[layer]) for layer in asked.layers),
            held=standing.held,
            named=header.offer_digest,
            named_step=header.group_step,
            named_run=header.run_id,
            closed=standing.has_closed(header.offer_digest),
            leaving=not all(transfer.wait(APPLY_WAIT_S) for transfer in standing.leaving),
            age_s=0.0 if hand is None else self._clock() - hand.seen_s,
            good_for_s=0.0 if hand is None else hand.offer.expires_after_s,
            arrived=arrived,
            failure=failure,
            stray=None if offer is None else stray_slot(self.facts, self.members, offer.changes),
            unmended=unmended_layer(standing.broken, asked.layers),
        )

    def _switch(self, hand: Hand, asked: Asked, voted: Transition) -> Switched:
        """Carry out what the vote decided: write the slots, read them back, serve, let go."""
        offer = hand.offer
        moved = [c.layer for c in offer.changes if c.base_digest != c.target_digest]
        self._tell("begin_flight", moved)
        broken = write_slots(hand.staging)
        switched = take_over(self._live, offer, hand.tables, broken)
        self._tell("switch", {layer: int(self._live.digests[layer]) for layer in moved})
        self._tell("end_flight", moved)
        self.stats["switches"] += 1
        self._standing.take(voted, asked)
        why = tuple((self.rank, str(Code.WEIGHTS_DIFFER), f"slot {s}: {text}") for _, s, text in broken[:4])
        fault = Refusal(Code.WEIGHTS_DIFFER, why[0][2]) if why else None
        self._take(Event.WRITTEN, asked, Known(weights_fault=fault), said=why)
        return switched

    # Bookkeeping.

    def _asked(self) -> Asked:
        hand = self._standing.hand
        return hand.asked if hand else Asked(key=self._standing.offer_key)

    def _look(self, group_step: int) -> Switched | None:
        """What the engine has committed by itself since the last forward."""
        before = self.state
        try:
            switched = self._delegated.look() if self._delegated else None
        except Exception as error:  # noqa: BLE001 - it may be able to say at the next forward; overdue is the daemon's alarm
            self._count(error)
            return None
        self.stats["switches"] += self.state is RankState.SWITCHED is not before
        if switched is not None:
            self._report(group_step)
        return switched

    def _settle(self) -> bool:
        """Take note of the clock and of the transfer; true when the state changed."""
        standing = self._standing
        before = standing.state
        standing.prune()
        hand = standing.hand
        if not isinstance(hand, Hand):
            return False
        aged = Known(age_s=self._clock() - hand.seen_s, good_for_s=hand.offer.expires_after_s)
        late = self._take(Event.TIME_PASSED, hand.asked, aged).refusal is not None
        if not late and standing.state is RankState.STAGING and hand.transfer is not None and hand.done:
            arrived, failure = hand.arrived()
            ended = Known(arrived=arrived, failure=failure)
            self._take(Event.TRANSFER_ENDED, hand.asked, ended, said=hand.transfer.refusals)
        return standing.state is not before

    def _take(self, event: Event, asked: Asked, known: Known, said: Refusals = ()) -> Transition:
        done = self._standing.decide(event, asked, known)
        self._standing.take(done, asked, said)
        return done

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
        self._take(
            Event.GROUP_FAILED, Asked(), Known(), said=((self.rank, str(Code.GROUP_FAILED), self.last_error),)
        )
        self._report(group_step)

    def _report(self, group_step: int) -> None:
        self.stats["refused"] = self._standing.refused
        if self._reporter is None:
            return
        try:
            self._reporter.report(self._standing, self._live, group_step)
        except Exception as error:  # noqa: BLE001 - a record is not worth a forward
            self._count(error)


def _noes(refusals: Refusals) -> Known:
    return Known(noes=tuple(rank for rank, _, _ in refusals))
