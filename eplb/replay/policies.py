"""Policies that need no daemon: never, from scratch every N windows, and the oracle that knows the next window."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placement import LoadTrace, solve
from placement.layer import make_layer
from placement.relabel import relabel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from eplb.replay.schedule import Steps
    from placement import Topology

    Plan = Callable[[NDArray[np.int64]], NDArray[np.int32]]
    """From slices, int64 [slices, layers, experts], to a map, int32 [layers, slots]."""


class Policy(Protocol):
    """Decides the map of every window, or of every ``at_a_time`` steps of it.

    ``name`` as it was asked for. ``free``: its moves cost nothing.
    """

    name: str
    free: bool

    @property
    def at_a_time(self) -> int | None:
        """Steps that one map serves at least, None = whole windows."""

    def map_for(self, steps: Steps) -> NDArray[np.int32]:
        """The map that serves these steps, int32 [layers, slots]; only the oracle may look at their load."""

    def seen(self, steps: Steps) -> None:
        """They have been served."""

    def close(self) -> None:
        """The run is over."""


class Never:
    """Keep the map that the engine started with."""

    name, free, at_a_time = "never", False, None

    def __init__(self, start: NDArray[np.int32]) -> None:
        self._rows = start

    def map_for(self, steps: Steps) -> NDArray[np.int32]:
        """The map of the start."""
        del steps
        return self._rows

    def seen(self, steps: Steps) -> None:
        """Nothing is learned."""

    def close(self) -> None:
        """Nothing is held."""


class EveryN:
    """Plan from scratch every ``every`` windows on the slices of the newest ``memory`` windows, and switch at once.

    The new map is given to the ranks so that as much as possible stays where it is, which published balancers do not do.
    """

    free, at_a_time = False, None

    def __init__(
        self,
        name: str,
        plan: Plan,
        start: NDArray[np.int32],
        topology: Topology,
        *,
        every: int,
        memory: int,
    ) -> None:
        self.name = name
        self._every, self._plan, self._rows, self._topology = every, plan, start, topology
        self._memory: deque[NDArray[np.int64]] = deque(maxlen=memory)

    def map_for(self, steps: Steps) -> NDArray[np.int32]:
        """The newest plan, which was made when a number of windows that ``every`` divides was over."""
        if self._memory and steps.index % self._every == 0:
            slices = np.concatenate(self._memory)
            self._rows = onto(self._rows, self._plan(slices), slices, self._topology)
        return self._rows

    def seen(self, steps: Steps) -> None:
        """Remember its slices."""
        self._memory.append(steps.routed())

    def close(self) -> None:
        """Nothing is held."""


class Oracle:
    """Plan every window on its own load, before it is served, with free moves: what no policy can know."""

    name, free, at_a_time = "oracle", True, None

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def map_for(self, steps: Steps) -> NDArray[np.int32]:
        """The map for this very load."""
        return self._plan(steps.routed())

    def seen(self, steps: Steps) -> None:
        """Nothing is learned."""

    def close(self) -> None:
        """Nothing is held."""


def solver(topology: Topology, effort: str, seed: int) -> Plan:
    """Plan from scratch with our own solver."""

    def plan(slices: NDArray[np.int64]) -> NDArray[np.int32]:
        result = solve(LoadTrace(slices), topology, effort=effort, seed=seed)
        return result.placement.physical_to_logical

    return plan


def greedy(topology: Topology) -> Plan:
    """Plan from scratch as DeepSeek's EPLB does, on the sum over all slices."""

    def plan(slices: NDArray[np.int64]) -> NDArray[np.int32]:
        summed = slices.sum(axis=0).astype(np.float64)
        rows = [greedy_row(layer, topology.ranks, topology.slots // topology.ranks) for layer in summed]
        return np.array(rows, dtype=np.int32)

    return plan


def greedy_row(summed: NDArray[np.float64], ranks: int, slots_per_rank: int) -> NDArray[np.int64]:
    """The flat mode of the published EPLB on one layer's summed load, float64 [experts]; returns int64 [slots].

    Copies go to the expert with the largest load per copy; then the copies, heaviest first, each to the least loaded rank
    with a free slot. Twins on a rank are allowed, as published.
    """
    counts = np.ones(len(summed), dtype=np.int64)
    for _ in range(ranks * slots_per_rank - len(summed)):
        counts[(summed / counts).argmax()] += 1
    copies = np.repeat(np.arange(len(summed)), counts)
    unit = (summed / counts)[copies]
    loads, filled = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    row = np.zeros(ranks * slots_per_rank, dtype=np.int64)
    for copy in np.argsort(-unit, kind="stable").tolist():
        rank = int(np.where(filled < slots_per_rank, loads, np.inf).argmin())
        row[rank * slots_per_rank + filled[rank]] = copies[copy]
        loads[rank] += unit[copy]
        filled[rank] += 1
    return row


def onto(
    live: NDArray[np.int32], rows: NDArray[np.int32], slices: NDArray[np.int64], topology: Topology
) -> NDArray[np.int32]:
    """``rows`` with its ranks renamed so that most experts of ``live`` stay on their rank; both int32 [layers, slots]."""
    named = np.empty_like(rows)
    for at, (row, old) in enumerate(zip(_full(rows, slices), _full(live, slices), strict=True)):
        layer = make_layer(slices[:1, at], np.ones(1), topology)
        renamed = relabel(layer, row, old)
        named[at] = np.where(renamed == layer.experts, -1, renamed)
    return named


def _full(rows: NDArray[np.int32], slices: NDArray[np.int64]) -> NDArray[np.int64]:
    """A map as the solver's rows: int64, the number of experts = empty."""
    full: NDArray[np.int64] = np.where(rows < 0, slices.shape[2], rows).astype(np.int64)
    return full
