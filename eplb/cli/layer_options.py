"""The options that say which layers of the model the rows of a file are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from eplb.formats.facts import Layers
from eplb.formats.layers import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Callable


class _LayerNumbers(click.ParamType[tuple[int, ...]]):
    """``1-26`` or ``3-60,62`` as numbers in the order in which they are written."""

    name = "layers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers: list[int] = []
        for part in str(value).split(","):
            first, dash, last = part.strip().partition("-")
            last = last if dash else first
            if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
                self.fail(f"{part!r} is no layer number or range; write 1-26 or 3-60,62", param, ctx)
            start, stop = int(first), int(last)
            if stop < start or stop >= MOST_LAYERS:
                self.fail(f"{part!r} is no rising range below {MOST_LAYERS}", param, ctx)
            numbers.extend(range(start, stop + 1))
        if len(set(numbers)) != len(numbers):
            self.fail(f"{value!r} names a layer twice", param, ctx)
        return tuple(numbers)


def layer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--moe-layers``, ``--hidden-layers`` and ``--draft-layers`` to a command; ``layers_from`` reads them."""
    moe = click.option(
        "--moe-layers",
        type=_LayerNumbers(),
        metavar="1-26",
        help="Which layers of the model the rows are, where the file does not say.",
    )
    hidden = click.option(
        "--hidden-layers",
        type=click.IntRange(1, MOST_LAYERS),
        help="Layers of the model, dense ones included, draft ones not.",
    )
    drafts = click.option(
        "--draft-layers",
        type=_LayerNumbers(),
        metavar="61",
        default=(),
        help="Layers of a draft (multi-token prediction) model, which have no load here but that an engine's file must name.",
    )
    return moe(hidden(drafts(command)))


def layers_from(options: dict[str, Any]) -> Layers:
    """What the options say."""
    return Layers(options["moe_layers"], options["hidden_layers"], options["draft_layers"])
