"""The plan that is being made or moved: what was asked, from which map, and what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from eplb.advice import write_advice
from eplb.assess import served_by
from eplb.controller import Answer
from eplb.decisions import Code, PlanFacts
from eplb.errors import NeedsStaging, PlanError
from eplb.history import History
from eplb.migration import make_plan
from eplb.migration.duration import Links, predicted_seconds
from eplb.planner import HELD_OUT_PARTS, PlanRequest, PlanResult

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.config import PoolConfig
    from eplb.history import PlannedOn
    from eplb.migration import Desired, Plan
    from eplb.planner import PlanFailure
    from eplb.ports import Solver
    from eplb.ranks import LiveRanks
    from eplb.window import WindowView


class Planning:
    """One solve at a time and the plan that came of it; forgotten when leadership is lost or the plan is done."""

    def __init__(self, facts: PoolFacts, config: PoolConfig, solver: Solver) -> None:
        self._facts, self._config, self._solver = facts, config, solver
        self._base: NDArray[np.int32] | None = None
        self._load: NDArray[np.float64] | None = None
        self._links = Links.of(config.migration, None)
        self._planned_on: PlannedOn | None = None
        self._history = History(
            facts,
            config.history,
            horizon_s=config.gate.cooldown_s,
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

    def ask(self, view: WindowView, ranks: LiveRanks) -> None:
        """Ask for a plan from the live map, on the window and its history, judged by slices that the live map served.

        Raises:
            PlanError: nobody says what the live map is.
        """
        rows = ranks.rows
        if rows is None:
            raise PlanError("rank 0 has not reported the live map; wait for its record")
        facts, settings = self._facts, self._config.solver
        served = served_by(view, ranks.live_digest)
        material = self._history.material(view, served, int(served.sum()) // HELD_OUT_PARTS)
        self._planned_on = material.planned_on
        self._links = Links.of(self._config.migration, view.step_us)
        self._base, self._load = rows, view.tokens[served].sum(axis=0).astype(np.float64)
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
                slack=settings.slack,
                dispatch=self._config.dispatch,
                effort=settings.effort,
                seed=settings.seed,
            )
        )

    def answer(self, ranks: LiveRanks, desired: Desired, now_ms: int) -> Answer | None:
        """What the solver has said by now, as facts for the gate; None = nothing yet, or nothing was asked."""
        result = self._solver.poll()
        if result is None:
            return None
        base, rows = self._base, ranks.rows
        if not isinstance(result, PlanResult) or base is None or rows is None:
            return _failed(result)
        told = self._planned_on
        if told is not None:
            result = replace(result, reasons=(*result.reasons, ("history", told.sentence)))
        try:
            self.plan = self._plan_from(result, base, ranks, now_ms)
        except NeedsStaging as error:
            return Answer(None, Code.NEEDS_STAGING, str(error))
        except PlanError as error:
            return Answer(None, Code.PLAN_STALE, str(error))
        facts = PlanFacts(
            plan_id=self.plan.plan_id,
            map_version=1 + max(ranks.map_version, desired.map_version),
            moves=self.plan.moves,
            bytes=self.plan.bytes,
            seconds=predicted_seconds(self._facts, self._links, self.plan, base, self._config.wave_slots()),
            ratio_before=result.ratio_before,
            ratio_after=result.ratio_after,
            bound=result.bound,
            slices_planned=result.slices_planned,
            slices_held_out=result.slices_held_out,
            solve_s=round(result.solve_s, 3),
            reasons=result.reasons,
            planned_on=told,
        )
        return Answer(facts, base_is_live=bool(np.array_equal(base, rows)))

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


def _failed(result: PlanResult | PlanFailure) -> Answer:
    if isinstance(result, PlanResult):
        return Answer(None, Code.PLAN_STALE, "rank 0 no longer reports its live map; the plan is dropped")
    return Answer(None, Code(result.code), result.sentence)
