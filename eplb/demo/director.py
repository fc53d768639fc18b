"""The course of the demo as a pure state machine: facts of a step in, commands out.

    warm up -> start reading -> resume the daemon, wait for its placement -> placed reading -> change of domain, drain ->
    shifted reading -> resume, wait -> replaced reading -> done

The daemon may act only in the two stages that wait for its placement, and a reading starts again when the map that is served changes, so that
a reading belongs to one map. While the solver works, steps are paced: ranks and
solver share this machine's cores, and the sequences of the first domain must last until the plan is live. A daemon that keeps finding nothing
worth moving ends the wait too: the reading is then of the map that it kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from eplb.demo.errors import RunStalled


class Stage(Enum):
    """Where the run is, with the words that the table shows."""

    WARM_UP = "warming up"
    START = "reading 1 of 4: start map"
    PLACING = "the daemon looks for a first placement"
    PLACED = "reading 2 of 4: placed"
    DRAINING = "change of domain: requests in flight run to their end"
    SHIFTED = "reading 3 of 4: new domain, old placement"
    REPLACING = "the daemon looks for a second placement"
    REPLACED = "reading 4 of 4: placed again"
    DONE = "done"


_AFTER = dict(zip(list(Stage)[:-1], list(Stage)[1:], strict=True))
READINGS = {
    Stage.START: "start",
    Stage.PLACED: "placed",
    Stage.SHIFTED: "shifted",
    Stage.REPLACED: "replaced",
}
_WAITS_FOR_MAP = (Stage.PLACING, Stage.REPLACING)


class Command(Enum):
    """What the caller has to do."""

    PAUSE = "pause the daemon"
    RESUME = "resume the daemon"
    EASE = "pace the steps"
    FULL = "serve at full speed"
    SHIFT = "take new requests from the second domain"
    STOP = "end the run"


@dataclass(frozen=True, slots=True)
class Limits:
    """Steps of each part: ``reading_steps`` of a reading, ``settle_steps`` before it, ``wait_steps`` for a placement,
    ``content_steps`` of a daemon that finds nothing worth moving, ``drain_steps`` from the change of domain until the last request of the
    first one has ended: its longest sequence + 1.
    """

    warm_up_steps: int = 40
    settle_steps: int = 5
    reading_steps: int = 60
    wait_steps: int = 250
    content_steps: int = 60
    drain_steps: int = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class StepFact:
    """What the director looks at: ``ratio`` mean over layers of max/mean tokens received per rank; ``map_version`` that all ranks have
    reached, which moves with the last wave of a plan; ``live_digest`` of the map that all ranks serve, which moves with every wave;
    ``second_domain`` requests in flight that belong to the second domain, of ``requests``; ``shift_step`` step at which the second domain began,
    -1 = not yet; ``planning`` the solver works; ``content`` the daemon finds nothing worth moving.
    """

    step: int
    ratio: float
    map_version: int
    second_domain: int
    requests: int
    live_digest: int = field(kw_only=True)
    shift_step: int = field(kw_only=True)
    planning: bool = False
    content: bool = False


@dataclass(frozen=True, slots=True)
class Direction:
    """State of the run.

    ``since_step`` first step of the stage. ``base_version``, ``base_digest`` map version and digest when the stage began or its reading
    began again. ``ratios`` of the reading under way.
    ``readings`` finished ones by name: mean ratio. ``steps_read`` their lengths. ``eased`` steps are paced.
    ``content_since`` first step of the daemon's being content, -1 = it is not. ``kept`` readings of a map that the daemon kept.
    """

    stage: Stage = Stage.WARM_UP
    since_step: int = 0
    base_version: int = 0
    base_digest: int = 0
    ratios: tuple[float, ...] = ()
    readings: dict[str, float] = field(default_factory=dict)
    steps_read: dict[str, int] = field(default_factory=dict)
    eased: bool = False
    content_since: int = -1
    kept: tuple[str, ...] = ()


def advance(
    state: Direction, fact: StepFact, limits: Limits, why: str = ""
) -> tuple[Direction, tuple[Command, ...]]:
    """The next state and what to do now; ``why`` is the daemon's last decision, for the error.

    Raises:
        RunStalled: a stage waited longer than its limit.
    """
    after, commands = _move_on(state, fact, limits, why)
    ease = after.stage in _WAITS_FOR_MAP and fact.planning
    if ease == after.eased:
        return after, commands
    return replace(after, eased=ease), (*commands, Command.EASE if ease else Command.FULL)


def _move_on(
    state: Direction, fact: StepFact, limits: Limits, why: str
) -> tuple[Direction, tuple[Command, ...]]:
    waited = fact.step - state.since_step
    if state.stage is Stage.WARM_UP:
        return _next(state, fact) if waited >= limits.warm_up_steps else (state, ())
    if state.stage in READINGS:
        return _read(state, fact, limits)
    if state.stage in _WAITS_FOR_MAP:
        return _wait(state, fact, limits, why)
    if state.stage is Stage.DRAINING:
        return _drain(state, fact, limits)
    return state, ()


def _drain(state: Direction, fact: StepFact, limits: Limits) -> tuple[Direction, tuple[Command, ...]]:
    """One step of waiting for the last request of the first domain."""
    if fact.second_domain == fact.requests:
        return _next(state, fact)
    ordered = fact.step - state.since_step
    if fact.shift_step < 0 and ordered >= limits.wait_steps:
        raise RunStalled(f"the ranks have not changed the domain {ordered} steps after they were told to")
    drained = fact.step - fact.shift_step
    if fact.shift_step >= 0 and drained >= limits.drain_steps:
        left = fact.requests - fact.second_domain
        raise RunStalled(
            f"{left} requests of the first domain are still in flight {drained} steps after the change"
        )
    return state, ()


def _wait(
    state: Direction, fact: StepFact, limits: Limits, why: str
) -> tuple[Direction, tuple[Command, ...]]:
    """One step of waiting for a new map, or for the daemon's firm opinion that none is needed."""
    if fact.map_version > state.base_version:
        return _next(state, fact)
    since = -1
    if fact.content:
        since = state.content_since if state.content_since >= 0 else fact.step
        if fact.step - since >= limits.content_steps:
            return _next(replace(state, kept=(*state.kept, READINGS[_AFTER[state.stage]])), fact)
    waited = fact.step - state.since_step
    if waited >= limits.wait_steps:
        raise RunStalled(
            f"no new placement went live in {waited} steps while {state.stage.value}; the daemon's last decision: "
            f"{why or 'none was seen'}"
        )
    return replace(state, content_since=since), ()


