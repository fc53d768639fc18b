"""Steps that are kept, and moments: some steps of one minute, which stay or go together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from eplb.history.features import feature, mixed, noise
from eplb.history.packing import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOMENT_MS = 60_000
"""A minute: long enough that its steps together rise above their noise, short against what changes traffic."""

MOMENT_STEPS = 8
"""Steps of a minute that are kept: they share most of their requests, so that more of them would tell little."""

StepKey = tuple[int, int]
"""(run_id, group_step)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the store's time at which it was first seen, its key, and its packed counts."""

    time_ms: int
    run_id: int
    group_step: int
    packed: bytes

    @property
    def key(self) -> StepKey:
        """What the step is known by."""
        return self.run_id, self.group_step


@dataclass(frozen=True)
class Moment:
    """Steps of one minute of the store's clock, oldest first, at least one; ``shape`` = (layers, experts) of their counts."""

    number: int
    steps: tuple[Step, ...]
    shape: tuple[int, int]

    @property
    def time_s(self) -> float:
        """The store's time at its beginning, seconds."""
        return self.number * MOMENT_MS / 1000

    @property
    def bytes(self) -> int:
        """Packed counts."""
        return sum(len(step.packed) for step in self.steps)

    @cached_property
    def feature(self) -> NDArray[np.int64]:
        """What tells its traffic from others', see :func:`eplb.history.features.feature`."""
        return feature(self._counts)

    @cached_property
    def noise(self) -> int:
        """See :func:`eplb.history.features.noise`."""
        return noise(self._counts)

    @property
    def _counts(self) -> NDArray[np.int64]:
        total = np.zeros(self.shape, dtype=np.int64)
        for step in self.steps:
            total += unpack(step.packed, *self.shape)
        return total


def ranks_of_steps(
    run_ids: NDArray[np.uint64], group_steps: NDArray[np.int64], seed: int
) -> NDArray[np.uint64]:
    """Random rank of every step, uint64 [steps], a function of its key and the seed alone; the lowest are kept."""
    start = mixed(np.array([seed], dtype=np.uint64))
    return mixed(mixed(run_ids ^ start) ^ group_steps.astype(np.uint64))


def rank_of_moment(number: int, seed: int) -> int:
    """Random rank of a minute; where there are too many, the lowest are kept."""
    none = np.zeros(1, dtype=np.uint64)
    return int(ranks_of_steps(none, np.array([number], dtype=np.int64), seed)[0])
