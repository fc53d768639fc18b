"""Step samples that wait for the next frame: bounded, the oldest goes first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectors.facts import StepSample


class SampleRing:
    """At most ``capacity`` samples, and never more than ``limit_bytes`` of counts in them; ``lost`` counts overwritten ones."""

    def __init__(self, capacity: int, counts_bytes: int, limit_bytes: int) -> None:
        self.lost = 0
        self._samples: deque[StepSample] = deque()
        self.capacity = max(1, min(capacity, limit_bytes // max(1, counts_bytes)))

    def add(self, sample: StepSample) -> None:
        """Keep a sample; a full ring loses its oldest one."""
        if len(self._samples) == self.capacity:
            self._samples.popleft()
            self.lost += 1
        self._samples.append(sample)

    def take(self) -> tuple[StepSample, ...]:
        """All samples, oldest first; the ring is empty afterwards."""
        samples = tuple(self._samples)
        self._samples.clear()
        return samples
