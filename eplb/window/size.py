"""Whether a window fits in its memory, asked once at start and not answered by the kernel at night."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectors.facts import Kind, PoolFacts
from collectors.publisher import RETENTION_S
from eplb.errors import ConfigError
from eplb.window.intervals import INTERVALS
from eplb.window.steps import MAX_OPEN_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW_BYTES = 256_000_000
PUBLISH_BYTES_PER_S = 2_000_000
STREAM_OVERHEAD = 1.24
"""Store memory / frame bytes (field.md 7.1: 24 % at 2 kB entries)."""
_CELL_BYTES = 8


@dataclass(frozen=True, slots=True)
class WindowSize:
    """Bytes that a window needs.

    ``ring_bytes`` step ring; ``interval_bytes`` sums by interval; ``totals_bytes`` last (and first) totals of every rank;
    ``open_bytes`` steps that are being gathered or
    wait for their map, at most; ``store_bytes`` frames that ranks keep in the store.
    """

    ring_bytes: int
    interval_bytes: int
    totals_bytes: int
    open_bytes: int
    store_bytes: int

    @property
    def reader_bytes(self) -> int:
        """What the daemon's process needs."""
        return self.ring_bytes + self.interval_bytes + self.totals_bytes + self.open_bytes


def window_size(
    facts: PoolFacts, kind: Kind, *, phases: int, window_s: float, max_slices: int, publish_bytes_per_s: float
) -> WindowSize:
    """Bytes that a window of this shape needs: products of Python integers, which cannot overflow.

    After a restart of all ranks the totals of both lives are held for one window, which adds ``totals_bytes`` once more.
    """
    width = facts.width(kind)
    step_width = facts.experts if kind is Kind.ROUTED else facts.slots
    # Only so many steps are open at once as one interval of frames holds, and the budget bounds those bytes.
    open_steps = min(MAX_OPEN_STEPS, max_slices)
    return WindowSize(
        ring_bytes=max_slices * facts.layers * (facts.experts + 2) * _CELL_BYTES,
        interval_bytes=phases * (INTERVALS + 1) * facts.layers * (facts.experts + facts.ranks) * _CELL_BYTES,
        totals_bytes=phases * 2 * facts.ranks * facts.layers * width * _CELL_BYTES,
        open_bytes=2 * open_steps * facts.layers * step_width * _CELL_BYTES,
        store_bytes=int(publish_bytes_per_s * max(window_s, RETENTION_S) * STREAM_OVERHEAD),
    )


def check_size(
    facts: PoolFacts,
    kinds: Iterable[Kind] = tuple(Kind),
    *,
    phases: int = 1,
    window_s: float = 60.0,
    max_slices: int = 256,
    window_bytes: int = WINDOW_BYTES,
    publish_bytes_per_s: float = PUBLISH_BYTES_PER_S,
) -> WindowSize:
    """The size of the largest window among these kinds.

    Raises:
        ConfigError: it exceeds ``window_bytes`` in the daemon or in the store; the message says what to lower.
    """
    if not (window_s > 0 and max_slices > 0 and window_bytes > 0):
        raise ConfigError(
            f"pool {facts.pool!r}: window_s {window_s}, max_slices {max_slices} and window_bytes {window_bytes} must be above 0"
        )
    sizes = [
        window_size(
            facts,
            kind,
            phases=phases,
            window_s=window_s,
            max_slices=max_slices,
            publish_bytes_per_s=publish_bytes_per_s,
        )
        for kind in kinds
    ]
    size = max(sizes, key=lambda size: size.reader_bytes)
    if size.reader_bytes > window_bytes:
        fixed = size.interval_bytes + size.totals_bytes
        raise ConfigError(
            f"pool {facts.pool!r}: the window needs {size.reader_bytes} bytes in the daemon ({size.ring_bytes} for {max_slices} slices, "
            f"{size.open_bytes} for open steps, {fixed} for {facts.ranks} ranks), window_bytes is {window_bytes}; lower max_slices or raise "
            f"window_bytes"
        )
    if size.store_bytes > window_bytes:
        raise ConfigError(
            f"pool {facts.pool!r}: {max(window_s, RETENTION_S):g} s of frames at {publish_bytes_per_s} bytes/s need {size.store_bytes} bytes in the store, "
            f"window_bytes is {window_bytes}; lower window_s or publish_bytes_per_s, or raise window_bytes"
        )
    return size
