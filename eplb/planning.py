"""The plan that is being made or moved: what was asked, from which map, and what came of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import all_shares
from eplb.advice import write_advice
from eplb.assess import balanced_ratio, served_by
from eplb.decisions import Code, PlanFacts
from eplb.errors import NeedsStaging, PlanError
from eplb.evacuation import urgent_material
from eplb.history import History
from eplb.migration import make_plan
from eplb.migration.duration import Links, predicted_seconds
from eplb.migration.put_back import put_back_plan
from eplb.movement import ROLLBACK
from eplb.planner import HELD_OUT_PARTS, PlanRequest, PlanResult
from eplb.price import Worth, price_phases, worth_of
from eplb.states import Answer
from eplb.thrash import arrivals, busiest_moves, share_undone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.config import PoolConfig
    from eplb.evacuation import Need
    from eplb.gains import Gains
    from eplb.history import PlannedOn
    from eplb.history.material import Material
    from eplb.migration import Desired, Plan
    from eplb.planner import PlanFailure
    from eplb.ports import Solver
    from eplb.ranks import LiveRanks
    from eplb.window import WindowView
    from placement import Placement

_BACK = ((ROLLBACK, "puts the map before the last plan back"),)


class Planning:
    """One solve at a time and the plan that came of it; forgotten when leadership is lost or the plan is done."""

    def __init__(self, facts: PoolFacts, config: PoolConfig, solver: Solver) -> None:
        self._facts, self._config, self._solver = facts, config, solver
        self._base: NDArray[np.int32] | None = None
        self._base_digest = 0
        self._plans: dict[str, Plan] = {}
        self._back: Plan | None = None
        self._degraded = False
        self._load: NDArray[np.float64] | None = None
        self._links = Links.of(config.migration, None)
        self._planned_on: PlannedOn | None = None
        self._history = History(
            facts,
            config.history,
            horizon_s=config.gate.interval_s,
            most_slices=config.window.max_slices,
        )
        self.plan: Plan | None = None

    @property
    def solving(self) -> bool:
        """Whether a solve is running."""
        return self._solver.busy

    def warm(self) -> None:
        """Get the solver ready, so that the first request does not wait for its imports."""
        self._solver.warm()

    def note(self, view: WindowView, ranks: LiveRanks) -> None:
        """Take the view's new steps into the history of the model that the ranks serve."""
        self._history.note(view, 0 if ranks.first is None else ranks.first.model_digest)

    def save(self) -> None:
        """Write the history down, if it is to outlive the process."""
        self._history.save()

    def close(self) -> None:
        """End the solve and forget the plan."""
        self._solver.close()
        self.forget()

    def forget(self) -> None:
        """The plan is done, refused or another's."""
        self.plan, self._base, self._load, self._planned_on = None, None, None, None
        self._plans, self._back = {}, None

    def choose(self, plan: PlanFacts | None) -> None:
        """The plan that is to be moved or written down, of those that were made last."""
        made = {**self._plans, **({} if self._back is None else {self._back.plan_id: self._back})}
        self.plan = None if plan is None else made.get(plan.plan_id)

    def ask(self, view: WindowView, ranks: LiveRanks, gains: Gains, need: Need | None = None) -> None:
        """Ask for a plan from the live map, on the window and its history, judged by slices that the live map served.

        ``need`` why membership asks for it; an urgent one takes what slices there are.

        Raises:
            PlanError: nobody says what the live map is.
        """
        rows = ranks.rows
        if rows is None:
            raise PlanError("the first member has not reported the live map; wait for its record")
        facts, settings, gate = self._facts, self._config.solver, self._config.gate
        served = served_by(view, ranks.live_digest)
        urgent = need is not None and need.urgent
        if urgent:
            material = urgent_material(view, facts)
        else:
            material = self._history.material(view, served, int(served.sum()) // HELD_OUT_PARTS)
        self._planned_on, self._degraded = material.planned_on, need is not None
        self._links = Links.of(self._config.migration, view.step_us)
        self._base, self._base_digest = rows, ranks.live_digest
        self._load = _expected_load(material)
        self._plans = {}
        barred_ms = view.time_ms - round(1000 * gate.thrash_intervals * gate.interval_s)
        self._solver.start(
            PlanRequest(
                tokens=material.tokens,
                weights=material.weights,
                held_out=material.held_out,
                current=rows,
                shares=ranks.shares,
                ranks=facts.ranks,
                nodes=facts.nodes,
                slots_per_rank=facts.slots_per_rank,
                dead=frozenset(ranks.lost),
                slack=settings.slack,
                dispatch=self._config.dispatch,
                effort=settings.effort,
                seed=settings.seed,
                phases=None if urgent else view.phases[served],
                # What membership asks for is a change of ranks, not of load: nothing that guards balance holds an expert back.
                barred=gains.left_since(barred_ms) if gate.thrash_intervals and need is None else (),
                enough_ratio=None if need else balanced_ratio(view, facts, served, gate.target_excess),
                min_gain_shares=gate.min_gain_shares,
            )
        )

    def answer(self, ranks: LiveRanks, desired: Desired, now_ms: int, gains: Gains) -> Answer | None:
        """What the solver has said by now, as facts for the gate; None = nothing yet, or nothing was asked."""
        result = self._solver.poll()
        if result is None:
            return self._overtaken(ranks)
        base, rows = self._base, ranks.rows
        if not isinstance(result, PlanResult) or base is None or rows is None:
            return _failed(result)
        told = self._planned_on
        if told is not None:
            result = replace(result, reasons=(*result.reasons, ("history", told.sentence)))
        version = 1 + max(ranks.map_version, desired.map_version)
        try:
            made = [
                replace(self._facts_of(found, base, ranks, now_ms, gains), map_version=version)
                for found in (result, result.shares_only)
                if found is not None
            ]
        except NeedsStaging as error:
            return Answer(None, code=Code.NEEDS_STAGING, sentence=str(error))
        except PlanError as error:
            return Answer(None, code=Code.PLAN_STALE, sentence=str(error))
        base_is_live = ranks.live_digest == self._base_digest
        return Answer(made[0], made[1] if len(made) > 1 else None, base_is_live=base_is_live)

    def _overtaken(self, ranks: LiveRanks) -> Answer | None:
        """The end of a solve whose live map is gone: what follows, such as the plan for a lost rank, must not wait for it."""
        if not self._solver.busy or ranks.rows is None or ranks.live_digest == self._base_digest:
            return None
        self.close()
        self._solver.warm()
        return Answer(base_is_live=False)

    def priced(self, answer: Answer, views: Sequence[tuple[int, WindowView]], gains: Gains) -> Answer:
        """The answer with what its plan saves and asks in time, by the steps in the views of each phase."""
        plan, gate = answer.plan, self._config.gate
        if plan is None or plan.shares_only:
            return answer
        each, migration = self._facts.bytes_per_expert, self._config.migration
        link = migration.node_link_bytes_per_s if self._facts.nodes == 1 else migration.link_bytes_per_s
        worth = worth_of(
            plan.falls,
            price_phases(views, gate.price_us_per_token),
            exposed_share=gate.exposed_share,
            stall_s=plan.busiest_moves * each / link,
            slowdown_s=plan.bytes * gains.slowdown_s_per_byte,
        )
        if plan.moves and not each:
            worth = Worth(no_price="the bytes of an expert are unknown (model.bytes_per_expert)")
        return replace(answer, plan=replace(plan, worth=worth))

    def roll_back(
        self, before: Placement | None, ranks: LiveRanks, now_ms: int, *, unverified: bool = False
    ) -> PlanFacts | None:
        """A plan from the live map back to an earlier one, ready to be chosen; None where either is unknown, they are the same or no waves lead back.

        ``unverified``: ranks were read back otherwise than asked, so that each starts from a map of its own.
        """
        rows, first = ranks.rows, ranks.first
        if before is None or rows is None or first is None:
            return None
        target = before.physical_to_logical
        shares = all_shares(target, before.shares) if self._config.dispatch == "weighted" else None
        if unverified:
            plan = put_back_plan(
                self._facts, target, shares, first, ranks.records, created_ms=now_ms, reasons=_BACK
            )
        else:
            plan = self._plan_back(rows, target, shares, ranks.shares, now_ms)
        if plan is None:
            return None
        # One, not one a cycle: it is asked for again for as long as a failed read-back lasts.
        self._back = plan
        return PlanFacts(
            plan_id=plan.plan_id,
            map_version=1 + ranks.map_version,
            moves=plan.moves,
            bytes=plan.bytes,
            ratio_before=math.nan,
            ratio_after=math.nan,
            bound=math.nan,
            slices_planned=0,
            slices_held_out=0,
            layers=len({change.layer for change in plan.changes}),
            rollback=True,
        )

    def _plan_back(
        self,
        rows: NDArray[np.int32],
        target: NDArray[np.int32],
        shares: NDArray[np.float64] | None,
        live_shares: NDArray[np.float64] | None,
        now_ms: int,
    ) -> Plan | None:
        try:
            plan = make_plan(
                self._facts,
                rows,
                target,
                created_ms=now_ms,
                shares=shares,
                base_shares=live_shares,
                wave_slots=self._config.wave_slots(),
                reasons=_BACK,
            )
        except PlanError:
            return None
        return plan if plan.changes else None

    def _facts_of(
        self,
        result: PlanResult,
        base: NDArray[np.int32],
        ranks: LiveRanks,
        now_ms: int,
        gains: Gains,
    ) -> PlanFacts:
        plan = self._plan_from(result, base, ranks, now_ms)
        self._plans[plan.plan_id] = plan
        coming = arrivals(base, result.target, self._facts.slots_per_rank)
        last = gains.departed[-1].places if gains.departed else ()
        return PlanFacts(
            plan_id=plan.plan_id,
            map_version=0,
            moves=plan.moves,
            bytes=plan.bytes,
            seconds=predicted_seconds(self._facts, self._links, plan, base, self._config.wave_slots()),
            ratio_before=result.ratio_before,
            ratio_after=result.ratio_after,
            bound=result.bound,
            slices_planned=result.slices_planned,
            slices_held_out=result.slices_held_out,
            solve_s=round(result.solve_s, 3),
            reasons=result.reasons,
            planned_on=self._planned_on,
            degraded=self._degraded,
            layers=len({change.layer for change in plan.changes}),
            gain_error=result.gain_error,
            falls=result.falls,
            busiest_moves=busiest_moves(coming),
            undoes=share_undone(coming, last),
        )

    def write_advice(self, folder: Path) -> Path | None:
        """Write the plan as a map file instead of moving it.

        Raises:
            FileError: the file cannot be written.
        """
        if self.plan is None or self._base is None:
            return None
        return write_advice(folder, self._facts, self.plan, self._base)

    def _plan_from(self, result: PlanResult, base: NDArray[np.int32], ranks: LiveRanks, now_ms: int) -> Plan:
        return make_plan(
            self._facts,
            base,
            result.target,
            created_ms=now_ms,
            shares=result.shares if self._config.dispatch == "weighted" else None,
            base_shares=ranks.shares,
            load=self._load,
            wave_slots=self._config.wave_slots(),
            gain_ratio=result.ratio_before - result.ratio_after,
            reasons=result.reasons,
        )


def _expected_load(material: Material) -> NDArray[np.float64]:
    """Tokens of the slices that a plan is made on, each as much as it counts: float64 [layers, experts]."""
    slices = material.tokens[: len(material.tokens) - material.held_out]
    weights = np.ones(len(slices)) if material.weights is None else material.weights
    load = np.zeros(material.tokens.shape[1:])
    # Slice by slice: np.sum may add in another order elsewhere, and what is moved first depends on it.
    for tokens, weight in zip(slices, weights, strict=True):
        load += tokens * weight
    return load


def _failed(result: PlanResult | PlanFailure) -> Answer:
    if isinstance(result, PlanResult):
        return Answer(
            None,
            code=Code.PLAN_STALE,
            sentence="the first member no longer reports its live map; the plan is dropped",
        )
    return Answer(None, code=Code(result.code), sentence=result.sentence)
