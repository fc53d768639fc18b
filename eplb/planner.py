"""Solving outside the daemon's loop: one spawned process that is killed at its deadline."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.trial import judge, shares_first, without_thrash
from placement import Limits, LoadTrace, Placement, Topology, compile_kernels, solve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from eplb.trial import Judged

READY = "ready"
START_LIMIT_S = 180.0
"""A process that has not compiled the search by then is given up; half a minute is usual where no machine code is kept."""

SEARCH_PART = 0.6
"""Part of the deadline after which a search ends with what it has; the rest is for valuing rows and for the plan itself."""

HELD_OUT_PARTS = 4
"""One part in this many of the window, the newest, is kept from the solver and judges its plan."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything the solver needs, as plain arrays.

    ``tokens``: int64 [slices, layers, experts], oldest slice first; the last
    ``held_out`` of them judge the plan, None = one part in HELD_OUT_PARTS. ``weights``: float64 [slices - held_out], how much each of the others counts, None = all
    equal. ``current``: int32 [layers, slots], the live map;
    ``dead`` ranks that serve nothing; ``shares``: float64 [layers, slots] that it is served with, None = even. ``search_s``: seconds after which the search ends
    early, with the reason ``truncated``; None = never. ``phases``: int8 [slices], -1 = of several, None = unknown. ``barred``: (layer, rank, expert) that may not
    come back (:mod:`eplb.thrash`). ``enough_ratio``: mean ratio on the held-out slices that new shares alone are to reach, so that nothing need move; ``min_gain_shares`` the least
    that a change of shares must gain; only where dispatch is weighted.
    """

    tokens: NDArray[np.int64]
    current: NDArray[np.int32]
    ranks: int
    nodes: int
    slots_per_rank: int
    dead: frozenset[int] = frozenset()
    held_out: int | None = None
    weights: NDArray[np.float64] | None = None
    shares: NDArray[np.float64] | None = None
    slack: float = 0.005
    dispatch: str = "even"
    effort: str = "normal"
    seed: int = 0
    search_s: float | None = None
    phases: NDArray[np.int8] | None = None
    barred: tuple[tuple[int, int, int], ...] = ()
    enough_ratio: float | None = None
    min_gain_shares: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The solver's answer, judged on the slices that it did not see.

    ``target``: int32 [layers, slots]. ``shares``: float64 [layers, slots]. Ratios are means of max/mean. ``gain_error``: standard error over the held-out slices of
    their mean fall. ``falls``: (phase, mean fall of the sum over layers of the costliest rank's tokens). ``shares_only``: the live map with new shares, where
    those alone gain enough to be an answer of their own.
    """

    target: NDArray[np.int32]
    shares: NDArray[np.float64]
    ratio_before: float
    ratio_after: float
    bound: float
    slices_planned: int
    slices_held_out: int
    solve_s: float
    reasons: tuple[tuple[str, str], ...]
    gain_error: float = 0.0
    falls: tuple[tuple[int, float], ...] = ()
    shares_only: PlanResult | None = None


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why there is no plan: ``planning_timeout`` or ``planning_failed``, and a sentence."""

    code: str
    sentence: str


def make_plan(request: PlanRequest) -> PlanResult:
    """Solve on the older slices and judge on the newest; with fewer than ``HELD_OUT_PARTS`` slices nothing can be held out.

    Raises:
        placement.PlacementError: the request is infeasible or its counts are refused.
        ValueError: too few slices to hold any out.
    """
    slices = request.tokens.shape[0]
    held_out = slices // HELD_OUT_PARTS if request.held_out is None else request.held_out
    if not 1 <= held_out < slices:
        raise ValueError(
            f"{slices} slices: at least {HELD_OUT_PARTS} are needed to judge a plan on load it has not seen"
        )
    started_s = time.monotonic()
    topology = Topology.uniform(
        ranks=request.ranks,
        nodes=request.nodes,
        slots_per_rank=request.slots_per_rank,
        dead=request.dead,
    )
    seen = LoadTrace(request.tokens[:-held_out], request.weights)
    unseen = LoadTrace(request.tokens[-held_out:])
    shares_only = _shares_only(request, seen, unseen, topology, started_s)
    if shares_only is not None and shares_only.ratio_after <= (request.enough_ratio or 0.0):
        return shares_only
    result = solve(
        seen,
        topology,
        current=Placement(request.current, request.shares),
        limits=Limits(slack=request.slack),
        dispatch=request.dispatch,
        effort=request.effort,
        seed=request.seed,
        should_stop=None if request.search_s is None else _Until(started_s + request.search_s).passed,
    )
    reasons = tuple((reason.code, reason.sentence) for reason in result.reasons)
    target, returned = without_thrash(request, result.placement)
    judged = judge(request, target, unseen, topology)
    answer = _answer(
        target,
        judged,
        slices_planned=seen.slices,
        bound=result.bound,
        started_s=started_s,
        reasons=(*reasons, *returned),
    )
    return replace(answer, shares_only=shares_only)


def _shares_only(
    request: PlanRequest, seen: LoadTrace, unseen: LoadTrace, topology: Topology, started_s: float
) -> PlanResult | None:
    found = shares_first(request, seen, unseen, topology)
    if found is None:
        return None
    change, judged = found
    reason = ("shares_only", f"shares of {len(change.layers)} layers change, no expert moves")
    return _answer(
        change.placement,
        judged,
        slices_planned=seen.slices,
        bound=change.objective,
        started_s=started_s,
        reasons=(reason,),
    )


def _answer(
    target: Placement,
    judged: Judged,
    *,
    slices_planned: int,
    bound: float,
    started_s: float,
    reasons: tuple[tuple[str, str], ...],
) -> PlanResult:
    if target.shares is None:
        raise ValueError("the solver gave no shares")
    return PlanResult(
        target=np.asarray(target.physical_to_logical, dtype=np.int32),
        shares=np.asarray(target.shares, dtype=np.float64),
        ratio_before=judged.ratio_before,
        ratio_after=judged.ratio_after,
        bound=float(bound),
        slices_planned=slices_planned,
        slices_held_out=judged.slices_held_out,
        solve_s=time.monotonic() - started_s,
        reasons=reasons,
        gain_error=judged.gain_error,
        falls=judged.falls,
    )


@dataclass(frozen=True, slots=True)
class _Until:
    """A time of the monotonic clock, in seconds."""

    end_s: float

    def passed(self) -> bool:
        return time.monotonic() >= self.end_s


def _end_with_parent() -> None:
    """A daemon that is killed cannot end its solver, which would otherwise go on to the end of its solve."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _serve(pipe: Connection, dispatch: str) -> None:
    """Compile the search, say so, and answer requests until the parent goes away."""
    threading.Thread(target=_end_with_parent, name="eplb-planner-parent", daemon=True).start()
    compile_kernels(dispatch)
    pipe.send(READY)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            answer: PlanResult | PlanFailure = make_plan(request)
        except Exception as error:  # noqa: BLE001 - whatever the solver does, the daemon must hear of it
            answer = PlanFailure("planning_failed", f"the solver refused: {type(error).__name__}: {error}")
        pipe.send(answer)


