"""What is known of a trace or a map: what the file says, and what a person says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eplb.errors import FileError
from eplb.formats.facts import Layers, MapFacts

MOST_LAYERS = 2**12
"""More layers than any model has: a larger number is damage, and what is counted up to it would fill the memory."""


def layers_of(found: Layers, given: Layers, rows: int) -> Layers:
    """What is known of the rows: what a person gives overrides what the file says, field by field.

    Raises:
        FileError: the layers are not ``rows`` different numbers below ``hidden_layers``, or draft layers are among them.
    """
    numbers = found.model_layer if given.model_layer is None else given.model_layer
    hidden = found.hidden_layers if given.hidden_layers is None else given.hidden_layers
    drafts = given.draft_layers or found.draft_layers
    highest = max((hidden or 0) - 1, *(numbers or (-1,)), *(drafts or (-1,)))
    if highest >= MOST_LAYERS:
        raise FileError(f"names layer {highest}, expected layers below {MOST_LAYERS}, which no model has")
    if numbers is not None and (
        not numbers or len(numbers) != rows or len(set(numbers)) != rows or min(numbers) < 0
    ):
        raise FileError(
            f"model_layer names {len(numbers)} layers {_short(numbers)}, expected {rows} different numbers, one for every row: "
            f"give the right ones with --moe-layers"
        )
    if hidden is not None and hidden < max([rows, *(layer + 1 for layer in numbers or ())]):
        raise FileError(
            f"hidden_layers is {hidden}, but there are {rows} rows"
            + (f" and the last is model layer {max(numbers)}" if numbers else "")
            + ": give the number of layers of the model, dense ones included, with --hidden-layers"
        )
    low = max(hidden or 0, *(layer + 1 for layer in numbers or (-1,)))
    if drafts and (len(set(drafts)) != len(drafts) or min(drafts) < low):
        raise FileError(
            f"draft layers are {_short(drafts)}, expected different numbers from {low} on: they come after the model's own layers"
        )
    return Layers(numbers, hidden, drafts)


def told(facts: MapFacts, **found: int | None) -> MapFacts:
    """``facts``, filled up with what a file says of its ``ranks``, ``nodes`` or ``experts``; None = it does not say.

    Raises:
        FileError: a person says something else than the file.
    """
    for name, value in found.items():
        asked = getattr(facts, name)
        if None not in (asked, value) and asked != value:
            raise FileError(
                f"the map is for {value} {name}, asked for {asked}: correct --{name}, or leave it away"
            )
    known: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    return replace(facts, **known)


def told_layers(found: Layers, asked: Layers) -> Layers:
    """What a map file says of its layers, filled up with what a person says.

    Raises:
        FileError: the two are different.
    """
    for name, flag in (("model_layer", "--moe-layers"), ("hidden_layers", "--hidden-layers")):
        ours, theirs = getattr(found, name), getattr(asked, name)
        if None not in (ours, theirs) and ours != theirs:
            raise FileError(
                f"{name} is {_shown(ours)} in the map, asked for {_shown(theirs)}: it is of other layers, or "
                f"leave {flag} away"
            )
    return Layers(
        asked.model_layer if found.model_layer is None else found.model_layer,
        asked.hidden_layers if found.hidden_layers is None else found.hidden_layers,
        asked.draft_layers or found.draft_layers,
    )


def _shown(value: int | tuple[int, ...]) -> str:
    return str(value) if isinstance(value, int) else f"{len(value)} {_short(value)}"


def _short(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(str(number) for number in numbers[:6])
    return f"({shown}{', ...' if len(numbers) > 6 else ''})"
