"""What became of each plan: measured after the switch, again while it lasts, and kept for the gate and for the next leader."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eplb.gains import KEPT_MS, Departure, Gains, Outcome, half_life_s, read_gains
from eplb.price import StepFit, fit_step_time, step_cost
from eplb.rollback import NOISE, Realised, fell_short, realised, standard_error
from eplb.states import Name
from eplb.thrash import departures
from placement import Placement, Topology
from placement.errors import PlacementError
from placement.layer import ordered_sum

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.config import PoolConfig
    from eplb.decisions import PlanFacts
    from eplb.ranks import LiveRanks
    from eplb.states import Movement, State
    from eplb.window import WindowView

RECORDS_READ = 2_000
"""Decisions that a new leader reads back: three hours of cycles, and the record of eight plans is short of that in any pool that works."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one cycle found of a plan; None = nothing new."""

    realised: Realised | None = None
    outcome: Outcome | None = None
    departed: Departure | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The map before a plan and how it did.

    ``topology`` and ``run_id`` of the group that served it. ``gap`` measured minus evaluated mean ratio while it was live. ``fit`` step times under it. ``group_step`` the newest when the plan was offered.
    ``planned_tokens``: int64 [layers, experts], the window's sum then.
    """

    placement: Placement
    topology: Topology
    run_id: int
    gap: float
    fit: StepFit | None
    group_step: int
    planned_tokens: NDArray[np.int64]


class FollowUp:
    """One plan at a time, from its offer until the next one; of the earlier ones the record alone.

    ``gains`` that record; ``recalled`` it was read from the log since this process leads. ``planned_tokens``: int64 [layers, experts], what the plan was made on that was applied last; None = unknown.
    """

    def __init__(self, facts: PoolFacts, config: PoolConfig) -> None:
        self._facts, self._config = facts, config
        self.gains = Gains()
        self.planned_tokens: NDArray[np.int64] | None = None
        self.leave()

    @property
    def before(self) -> Placement | None:
        """The map before the plan that is followed."""
        return None if self._before is None else self._before.placement

    def recall(self, records: Iterable[bytes]) -> None:
        """Begin with what the decision log says of earlier plans, oldest record first."""
        self.gains, self.recalled = read_gains(records), True

    def leave(self) -> None:
        """Another process may lead: what it finds is in the log alone."""
        self.recalled = False
        self.forget()

    def drop(self) -> None:
        """Another model is served: what plans brought, what they took from where and what they were made on was the old one's."""
        self.gains, self.planned_tokens = Gains(), None
        self.forget()

    def forget(self) -> None:
        """The plan did not come to pass, or is another leader's."""
        self._before: Before | None = None
        self._outcome: Outcome | None = None
        self._plan: PlanFacts | None = None
        self._rows: NDArray[np.int32] | None = None
        self._digest = self._measured_ms = 0

    def offered(self, view: WindowView, ranks: LiveRanks) -> None:
        """A plan is about to be offered: remember the map that it starts from."""
        self.forget()
        rows, first = ranks.rows, ranks.first
        if rows is None or first is None:
            return
        facts, placement = self._facts, Placement(rows, ranks.shares)
        topology = Topology.uniform(
            ranks=facts.ranks,
            nodes=facts.nodes,
            slots_per_rank=facts.slots_per_rank,
            dead=frozenset(ranks.lost),
        )
        keep = view.same_members & (view.live_digests == ranks.live_digest)
        fit = fit_step_time(step_cost(view)[keep], view.step_us_by_slice[keep])
        self._before = Before(
            placement,
            topology,
            first.run_id,
            gap=self._gap(view, placement, topology, keep),
            fit=fit if isinstance(fit, StepFit) else None,
            group_step=int(view.group_steps[-1]) if view.slices else 0,
            planned_tokens=view.tokens.sum(axis=0),
        )

    def look(
        self, state: State, movement: Movement, view: WindowView, ranks: LiveRanks, now_ms: int
    ) -> Found:
        """What this cycle shows of the plan that is followed; new facts go into the record at once."""
        if self._before is not None and ranks.first is not None and ranks.first.run_id != self._before.run_id:
            # Another life of the group: its maps and steps say nothing of this plan.
            self.forget()
        if self._outcome is not None and now_ms - self._outcome.applied_ms >= KEPT_MS:
            self.forget()
        self.gains = self.gains.recent(now_ms)
        try:
            found = self._found(state, movement, view, ranks, now_ms)
        except PlacementError:
            # The map before cannot serve what is served now, so there is nothing to compare with.
            self.forget()
            found = Found()
        if found.outcome is not None:
            self.gains = self.gains.with_outcome(found.outcome)
        if found.departed is not None:
            self.gains = self.gains.with_departure(found.departed)
        return found

    def _found(
        self, state: State, movement: Movement, view: WindowView, ranks: LiveRanks, now_ms: int
    ) -> Found:
        if self._before is None:
            return Found()
        if state.name is Name.MOVING and movement.state == "all_live" and state.plan is not None:
            gone = self._put_back if state.plan.rollback else self._applied
            return gone(state.plan, view, ranks, now_ms)
        if self._outcome is None or state.name not in (Name.SETTLING, Name.OBSERVING):
            return Found()
        fresh_ms = (
            self._outcome.applied_ms if state.name is Name.SETTLING else self._measured_ms + self._window_ms
        )
        return self._measured(view, ranks, now_ms) if now_ms > fresh_ms else Found()

    def _applied(self, plan: PlanFacts, view: WindowView, ranks: LiveRanks, now_ms: int) -> Found:
        before, rows = self._before, ranks.rows
        if before is None or rows is None:
            return Found()
        self._outcome = Outcome(
            plan.plan_id,
            now_ms,
            # What membership asked for was promised nothing.
            math.nan if plan.degraded else plan.gain,
            bytes=plan.bytes,
            slowdown_s=self._slowdown_s(view, before),
        )
        self._digest, self._rows, self.planned_tokens = ranks.live_digest, rows, before.planned_tokens
        self._plan = plan
        gone = departures(before.placement.physical_to_logical, rows, self._facts.slots_per_rank)
        return Found(outcome=self._outcome, departed=Departure(now_ms, gone))

    def _put_back(self, _plan: PlanFacts, _view: WindowView, ranks: LiveRanks, now_ms: int) -> Found:
        outcome, served, rows = self._outcome, self._rows, ranks.rows
        self.forget()
        if outcome is None or served is None or rows is None:
            return Found()
        gone = departures(served, rows, self._facts.slots_per_rank)
        return Found(outcome=replace(outcome, rolled_back=True), departed=Departure(now_ms, gone))

    def _measured(self, view: WindowView, ranks: LiveRanks, now_ms: int) -> Found:
        """The first measurement is the gain; each later one, a window on, tells how much of it is left."""
        before, outcome = self._before, self._outcome
        if before is None or outcome is None or ranks.live_digest != self._digest:
            return Found()
        # A map that comes back has slices of its first time in the window.
        keep = (view.live_digests == self._digest) & (view.group_steps > before.group_step)
        if int(keep.sum()) < self._config.gate.min_slices:
            return Found()
        found = realised(
            view.tokens[keep],
            view.ratio[keep],
            before.placement,
            before.topology,
            dispatch=self._config.dispatch,
            gap=before.gap,
        )
        self._measured_ms = now_ms
        if not math.isfinite(outcome.realised):
            plan, least = self._plan, self._config.gate.least_delivered
            short = plan is not None and not plan.degraded and fell_short(found, plan, least)
            self._outcome = replace(outcome, realised=found.gain, error=found.error, missed=short)
            return Found(found, self._outcome)
        noise = NOISE * math.hypot(outcome.error, found.error)
        elapsed_s = (now_ms - outcome.applied_ms) / 1000.0
        fading_s = half_life_s(outcome.realised, found.gain, elapsed_s, noise)
        if fading_s == outcome.half_life_s:
            return Found()
        self._outcome = replace(outcome, half_life_s=fading_s)
        return Found(outcome=self._outcome)

    @property
    def _window_ms(self) -> int:
        return round(self._config.window.window_s * 1000)

    def _gap(self, view: WindowView, live: Placement, topology: Topology, keep: NDArray[np.bool_]) -> float:
        """What an evaluation does not see of the live map: mean measured minus mean evaluated ratio, 0 without slices."""
        if not keep.any():
            return 0.0
        try:
            found = realised(
                view.tokens[keep], view.ratio[keep], live, topology, dispatch=self._config.dispatch
            )
        except PlacementError:
            return 0.0
        return -found.gain if math.isfinite(found.gain) else 0.0

    def _slowdown_s(self, view: WindowView, before: Before) -> float:
        """Serving time surely lost while a plan moved: the steps since its offer against the line of the steps before it."""
        # Steps of an earlier life may have higher numbers.
        during = (view.group_steps > before.group_step) & (view.run_ids == before.run_id)
        cost, step_us = step_cost(view)[during], view.step_us_by_slice[during]
        known = np.isfinite(step_us) & np.isfinite(cost)
        if before.fit is None or not known.any():
            return 0.0
        late_us = step_us[known] - before.fit.base_us - before.fit.us_per_token * cost[known]
        steps = int(view.group_steps[-1]) - before.group_step
        # What chance alone may show is left out: it would be a price for each byte of the next plan, which may be a thousand times as large.
        sure_us = ordered_sum(late_us) / len(late_us) - NOISE * standard_error(late_us)
        return max(0.0, sure_us * steps * 1e-6)