def _read(state: Direction, fact: StepFact, limits: Limits) -> tuple[Direction, tuple[Command, ...]]:
    """One step of a reading; a map that changes under it starts it again."""
    if (fact.map_version, fact.live_digest) != (state.base_version, state.base_digest):
        again = replace(
            state,
            since_step=fact.step,
            base_version=fact.map_version,
            base_digest=fact.live_digest,
            ratios=(),
            kept=tuple(name for name in state.kept if name != READINGS[state.stage]),
        )
        return again, ()
    if fact.step - state.since_step < limits.settle_steps:
        return state, ()
    ratios = (*state.ratios, fact.ratio)
    if len(ratios) < limits.reading_steps:
        return replace(state, ratios=ratios), ()
    name = READINGS[state.stage]
    done = replace(
        state,
        ratios=(),
        readings={**state.readings, name: sum(ratios) / len(ratios)},
        steps_read={**state.steps_read, name: len(ratios)},
    )
    return _next(done, fact)


def _next(state: Direction, fact: StepFact) -> tuple[Direction, tuple[Command, ...]]:
    """Enter the following stage, with what its beginning asks for."""
    stage = _AFTER[state.stage]
    entered = replace(
        state,
        stage=stage,
        since_step=fact.step + 1,
        base_version=fact.map_version,
        base_digest=fact.live_digest,
        ratios=(),
        content_since=-1,
    )
    commands = {
        Stage.PLACING: (Command.RESUME,),
        Stage.PLACED: (Command.PAUSE,),
        Stage.DRAINING: (Command.SHIFT,),
        Stage.REPLACING: (Command.RESUME,),
        Stage.REPLACED: (Command.PAUSE,),
        Stage.DONE: (Command.STOP,),
    }.get(stage, ())
    return entered, commands
