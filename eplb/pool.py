"""One pool, served: each cycle reads the store, feeds window and controller, and does what the controller says."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from eplb import alert
from eplb.advice import write_advice
from eplb.agent.refusal import Code as RefusalCode
from eplb.assess import Assessment, assess, read_phase, realised_gain, served_by
from eplb.controller import Action, Answer, Inputs, Movement, Name, State, decide
from eplb.decisions import Code, Decision, PlanFacts
from eplb.errors import EplbError, PlanError, StoreFenced, StoreUnavailable, WindowError
from eplb.migration import Actuator, Desired, Plan, make_plan, observe, read_desired
from eplb.planner import Planner, PlanRequest, PlanResult
from eplb.ranks import LiveRanks
from eplb.snapshot import PoolSnapshot
from eplb.store.client import Store
from eplb.store.control import PAUSED_FIELD, set_paused
from eplb.store.lease import Lease
from eplb.window import Window

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.config import DaemonConfig, PoolConfig
    from eplb.controller import Outcome
    from eplb.migration import MigrationStatus
    from eplb.planner import PlanFailure
    from eplb.window import WindowView

CYCLES_BEFORE_LEADING = 2
"""A new process reads what the ranks say for two cycles before it asks for the lease, so that its term is above all others."""


class Pool:
    """The edges of one pool: store, lease, window, planner process and actuator around the pure controller.

    ``url`` of the store; ``owner`` a name unique to this process; ``advice_folder`` where plans are written in advise mode.
    """

    def __init__(
        self, config: PoolConfig, daemon: DaemonConfig, url: str, owner: str, advice_folder: Path
    ) -> None:
        self.config, self.facts = config, config.facts()
        self.store = Store(
            url, config.name, window_s=config.window.window_s, socket_timeout_s=daemon.store.timeout_s
        )
        self._lease = Lease(self.store, daemon.store.lease_ttl_s, owner)
        self._window = Window(
            self.facts,
            config.count_kind(),
            window_s=config.window.window_s,
            max_slices=config.window.max_slices,
            window_bytes=config.window.window_bytes,
            stale_after_s=config.alert.stale_after_s,
        )
        self._planner = Planner(config.solver.deadline_s)
        self._actuator = Actuator(
            self.facts,
            self.store.write_desired,
            offer_expires_s=config.migration.offer_expires_s,
            staging_slots=config.migration.staging_slots,
            bytes_per_rank=config.migration.bytes_per_rank,
        )
        self._advice_folder = advice_folder
        self._log = structlog.get_logger("eplb").bind(pool=config.name)
        self._state = State()
        self._cycles = 0
        self._key_losses = 0
        self._asked_base: NDArray[np.int32] | None = None
        self._plan: Plan | None = None
        self._before: NDArray[np.int32] | None = None
        self._known_digest = 0
        self._alert = alert.AlertState()
        self._last: PoolSnapshot | None = None
        self._last_code: tuple[str, str] = ("", "")

    # --- one cycle ------------------------------------------------------------------------------------------------

    def cycle(self) -> PoolSnapshot:
        """Observe, assess, decide, act once; a store that is away changes nothing but the snapshot."""
        self._cycles += 1
        try:
            snapshot = self._cycle()
        except StoreFenced as error:
            self._log.warning("fenced", reason=str(error))
            self._lease.step_down()
            snapshot = self._without_store()
        except StoreUnavailable as error:
            self._log.warning("store_away", reason=str(error))
            snapshot = self._without_store()
        self._last = self._watch(snapshot)
        return self._last

    def _cycle(self) -> PoolSnapshot:
        now_ms = self.store.time_ms()
        self._lead()
        ranks = LiveRanks.read(self.store.read_live())
        control = self.store.read_control()
        self._read_frames(ranks)
        view = self._window.view(now_ms)
        desired = read_desired(self.store.read_desired())
        status = observe(self.facts, desired, ranks.records, now_ms)
        seen = self._assess(view, ranks)
        inputs = Inputs(
            pool=self.config.name,
            time_ms=now_ms,
            term=self._lease.term or desired.term,
            leader=self._lease.term is not None,
            paused=control.get(PAUSED_FIELD, b"0") == b"1",
            map_version=ranks.map_version,
            assessment=seen,
            answer=self._answer(ranks, desired, now_ms),
            movement=_movement(status),
            realised_gain=self._realised_gain(view, ranks),
        )
        outcome = decide(self._state, inputs, self.config.gate)
        decision = self._act(outcome, view, ranks, desired, now_ms)
        self._state = outcome.state
        if inputs.leader:
            self.store.append_log(decision.as_json())
        self._tell(decision)
        return self._snapshot(inputs, view, ranks, status, decision)

    def close(self) -> None:
        """Give the lease back and end the solver's process; the map stays as it is."""
        self._planner.close()
        try:
            self._lease.release()
        except EplbError as error:
            self._log.warning("lease_kept", reason=str(error))
        self.store.close()

    # --- observe --------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        if self._lease.term is not None and self._lease.renew():
            return
        if self._cycles > CYCLES_BEFORE_LEADING:
            term = self._lease.acquire(floor=self._window.term_seen)
            if term is not None:
                self._log.info("leading", term=term)

    def _read_frames(self, ranks: LiveRanks) -> None:
        rows, digests = ranks.rows, ranks.layer_digests
        if rows is not None and digests is not None and ranks.live_digest != self._known_digest:
            try:
                self._window.add_map(digests, rows, ranks.shares)
                self._known_digest = ranks.live_digest
            except WindowError as error:
                self._log.warning("live_map_refused", reason=str(error))
        nodes = range(self.facts.nodes)
        while entries := self.store.tail_load(nodes):
            for time_ms, node, payload in entries:
                self._window.ingest(time_ms, node, payload)
        if self.store.key_losses != self._key_losses:
            self._key_losses = self.store.key_losses
            self._window.clear("a stream vanished from the store or its clock stepped back")

    def _assess(self, view: WindowView, ranks: LiveRanks) -> Assessment | None:
        if view.ranks_seen == 0:
            return None
        return assess(
            view,
            self.facts,
            live_digest=ranks.live_digest,
            trigger_slices=self.config.gate.trigger_slices,
            facts_problem=ranks.problem(self.facts),
        )

    # --- plan -----------------------------------------------------------------------------------------------------

    def _answer(self, ranks: LiveRanks, desired: Desired, now_ms: int) -> Answer | None:
        result = self._planner.poll()
        if result is None:
            return None
        base, rows = self._asked_base, ranks.rows
        if not isinstance(result, PlanResult) or base is None or rows is None:
            return _failed(result)
        self._plan = make_plan(
            self.facts,
            base,
            result.target,
            created_ms=now_ms,
            shares=result.shares if self.config.dispatch == "weighted" else None,
            base_shares=ranks.shares,
            gain_ratio=result.ratio_before - result.ratio_after,
            reasons=result.reasons,
        )
        plan = PlanFacts(
            plan_id=self._plan.plan_id,
            map_version=1 + max(ranks.map_version, desired.map_version),
            moves=self._plan.moves,
            bytes=self._plan.bytes,
            ratio_before=result.ratio_before,
            ratio_after=result.ratio_after,
            bound=result.bound,
            slices_planned=result.slices_planned,
            slices_held_out=result.slices_held_out,
            reasons=result.reasons,
        )
        return Answer(plan, base_is_live=bool(np.array_equal(base, rows)))

    def _ask(self, view: WindowView, ranks: LiveRanks) -> None:
        rows = ranks.rows
        if rows is None:
            raise PlanError("rank 0 has not reported the live map")
        keep = served_by(view, ranks.live_digest)
        self._asked_base = rows
        self._planner.start(
            PlanRequest(
                tokens=view.tokens[keep],
                current=rows,
                ranks=self.facts.ranks,
                nodes=self.facts.nodes,
                slots_per_rank=self.facts.slots_per_rank,
                slack=self.config.solver.slack,
                dispatch=self.config.dispatch,
                effort=self.config.solver.effort,
                seed=self.config.solver.seed,
            )
        )

    # --- act ------------------------------------------------------------------------------------------------------

    def _act(
        self, outcome: Outcome, view: WindowView, ranks: LiveRanks, desired: Desired, now_ms: int
    ) -> Decision:
        """Do what was decided; when it turns out to be impossible, say so in the record instead."""
        try:
            self._perform(outcome.action, view, ranks, desired, now_ms)
        except PlanError as error:
            self._log.warning("not_done", action=str(outcome.action), reason=str(error))
            return _impossible(outcome.decision, error)
        return outcome.decision

    def _perform(
        self, action: Action, view: WindowView, ranks: LiveRanks, desired: Desired, now_ms: int
    ) -> None:
        if action is Action.CANCEL_PLAN:
            self._planner.close()
        elif action is Action.ASK_PLAN:
            self._ask(view, ranks)
        elif action is Action.WRITE_ADVICE:
            self._advise()
        elif action is not Action.NONE:
            self._write(action, ranks, desired, now_ms)

    def _write(self, action: Action, ranks: LiveRanks, desired: Desired, now_ms: int) -> None:
        """Actions on the store's desired map, which only a leader may write."""
        term = self._lease.term
        if term is None:
            raise PlanError("the lease ran out in the middle of the cycle; the next leader goes on")
        if action is Action.OFFER_NEXT and self._plan is not None and desired.offer is None:
            self._before = ranks.rows
            self._actuator.begin(self._plan, desired, ranks.records, term=term, now_ms=now_ms)
        elif action is Action.OFFER_NEXT:
            self._actuator.offer_next(desired, ranks.records, term=term, now_ms=now_ms)
        elif action is Action.OFFER_AGAIN:
            self._actuator.offer_again(desired, term=term, now_ms=now_ms)
        elif action is Action.CLOSE:
            self._actuator.close(desired, term=term)
            self._plan = None
        else:
            self._actuator.withdraw(desired, term=term)
            self._plan, self._before = None, None
            if action is Action.WITHDRAW_AND_PAUSE:
                set_paused(self.store, paused=True)

    def _advise(self) -> None:
        if self._plan is None or self._asked_base is None:
            return
        path = write_advice(self._advice_folder, self.facts, self._plan, self._asked_base)
        self._log.info("advice_written", file=str(path), plan_id=self._plan.plan_id, moves=self._plan.moves)
        self._plan = None

    # --- settle ---------------------------------------------------------------------------------------------------

    def _realised_gain(self, view: WindowView, ranks: LiveRanks) -> float | None:
        """Ratio that the map before the plan would show on the slices since the switch, minus the measured one."""
        if self._state.name is not Name.SETTLING or self._before is None:
            return None
        keep = view.live_digests == ranks.live_digest
        if int(keep.sum()) < self.config.gate.min_slices:
            return None
        before, self._before = self._before, None
        return realised_gain(view, self.facts, before, ranks.live_digest, self.config.dispatch)

    # --- show -----------------------------------------------------------------------------------------------------

    def _snapshot(
        self, inputs: Inputs, view: WindowView, ranks: LiveRanks, status: MigrationStatus, decision: Decision
    ) -> PoolSnapshot:
        phases = self.config.served_phases()
        views = [(phase.name.lower(), self._window.view(inputs.time_ms, phase)) for phase in phases]
        return PoolSnapshot(
            pool=self.config.name,
            time_ms=inputs.time_ms,
            mode=self.config.gate.mode,
            leader=inputs.leader,
            term=inputs.term,
            paused=inputs.paused,
            map_version=ranks.map_version,
            migration_state=str(status.state),
            ranks_expected=view.ranks_expected,
            ranks_seen=view.ranks_seen,
            coverage=view.coverage,
            stale_ranks=view.stale_ranks,
            newest_age_s=view.newest_age_s,
            readings=tuple(
                read_phase(v, self.facts, name, live_digest=ranks.live_digest) for name, v in views
            ),
            counters=view.counters,
            decision=decision.as_dict(),
            model_layers=self.facts.model_layers,
        )

    def _without_store(self) -> PoolSnapshot:
        """The last snapshot, marked: the store is away, so nothing is known to be led."""
        if self._last is not None:
            return replace(self._last, leader=self._lease.term is not None, store_up=False)
        return PoolSnapshot(
            pool=self.config.name,
            time_ms=0,
            mode=self.config.gate.mode,
            leader=False,
            term=0,
            paused=False,
            map_version=0,
            migration_state="idle",
            ranks_expected=self.facts.ranks,
            ranks_seen=0,
            coverage=0.0,
            stale_ranks=tuple(range(self.facts.ranks)),
            newest_age_s=None,
            readings=(),
            counters={},
            decision=None,
            model_layers=self.facts.model_layers,
            store_up=False,
        )

    def _watch(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """Judge the alert's condition and log its one event when it changes."""
        rule = alert.AlertRule(
            self.config.alert.recoverable_excess, self.config.alert.for_s, self.config.alert.keep_s
        )
        excess = alert.worst_excess(snapshot, self.config.gate.coverage) if snapshot.store_up else None
        self._alert, event = alert.observe(self._alert, excess, time.monotonic(), rule)
        if event is not None:
            alert.log_event(self._log, self.config.name, event, rule)
        return replace(snapshot, alerting=self._alert.high)

    def _tell(self, decision: Decision) -> None:
        """One log line when the decision changes, not one a cycle."""
        told = (decision.state, str(decision.code))
        if told != self._last_code:
            self._last_code = told
            self._log.info(
                "decision", **{name: value for name, value in decision.as_dict().items() if name != "pool"}
            )


def _movement(status: MigrationStatus) -> Movement:
    codes = {code for _, code, _ in status.refusals}
    return Movement(str(status.state), status.sentence, term_refused=codes == {str(RefusalCode.OLD_TERM)})


def _failed(result: PlanResult | PlanFailure) -> Answer:
    if isinstance(result, PlanResult):
        return Answer(None, Code.PLAN_STALE, "rank 0 no longer reports its live map; the plan is dropped")
    return Answer(None, Code(result.code), result.sentence)


def _impossible(decision: Decision, error: PlanError) -> Decision:
    return replace(decision, code=Code.PLAN_STALE, sentence=f"{decision.sentence}; not done: {error}")
