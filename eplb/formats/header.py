"""What our own trace files say of themselves, whichever way they are stored.

    {"schema": "eplb-trace/1", "experts": 64, "model_layer": [1, 2], "hidden_layers": 3}

All but ``schema`` may be missing or null = unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eplb.errors import FileError
from eplb.formats.facts import Layers
from eplb.formats.plain_values import whole
from placement.routes import MOST_EXPERTS

SCHEMA = "eplb-trace/1"
KEYS = ("schema", "experts", "model_layer", "hidden_layers")
MOST_LAYERS = 2**12
"""Layers that a header may name: more is damage, not a model."""


@dataclass(frozen=True, slots=True)
class Header:
    """Experts of the model and the layers that the rows are; None = unknown."""

    experts: int | None = None
    layers: Layers = field(default_factory=Layers)

    def document(self) -> dict[str, Any]:
        """The header as it is written."""
        numbers = self.layers.model_layer
        return {
            "schema": SCHEMA,
            "experts": self.experts,
            "model_layer": None if numbers is None else list(numbers),
            "hidden_layers": self.layers.hidden_layers,
        }


def parse_header(document: Any) -> Header:
    """Read a header.

    Raises:
        FileError: names the key, the value and what was expected.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else document
        raise FileError(f"schema is {str(found)[:80]!r}, this version reads {SCHEMA!r}")
    unknown = sorted(set(document) - set(KEYS))
    if unknown:
        raise FileError(f"the header has unknown keys {unknown[:5]}, expected {list(KEYS)}")
    numbers = document.get("model_layer")
    if numbers is not None and not isinstance(numbers, list):
        raise FileError(
            f"model_layer is {str(numbers)[:80]}, expected the layer number of every row, or null"
        )
    return Header(
        _whole(document.get("experts"), "experts", 1, MOST_EXPERTS),
        Layers(
            None if numbers is None else tuple(_layer(each, at) for at, each in enumerate(numbers)),
            _whole(document.get("hidden_layers"), "hidden_layers", 1, MOST_LAYERS),
        ),
    )


def _layer(value: Any, at: int) -> int:
    found = _whole(value, f"model_layer[{at}]", 0, MOST_LAYERS - 1)
    if found is None:
        raise FileError(f"model_layer[{at}] is null, expected 0..{MOST_LAYERS - 1}")
    return found


def _whole(value: Any, where: str, least: int, most: int) -> int | None:
    return None if value is None else whole(value, where, least, most)
