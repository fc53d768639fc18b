"""The byte budget of one rank: how long to wait after a frame, and how many steps to leave between samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectors.errors import CollectorError

if TYPE_CHECKING:
    from collectors.facts import Kind, PoolFacts

SAMPLE_SHARE = 0.5
"""Part of the budget that step samples may use; totals and headers have the rest."""
SAMPLES_SHARE = 0.75
"""Part of the samples that a recorder can hold that one interval may fill; beyond it ranks would lose different steps."""
_SAMPLE_HEADER_BYTES = 57
_LONGEST_STRIDE = 1 << 20


class Budget:
    """A rank's part of a pool's budget: ``publish_bytes_per_s / ranks`` bytes per second.

    The interval follows from the bytes that were really sent, so the budget holds whatever they hold.
    The stride follows only from what all ranks share: facts, kind, budget and the group's step rate, with one byte for
    each count (measured: 0.4 to 1.5 bytes), and from the samples that a recorder can hold between two frames
    (``sample_capacity``). It is the first stride times a power of two, and only falls when half of it
    would do twice over. Ranks that disagree for a moment still meet at every step of the larger stride.

    Raises:
        CollectorError: the budget is not positive.
    """

    def __init__(
        self,
        facts: PoolFacts,
        kind: Kind,
        first_stride: int,
        interval_s: float,
        publish_bytes_per_s: float,
        *,
        sample_capacity: int = 64,
    ) -> None:
        if not publish_bytes_per_s > 0:
            raise CollectorError(f"publisher: publish_bytes_per_s is {publish_bytes_per_s}, must be above 0")
        self.interval_s = interval_s
        self.bytes_per_s = publish_bytes_per_s / facts.ranks
        self._sample_bytes = facts.layers * facts.width(kind) + _SAMPLE_HEADER_BYTES
        self._first_stride = first_stride
        self._stride = first_stride
        self._samples_between_frames = SAMPLES_SHARE * sample_capacity
        self._wait_s = interval_s
        self._seen: tuple[int, float] | None = None

    def wait_s(self, sent_bytes: int) -> float:
        """Seconds to wait after a frame of so many bytes."""
        self._wait_s = max(self.interval_s, sent_bytes / self.bytes_per_s)
        return self._wait_s

    def stride(self, group_step: int, now_s: float) -> int:
        """The stride that keeps samples within their share, from the steps since the last call; now_s is monotonic."""
        if self._seen is not None and group_step > self._seen[0] and now_s > self._seen[1]:
            steps_per_s = (group_step - self._seen[0]) / (now_s - self._seen[1])
            by_bytes = self._sample_bytes / (SAMPLE_SHARE * self.bytes_per_s)
            by_samples = self._wait_s / self._samples_between_frames
            self._adapt(steps_per_s * max(by_bytes, by_samples))
        self._seen = (group_step, now_s)
        return self._stride

    def _adapt(self, needed: float) -> None:
        while self._stride < min(needed, _LONGEST_STRIDE):
            self._stride *= 2
        while self._stride > self._first_stride and needed * 2 < self._stride / 2:
            self._stride //= 2
