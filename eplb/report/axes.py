"""Axes: of equal cells, or from one number to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.report.charts import Axis
from eplb.report.scale import places

if TYPE_CHECKING:
    from collections.abc import Sequence


def cell_axis(name: str, names: Sequence[str], *, downwards: bool = False) -> Axis:
    """An axis of equal cells, some of which are named; ``downwards``: the first is on top."""
    count = len(names)
    at = ((place, (place + 0.5) / count) for place in places(count))
    return Axis(name, tuple((1 - x if downwards else x, names[place]) for place, x in at))


def line_axis(name: str, ticks: Sequence[float], texts: Sequence[str]) -> Axis:
    """An axis from its first to its last tick."""
    low, high = ticks[0], ticks[-1]
    return Axis(
        name, tuple(((tick - low) / (high - low), text) for tick, text in zip(ticks, texts, strict=True))
    )


def part_of(value: float, ticks: Sequence[float]) -> float:
    """Where a value stands on such an axis, 0..1."""
    return min(1.0, max(0.0, (value - ticks[0]) / (ticks[-1] - ticks[0])))
