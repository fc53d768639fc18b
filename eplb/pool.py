"""One pool, served: each cycle reads the store, feeds window and controller, and does what the controller says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from collectors.facts import Phase
from eplb import alert
from eplb.assess import Assessment, assess
from eplb.controller import abandoned, decide
from eplb.decisions import Code, Decision
from eplb.errors import (
    EplbError,
    FileError,
    PlanError,
    StoreError,
    StoreFenced,
    StoreUnavailable,
    WindowError,
)
from eplb.follow_up import RECORDS_READ, FollowUp
from eplb.gate import Verdict, refuse
from eplb.journal import Journal
from eplb.membership import Membership
from eplb.memory import PoolMemory
from eplb.migration import Actuator, observe, read_desired
from eplb.migration.pace import Pacer, PaceRules
from eplb.migration.status import State as Migration
from eplb.movement import movement_of
from eplb.planning import Planning
from eplb.ranks import LiveRanks
from eplb.snapshots import Known, nothing_known, snapshot_of
from eplb.states import Action, Inputs, Name, State, Step
from eplb.store.control import set_paused
from eplb.trust import Trust
from eplb.window import Window

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.config import PoolConfig
    from eplb.decisions import PlanFacts
    from eplb.ports import Ports
    from eplb.snapshot import PoolSnapshot
    from eplb.states import Movement
    from eplb.window import WindowView

CYCLES_BEFORE_LEADING = 2
"""A new process reads what the ranks say for two cycles before it asks for the lease, so that its term is above all others."""


class Pool:
    """The edges of one pool: store, lead, window, solver and actuator around the pure controller.

    ``ports``: the world that it is served in; ``advice_folder`` where plans are written in advise mode.
    """

    def __init__(self, config: PoolConfig, ports: Ports, advice_folder: Path) -> None:
        self.config, self.facts = config, config.facts()
        self.store, self._lease, self._clock = ports.store, ports.lead, ports.clock
        self._window = Window(
            self.facts,
            config.count_kind(),
            phases=len(config.phases),
            window_s=config.window.window_s,
            max_slices=config.window.max_slices,
            window_bytes=config.window.window_bytes,
            stale_after_s=config.alert.stale_after_s,
        )
        self._planning = Planning(self.facts, config, ports.solver)
        self._actuator = Actuator(
            self.facts,
            self.store.write_desired,
            offer_expires_s=config.migration.offer_expires_s,
            staging_slots=config.migration.staging_slots,
            bytes_per_rank=config.migration.bytes_per_rank,
        )
        self._pacer = Pacer(PaceRules.of(self.facts, config.migration.slowdown, config.wave_slots()))
        self._advice_folder = advice_folder
        self._memory = PoolMemory(self.facts, ports.state_folder)
        self._trust = Trust(config.name, config.gate.mode)
        self._log = structlog.get_logger("eplb").bind(pool=config.name)
        self._journal = Journal(self._log, self.store.append_log)
        self._membership = Membership(self._log)
        self._state = State()
        self._cycles = 0
        self._led_term: int | None = None
        self._key_losses = 0
        self._backlog_ms = 0
        self._known_digest = 0
        self._follow_up = FollowUp(self.facts, config)
        self._alert = alert.AlertState()
        self._well_s = self._clock()
        self._last: PoolSnapshot | None = None

    # --- one cycle ------------------------------------------------------------------------------------------------

    def cycle(self) -> PoolSnapshot:
        """Observe, assess, decide, act once; whatever fails, the map stays as it is and the snapshot says so."""
        self._cycles += 1
        try:
            snapshot = self._cycle()
            self._well_s = self._clock()
            self._journal.well()
        except StoreFenced as error:
            self._lease.step_down()
            snapshot = self._blind(Code.STANDBY, str(error), store_up=True)
        except StoreUnavailable as error:
            snapshot = self._blind(Code.STORE_AWAY, str(error), store_up=False)
        except EplbError as error:
            snapshot = self._blind(Code.CYCLE_FAILED, str(error), store_up=True)
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            # One pool's fault must not end the others' loop.
            snapshot = self._blind(Code.CYCLE_FAILED, self._journal.fault(error), store_up=True)
        self._last = self._watch(snapshot)
        return self._last

    def _cycle(self) -> PoolSnapshot:
        now_ms = self.store.time_ms()
        ranks = LiveRanks.read(self.store.read_live(), self.facts)
        self._lead(ranks)
        self._read_frames(ranks, now_ms)
        desired = read_desired(self.store.read_desired())
        desired = replace(desired, map_version=max(desired.map_version, self._memory.map_version))
        known = Known(
            now_ms=now_ms,
            view=self._window.view(now_ms),
            ranks=ranks,
            desired=desired,
            status=observe(self.facts, desired, ranks.records, now_ms),
            paused=self._memory.paused(self.store, self._lease.term),
            health=self.store.health(),
            saved=self._memory.saved,
            backlog_ms=self._backlog_ms,
        )
        self._memory.see(
            ranks, term=desired.term, map_version=desired.map_version, paused=known.paused, now_ms=now_ms
        )
        inputs = self._inputs(known)
        self._planning.note(known.view, known.ranks)
        outcome = decide(self._state, inputs, self.config.gate)
        self._journal.watch(self._state.progress, outcome.state.progress)
        # The state is kept before the act: an act whose answer is lost is found again in what the store says.
        self._state = outcome.state
        try:
            outcome = self._act(outcome, known)
        except StoreError:
            self._journal.keep(outcome.decision, leader=inputs.leader)
            raise
        self._state = outcome.state
        self._membership.note(outcome.decision, known.ranks)
        self._journal.keep(outcome.decision, leader=inputs.leader)
        self._journal.send()
        views = [(Phase(phase).name.lower(), view) for phase, view in self._views(now_ms)]
        return snapshot_of(self.config, inputs, known, views, outcome.decision)

    def close(self) -> None:
        """Give the lease back and end the solver's process; the map stays as it is."""
        self._planning.close()
        self._planning.save()
        try:
            self._lease.release()
        except EplbError as error:
            self._log.warning("lease_kept", reason=str(error))
        self.store.close()

    # --- observe --------------------------------------------------------------------------------------------------

    def _lead(self, ranks: LiveRanks) -> None:
        floor = max(self._window.term_seen, ranks.term_seen, self._memory.term)
        term = self._lease.term
        if term is not None and term < floor:
            # An emptied store gave a term that the ranks refuse: lead anew above what they have seen.
            self._lease.release()
        elif term is not None and self._lease.renew():
            return
        if self._cycles > CYCLES_BEFORE_LEADING:
            term = self._lease.acquire(floor=floor)
            if term is not None:
                self._log.info("leading", term=term)
                self._planning.warm()

    def _leads_on(self) -> bool:
        """Whether this process leads under the same term as in the last cycle, or begins to."""
        term, before = self._lease.term, self._led_term
        self._led_term = term
        kept = term is not None and before in (None, term)
        if not kept and self._state.name is not Name.STANDBY:
            self._planning.close()
            self._follow_up.leave()
        return kept or (term is not None and self._state.name is Name.STANDBY)

    def _read_frames(self, ranks: LiveRanks, now_ms: int) -> None:
        rows, digests = ranks.rows, ranks.layer_digests
        self._membership.observe(ranks, self._window, self._planning, self._follow_up)
        if rows is not None and digests is not None and ranks.live_digest != self._known_digest:
            self._known_digest = ranks.live_digest
            try:
                self._window.add_map(digests, rows, ranks.shares)
            except WindowError as error:
                self._log.warning("live_map_refused", reason=str(error))
        nodes = range(self.facts.nodes)
        while entries := self.store.tail_load(nodes):
            for time_ms, node, payload in entries:
                # A stream's ids never fall, so that one from the future dates all that come after it.
                self._window.ingest(min(time_ms, now_ms), node, payload)
        self._backlog_ms = self.store.backlog_ms(nodes)
        if self.store.key_losses != self._key_losses:
            self._key_losses = self.store.key_losses
            self._window.clear()
            self._log.warning("window_cleared", reason="a stream vanished from the store, or its ids fell")

    # --- assess ---------------------------------------------------------------------------------------------------

    def _inputs(self, known: Known) -> Inputs:
        leader, ranks, now_ms = self._leads_on(), known.ranks, known.now_ms
        if leader and not self._follow_up.recalled:
            self._follow_up.recall(self.store.read_log(RECORDS_READ))
        movement, gains = self._movement(known), self._follow_up.gains
        answer = self._planning.answer(ranks, known.desired, now_ms, gains)
        if answer is not None:
            answer = self._planning.priced(answer, self._views(now_ms), gains)
        found = self._follow_up.look(self._state, movement, known.view, ranks, now_ms)
        before = self._follow_up.before if movement.unverified or found.realised is not None else None
        return Inputs(
            pool=self.config.name,
            time_ms=now_ms,
            term=self._lease.term or known.desired.term,
            leader=leader,
            paused=known.paused,
            map_version=ranks.map_version,
            assessment=self._assess(known),
            problem=self._problem(known),
            answer=answer,
            solving=self._planning.solving,
            applied_ms=known.desired.offered_ms,
            movement=movement,
            gains=self._follow_up.gains,
            realised=found.realised,
            rollback=self._planning.roll_back(before, ranks, now_ms, unverified=movement.unverified),
            outcome=found.outcome,
            departed=found.departed,
            need=self._membership.need(ranks, known.now_ms),
        )

    def _views(self, now_ms: int) -> list[tuple[int, WindowView]]:
        """The window by phase."""
        return [(int(phase), self._window.view(now_ms, phase)) for phase in self.config.served_phases()]

    def _assess(self, known: Known) -> Assessment | None:
        if known.view.ranks_seen == 0:
            return None
        return assess(
            known.view,
            self.facts,
            live_digest=known.ranks.live_digest,
            trigger_slices=self.config.gate.trigger_slices,
            planned_tokens=self._follow_up.planned_tokens,
            max_slices=self.config.window.max_slices,
            dispatch=self.config.dispatch,
        )

    def _problem(self, known: Known) -> Verdict | None:
        """What no load can outweigh: ranks of another shape, ranks whose weights are in doubt, frames that are all refused."""
        ranks = known.ranks
        if (untrusted := self._trust.judge(known.health, ranks, known.desired)) is not None:
            return untrusted
        if (unfit := self._membership.problem(ranks)) is not None:
            return unfit
        if ranks.mismatch:
            return refuse(
                Code.FACTS_MISMATCH, ranks.mismatch, "the same facts in the configuration and in the ranks"
            )
        if ranks.stuck:
            stuck = ", ".join(map(str, ranks.stuck[:8]))
            sentence = (
                f"ranks {stuck} are stuck: their last switch could not be read back, or they left the group"
            )
            return refuse(Code.RANKS_STUCK, sentence, "a restart of these ranks")
        if known.view.ranks_seen == 0 and self._window.refuses(known.now_ms):
            sentence = f"frames come and all are refused; the last: {self._window.last_refusal}"
            return refuse(Code.FRAMES_REFUSED, sentence, "collectors that fit this pool's configuration")
        return None

    def _movement(self, known: Known) -> Movement:
        delegated = self.config.migration.profile == "delegated"
        paced = self._pacer.pace.sentence
        return movement_of(self.facts, self._state, known, paced=paced, delegated=delegated)

    # --- act ------------------------------------------------------------------------------------------------------

    def _act(self, outcome: Step, known: Known) -> Step:
        """Do what was decided; when it turns out to be impossible, go back to observing and say so."""
        try:
            self._perform(outcome, known)
        except (PlanError, FileError) as error:
            self._planning.forget()
            if outcome.action in (Action.ROLL_BACK, Action.ROLL_BACK_AND_PAUSE):
                # There is no way back: what is read back wrong is then withdrawn like any other.
                self._follow_up.forget()
            if known.status.state is Migration.WAVE_LIVE and self._lease.term is not None:
                self._actuator.withdraw(
                    known.desired, known.ranks.records, term=self._lease.term, now_ms=known.now_ms
                )
            return abandoned(outcome, Code.NOT_DONE, str(error), self.config.gate.cooldown_s)
        return outcome

    def _perform(self, outcome: Step, known: Known) -> None:
        action, plan = outcome.action, outcome.decision.plan
        if action is Action.CANCEL_PLAN:
            self._planning.close()
        elif action is Action.ASK_PLAN:
            self._planning.ask(known.view, known.ranks, self._follow_up.gains, self._membership.asked)
        elif action is Action.WRITE_ADVICE:
            self._planning.choose(plan)
            path = self._planning.write_advice(self._advice_folder)
            self._log.info("advice_written", file=str(path))
            self._planning.forget()
        elif action is not Action.NONE:
            self._write(action, plan, known)

    def _write(self, action: Action, plan: PlanFacts | None, known: Known) -> None:
        """Actions on the store's desired map, which only a leader may write."""
        term, desired, live = self._lease.term, known.desired, known.ranks.records
        if term is None:
            raise PlanError("the lease ran out in the middle of the cycle; the next leader goes on")
        offers = action in (Action.OFFER_NEXT, Action.ROLL_BACK, Action.ROLL_BACK_AND_PAUSE)
        if action is not Action.OFFER_AGAIN:
            self._actuator.pace_bytes = self._pacer.turn(known.view, offers=offers)
        idle = known.status.state is Migration.IDLE
        if offers and (idle or action is not Action.OFFER_NEXT):
            self._begin(action, plan, known, term)
        elif action is Action.OFFER_NEXT:
            self._actuator.offer_next(desired, live, term=term, now_ms=known.now_ms)
        elif action is Action.OFFER_AGAIN:
            self._actuator.offer_again(desired, live, term=term, now_ms=known.now_ms)
        elif action is Action.CLOSE:
            self._planning.forget()
            self._actuator.close(desired, live, term=term, now_ms=known.now_ms)
        else:
            if action is Action.WITHDRAW_AND_PAUSE:
                set_paused(self.store, paused=True, term=term)
            self._follow_up.forget()
            self._planning.forget()
            self._actuator.withdraw(desired, live, term=term, now_ms=known.now_ms)

    def _begin(self, action: Action, plan: PlanFacts | None, known: Known, term: int) -> None:
        """Offer the first wave of a plan, forward or back."""
        self._planning.choose(plan)
        if self._planning.plan is None:
            raise PlanError("the plan that was to be offered is not known any more; plan anew")
        if action is Action.OFFER_NEXT:
            self._follow_up.offered(known.view, known.ranks)
        if action is Action.ROLL_BACK_AND_PAUSE:
            set_paused(self.store, paused=True, term=term)
        self._actuator.begin(
            self._planning.plan, known.desired, known.ranks.records, term=term, now_ms=known.now_ms
        )

    # --- show -----------------------------------------------------------------------------------------------------

    def _blind(self, code: Code, sentence: str, *, store_up: bool) -> PoolSnapshot:
        """The last snapshot with the reason why there is no newer one."""
        last = self._last or nothing_known(self.config)
        decision = Decision(
            pool=self.config.name,
            time_ms=last.time_ms,
            cycle=self._state.cycle,
            term=last.term,
            state=str(self._state.name),
            code=code,
            sentence=f"{sentence}; no map changes meanwhile",
            would_change="the store's answer" if not store_up else "the next cycle",
            map_version=last.map_version,
        )
        self._journal.tell(decision)
        leader, rebalance = self._lease.term is not None, last.rebalance
        if code is Code.CYCLE_FAILED:
            # The controller's own watchdog sees nothing of cycles that end before it is asked.
            failing_s = self._clock() - self._well_s - self.config.gate.progress_s
            rebalance = replace(rebalance, stalled_s=max(rebalance.stalled_s, failing_s))
        return replace(
            last, leader=leader, store_up=store_up, decision=decision.as_dict(), rebalance=rebalance
        )

    def _watch(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Judge the alert's condition and log its one event when it changes."""
        settings = self.config.alert
        rule = alert.AlertRule(settings.recoverable_excess, settings.for_s, settings.keep_s)
        excess = alert.worst_excess(snapshot, self.config.gate.coverage) if snapshot.store_up else None
        self._alert, event = alert.observe(self._alert, excess, self._clock(), rule)
        if event is not None:
            alert.log_event(self._log, self.config.name, event, rule)
        return replace(snapshot, alerting=self._alert.high)
