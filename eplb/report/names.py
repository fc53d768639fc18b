"""What layers, slices and ranks are called on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.report.charts import Axis
from eplb.report.scale import places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eplb.formats.facts import TraceFile


def layer_numbers(file: TraceFile) -> tuple[str, ...]:
    """The number of every row: the model's own where it is known, or else counted from 0."""
    numbers = file.layers.model_layer
    return tuple(str(number) for number in (range(file.trace.layers) if numbers is None else numbers))


def layer_word(file: TraceFile) -> str:
    """What those numbers count."""
    return "layer (counted from 0)" if file.layers.model_layer is None else "layer of the model"


def slice_name(file: TraceFile, at: int) -> str:
    """A slice with its domain and phase."""
    of = [names[at] for names in (file.domain, file.phase) if names is not None and names[at]]
    return f"slice {at}" + (f" ({', '.join(of)})" if of else "")


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