class Planner:
    """At most one solve at a time, in a process that is kept warm and killed when ``deadline_s`` has passed.

    Most of the deadline is for the search, which then ends with what it has: a pool too large for the effort still gets a plan.
    ``dispatch``: the rule whose search is compiled ahead; requests with others are answered too, the first one later.
    """

    def __init__(self, deadline_s: float, dispatch: str = "even") -> None:
        self.deadline_s = deadline_s
        self._dispatch = dispatch
        self._process: Any = None
        self._pipe: Connection | None = None
        self._started_s: float | None = None
        self._ready = False

    @property
    def busy(self) -> bool:
        """Whether a solve is running."""
        return self._started_s is not None

    @property
    def pid(self) -> int | None:
        """Process id of the solver, None while there is none."""
        return None if self._process is None else self._process.pid

    def warm(self) -> None:
        """Start the process now; it imports the solver meanwhile."""
        self._ready_pipe()

    def start(self, request: PlanRequest) -> None:
        """Hand the request to the process; what goes wrong is told by :meth:`poll`.

        Raises:
            RuntimeError: a solve is already running.
        """
        if self.busy:
            raise RuntimeError("a plan is already being made")
        self._started_s = time.monotonic()
        try:
            self._ready_pipe().send(replace(request, search_s=SEARCH_PART * self.deadline_s))
        except OSError:
            # The process died under the request: poll finds the closed pipe and says so.
            return

    def poll(self) -> PlanResult | PlanFailure | None:
        """The answer when there is one; None while the solver works or nothing was asked."""
        if self._started_s is None:
            return None
        if self._pipe is None:
            self._started_s = None
            return PlanFailure(
                "planning_failed", "the solver's process could not be started; see the log of the system"
            )
        try:
            answer = self._receive(self._pipe)
            if answer is not None:
                self._started_s = None
                return answer
        except (EOFError, OSError):
            code = self._process.exitcode if self._process is not None else None
            self.close()
            return PlanFailure(
                "planning_failed", f"the solver's process died with exit code {code}; the map stays as it is"
            )
        waited_s = time.monotonic() - self._started_s
        if waited_s <= (self.deadline_s if self._ready else START_LIMIT_S):
            return None
        late = self._too_late(waited_s)
        self.close()
        return PlanFailure("planning_timeout", f"{late}; the solver was stopped and the map stays")

    def _too_late(self, waited_s: float) -> str:
        if self._ready:
            return f"no plan after {waited_s:.1f} s (deadline {self.deadline_s:g} s)"
        return f"the solver has not compiled its search after {waited_s:.1f} s (limit {START_LIMIT_S:g} s)"

    def _receive(self, pipe: Connection) -> PlanResult | PlanFailure | None:
        while pipe.poll(0):
            message = pipe.recv()
            if message != READY:
                return message  # type: ignore[no-any-return]
            # The deadline is the solver's, not the compiler's.
            self._ready, self._started_s = True, time.monotonic()
        return None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._started_s = None
        self._end_process()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(timeout=5.0)
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process, self._pipe, self._ready = None, None, False

    def _ready_pipe(self) -> Connection:
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        self._end_process()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._dispatch), name="eplb-planner", daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe = ours
        return ours
