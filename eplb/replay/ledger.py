"""What a policy's maps cost: time of every step, stall of every change, moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.replay.changes import Undone, holds, stall_s
from placement import LoadTrace, Placement, evaluate
from placement.layer import ordered_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.replay.presets import Machine
    from eplb.replay.schedule import Steps
    from placement import Roofline, Topology


STEPS_AT_A_TIME = 128
"""Steps that one map is scored on together."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a machine asks for serving and moving: kernels of a rank, bytes of an expert, and its link."""

    machine: Machine
    kernels: Roofline
    bytes_per_expert: int
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What every account of a replay has in common; ``undone_within``: windows in which a move taken back counts as undone."""

    topology: Topology
    experts: int
    prices: tuple[Price, ...]
    undone_within: int


@dataclass(frozen=True, slots=True)
class Bill:
    """Seconds on one machine: the expert layers of all steps, and the stalls."""

    machine: str
    serving_s: float
    stall_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.serving_s + self.stall_s


@dataclass(frozen=True, slots=True)
class Account:
    """One policy over one run.

    ``ratio``: mean over steps and layers of max / mean tokens over ranks, each step served by a map made before it (the oracle's
    is not). ``ratio_by_window``: the same by window. ``changes``: times that experts came to a rank. ``moves``: experts
    new to a rank, 0 where they are free. ``undone``: moves undone soon. ``decisions``: how often the daemon took each.
    """

    policy: str
    seed: int
    steps: int
    tokens: int
    ratio: float
    ratio_by_window: tuple[float, ...]
    changes: int
    moves: int
    bytes: int
    undone: int
    bills: tuple[Bill, ...]
    decisions: tuple[tuple[str, int], ...] = ()

    def on(self, machine: str) -> Bill:
        """The bill of one machine."""
        return next(bill for bill in self.bills if bill.machine == machine)


class Ledger:
    """Keeps one policy's account while the run is served.

    ``start``: int32 [layers, slots], the map before the first window. ``free``: moves cost nothing and are not counted.
    """

    def __init__(
        self, policy: str, seed: int, start: NDArray[np.int32], terms: Terms, *, free: bool = False
    ) -> None:
        self._policy, self._seed, self._terms, self._free = policy, seed, terms, free
        self._undone = Undone(terms.undone_within)
        self._rows = start
        self._held = holds(start, terms.experts, terms.topology)
        self._serving_us: dict[str, list[float]] = {price.machine.name: [] for price in terms.prices}
        self._stall_s = dict.fromkeys(self._serving_us, 0.0)
        self._waiting: list[NDArray[np.int64]] = []
        self._waiting_steps = 0
        self._ratios: list[float] = []
        self._windows: list[int] = []
        self._tokens = self._changes = self._moves = 0

    def change(self, window: int, rows: NDArray[np.int32]) -> None:
        """Pay for the map that serves from a window on; the same map again is no change."""
        if np.array_equal(rows, self._rows):
            return
        self._flush()
        after = holds(rows, self._terms.experts, self._terms.topology)
        arrivals = (after & ~self._held).sum(axis=2)
        self._changes += bool(arrivals.any())
        if not self._free:
            self._moves += int(arrivals.sum())
            self._undone.note(window, self._held, after)
            for price in self._terms.prices:
                self._stall_s[price.machine.name] += stall_s(
                    arrivals, price.bytes_per_expert, price.link_bytes_per_s
                )
        self._rows, self._held = rows, after

    def serve(self, steps: Steps) -> None:
        """Serve some steps with the present map."""
        self._waiting.append(steps.routed())
        self._waiting_steps += len(steps.batch)
        self._windows.extend([steps.index] * len(steps.batch))
        self._tokens += int(steps.batch.sum())
        if self._waiting_steps >= STEPS_AT_A_TIME:
            self._flush()

    def _flush(self) -> None:
        """Score the steps that wait; many at a time, because a call costs more than a step."""
        if not self._waiting:
            return
        routed = np.concatenate(self._waiting)
        self._waiting, self._waiting_steps = [], 0
        trace = LoadTrace(routed, steps_per_slice=np.ones(len(routed), dtype=np.int64))
        placement = Placement(self._rows)
        for price in self._terms.prices:
            score = evaluate(placement, trace, self._terms.topology, cost=price.kernels)
            step_us = np.cumsum(score.rank_cost.max(axis=2), axis=1)[:, -1]
            self._serving_us[price.machine.name].extend(step_us.tolist())
        load = score.rank_load
        mean = load.sum(axis=2) / self._terms.topology.ranks
        ratio = np.cumsum(load.max(axis=2) / mean, axis=1)[:, -1] / mean.shape[1]
        self._ratios.extend(ratio.tolist())

    def account(self) -> Account:
        """The account so far."""
        self._flush()
        each = self._terms.prices[0].bytes_per_expert
        bills = tuple(
            Bill(name, ordered_sum(np.array(us)) / 1e6 if us else 0.0, self._stall_s[name])
            for name, us in self._serving_us.items()
        )
        return Account(
            policy=self._policy,
            seed=self._seed,
            steps=len(self._ratios),
            tokens=self._tokens,
            ratio=_mean(np.array(self._ratios)),
            ratio_by_window=self._by_window(),
            changes=self._changes,
            moves=self._moves,
            bytes=self._moves * each,
            undone=self._undone.count,
            bills=bills,
        )

    def _by_window(self) -> tuple[float, ...]:
        windows, ratios = np.array(self._windows, dtype=np.int64), np.array(self._ratios)
        return tuple(_mean(ratios[windows == window]) for window in np.unique(windows))


def _mean(values: NDArray[np.float64]) -> float:
    return ordered_sum(values) / len(values) if len(values) else float("nan")
