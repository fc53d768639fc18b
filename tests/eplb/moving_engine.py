"""An engine that moves experts by itself: layer by layer over several forwards, between the memories of its threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_crew import GATE_STEPS, NAMES, RUN_ID, Crew, CrewMemory

from eplb.agent import Agent, ThreadGroup
from eplb.agent.memory import own_slots
from eplb.agent.mover import Routed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from eplb.agent import LayerChange

MODEL_DIGEST = 4711


@dataclass
class Faults:
    """What goes wrong on one rank, each once: layers whose row is not switched, that are switched to another row, or whose weights do not come.

    ``will_not_begin`` the engine raises when it is told to; ``forwards_per_layer`` how slow it is.
    """

    keeps_row: set[int] = field(default_factory=set)
    other_row: dict[int, np.ndarray] = field(default_factory=dict)
    weights_lost: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    will_not_begin: bool = False
    forwards_per_layer: int = 2


class MovingEngine:
    """One rank of it: weights, the rows that its router reads, and the way it moves; ``engines`` are all ranks of its group."""

    model_digest = MODEL_DIGEST

    def __init__(self, facts, rank: int, rows: np.ndarray, group: ThreadGroup, engines: list) -> None:
        self.facts, self.rank, self.memory = facts, rank, CrewMemory(facts, rank, rows)
        self.rows = rows.copy()
        self.faults = Faults()
        self.begun = 0
        self.commits: list[int] = []
        self.holds = {
            (layer, slot): int(rows[layer, slot])
            for layer in range(facts.layers)
            for slot in own_slots(facts, rank)
        }
        self._unsound: set[tuple[int, int]] = set()
        self._group, self._engines = group, engines
        self._left: list[LayerChange | None] = []
        self._waits = 0

    # What the agent asks.

    def begin(self, changes: Sequence[LayerChange]) -> None:
        self.begun += 1
        self.commits = []
        if self.faults.will_not_begin:
            self.faults.will_not_begin = False
            self._left = [None] * len(changes)  # it still meets the others, with nothing to move
            raise RuntimeError("no memory for the move")
        self._left, self._waits = list(changes), self.faults.forwards_per_layer

    def committed(self) -> Sequence[int]:
        return tuple(self.commits)

    def read_back(self, layer: int) -> Routed:
        if layer in self.faults.unreadable:
            self.faults.unreadable.remove(layer)
            raise OSError("the router's table cannot be read")
        row = self.rows[layer].copy()
        row[[slot for where, slot in self._unsound if where == layer]] = -1
        return Routed(row)

    # What it does in its forwards.

    def forward(self) -> None:
        """Move a step on, together with all ranks: gather what comes here, meet, then write and route by it."""
        if not self._left:
            return
        change = self._left[0]
        arrivals = {} if change is None else self._gathered(change)
        ready = self._group.min(int(change is None or self._waits <= 0))
        self._waits -= 1
        if not ready:
            return
        if change is not None:
            self._commit(change, arrivals)
        self._left.pop(0)
        self._waits = self.faults.forwards_per_layer
        self._group.min(1)

    def _gathered(self, change: LayerChange) -> dict[int, dict[str, np.ndarray]]:
        where = {
            expert: (engine, slot)
            for engine in self._engines
            for (layer, slot), expert in engine.holds.items()
            if layer == change.layer
        }
        arrivals = {}
        for slot in own_slots(self.facts, self.rank):
            engine, source = where[change.target[slot]]
            tensors = engine.memory.tensors(change.layer, source)
            arrivals[slot] = {name: tensors[name].copy() for name in NAMES}
        return arrivals

    def _commit(self, change: LayerChange, arrivals) -> None:
        layer, faults = change.layer, self.faults
        lost = layer in faults.weights_lost
        faults.weights_lost.discard(layer)
        for slot, tensors in arrivals.items():
            moved = self.holds[layer, slot] != change.target[slot]
            if moved and lost:
                self._unsound.add((layer, slot))
                continue
            for name in NAMES:
                self.memory.tensors(layer, slot)[name][:] = tensors[name]
            self.holds[layer, slot] = change.target[slot]
            self._unsound.discard((layer, slot))
        if layer in faults.other_row:
            self.rows[layer] = faults.other_row.pop(layer)
        elif layer in faults.keeps_row:
            faults.keeps_row.remove(layer)
        else:
            self.rows[layer] = change.target
        self.commits.append(layer)


class DelegatedCrew(Crew):
    """A crew whose ranks run that engine: their agents have neither memory nor transport."""

    def __post_init__(self) -> None:
        self.engines: list[MovingEngine] = []
        meetings = ThreadGroup.create(self.facts.ranks, 30.0)
        for rank in range(self.facts.ranks):
            self.engines.append(MovingEngine(self.facts, rank, self.rows, meetings[rank], self.engines))
        super().__post_init__()
        self.memories = [engine.memory for engine in self.engines]

    def _make(self, rank: int) -> None:
        self.agents[rank] = Agent(
            self.facts, self.groups[rank], None, None, self.rows, run_id=RUN_ID if rank == 0 else 0, incarnation=rank,
            gate_steps=GATE_STEPS, link=self.link, recorder=self.recorders[rank], clock=self.clocks[rank],
            guards=self.guards, mover=self.engines[rank],
        )  # fmt: skip

    def forward(self, rank: int, step: int) -> None:
        super().forward(rank, step)
        self.engines[rank].forward()

    def routed(self) -> list[bytes]:
        """The rows that each rank's router reads."""
        return [engine.rows.tobytes() for engine in self.engines]
