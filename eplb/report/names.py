"""What layers, slices and ranks are called on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
