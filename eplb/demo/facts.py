"""What ranks tell the parent process, and what the parent makes of it; frozen, arrays never written to after creation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one step on one rank, microseconds.

    ``step_us``: from the gate before the forward to the forward's end. ``gate_us``: the part before the forward: the group's header and
    vote, writing and reading back slots, new dispatch tables. ``dispatch_us``: replica choice, exchange of counts and sending of rows. ``expert_us``: expert compute on received rows.
    ``combine_us``: the collective that brings results back, waiting included. ``wait_us``: the part of it spent waiting for slower
    ranks = its duration minus the shortest one that this rank has seen in that layer (the transfer alone). No barrier is used.
    """

    step_us: float
    dispatch_us: float
    expert_us: float
    combine_us: float
    wait_us: float
    gate_us: float = 0.0

    def after_gate(self, gate_us: float) -> StepTimes:
        """The times of the whole step, where these are the forward's."""
        return replace(self, step_us=self.step_us + gate_us, gate_us=gate_us)


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank.

    ``sequences``, ``positions``: int32 [tokens], the tokens that the rank served. ``states``: float32 [layers, tokens, hidden], the
    hidden state after every layer. ``received``: int64 [layers, slots_per_rank], rows that arrived at this rank's slots.
    ``sent`` contributions that the rank dispatched in all layers; ``combined`` those that it added to its tokens.
    ``live_digest`` digest of the map that its dispatch tables were built from; ``map_version`` as its agent reports it.
    ``shift_step`` step at which the second domain began, -1 = not yet.
    """

    rank: int
    step: int
    sequences: NDArray[np.int32]
    positions: NDArray[np.int32]
    states: NDArray[np.float32]
    received: NDArray[np.int64]
    sent: int
    combined: int
    live_digest: int
    map_version: int
    shift_step: int
    times: StepTimes


@dataclass(frozen=True, slots=True)
class RankSwitch:
    """A rank switched layers before a step; ``rows`` int32 [len(layers), slots]."""

    rank: int
    step: int
    map_version: int
    layers: tuple[int, ...]
    rows: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank finished loading; ``startup_s`` seconds since its process began."""

    rank: int
    startup_s: float


@dataclass(frozen=True, slots=True)
class RankEnd:
    """A rank left its loop; ``error`` a sentence or "". ``at_s`` by the host's monotonic clock. ``notes`` its counters by name."""

    rank: int
    error: str
    at_s: float
    notes: dict[str, int]


RankMessage = RankStep | RankSwitch | RankReady | RankEnd


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One step of all ranks, in rank order."""

    step: int
    ranks: tuple[RankStep, ...]

    def received(self) -> NDArray[np.int64]:
        """Tokens received by each rank: int64 [layers, ranks], by the runtime's own counters at the destination."""
        return np.stack([rank.received.sum(axis=1) for rank in self.ranks], axis=1)

    def ratio_by_layer(self) -> NDArray[np.float64]:
        """Imbalance ratio of every layer: float64 [layers], max / mean over ranks."""
        load = self.received()
        return np.asarray(load.max(axis=1) / np.maximum(load.mean(axis=1), 1e-12))

    @property
    def map_version(self) -> int:
        """Version that every rank has reached."""
        return min(rank.map_version for rank in self.ranks)

    @property
    def live_digest(self) -> int:
        """Digest of the map that all ranks serve; 0 when they do not serve the same one."""
        digests = {rank.live_digest for rank in self.ranks}
        return digests.pop() if len(digests) == 1 else 0

    @property
    def gate_us(self) -> float:
        """Time of the gate before the step: its slowest rank, microseconds."""
        return max(rank.times.gate_us for rank in self.ranks)

    @property
    def step_us(self) -> float:
        """Time of the step, gate included: its slowest rank, microseconds."""
        return max(rank.times.step_us for rank in self.ranks)
