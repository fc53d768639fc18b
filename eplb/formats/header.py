"""What our own trace files say of themselves, whichever way they are stored.

    {"schema": "eplb-trace/1", "experts": 64, "model_layer": [1, 2], "hidden_layers": 3, "synthetic": "made by ..."}

All but ``schema`` may be missing or null = unknown; a trace without ``synthetic`` was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from eplb.errors import FileError
from eplb.formats.facts import Layers, Note
from eplb.formats.layers import MOST_LAYERS
from eplb.formats.plain_values import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from eplb.formats.facts import Sequence, TraceFile
from placement.routes import MOST_EXPERTS

SCHEMA = "eplb-trace/1"
KEYS = ("schema", "experts", "model_layer", "hidden_layers", "synthetic")
MOST_WORDS = 2**12
"""Characters that a header may say of a synthetic trace."""


@dataclass(frozen=True, slots=True)
class Header:
    """Experts of the model and the layers that the rows are, None = unknown; what made the trace up, '' = it was recorded."""

    experts: int | None = None
    layers: Layers = field(default_factory=Layers)
    synthetic: str = ""

    def document(self) -> dict[str, Any]:
        """The header as it is written."""
        numbers = self.layers.model_layer
        return {
            "schema": SCHEMA,
            "experts": self.experts,
            "model_layer": None if numbers is None else list(numbers),
            "hidden_layers": self.layers.hidden_layers,
            "synthetic": self.synthetic or None,
        }

    def mark(self, file: TraceFile) -> TraceFile:
        """The trace that was read under this header; a synthetic one says so in a note too."""
        if not self.synthetic:
            return file
        note = Note(
            "synthetic",
            f"this trace is synthetic, not recorded ({self.synthetic})",
            "use it for tests of scale and of the tools; plan and forecast for a real pool on its own recorded trace",
        )
        return replace(file, synthetic=self.synthetic, notes=(note, *file.notes))


def made_up(sequences: Iterable[Sequence]) -> tuple[str, Iterator[Sequence]]:
    """What the first sequence says made it up, '' = nothing does, and all sequences: a header stands before them."""
    rest = iter(sequences)
    first = next(rest, None)
    return ("", rest) if first is None else (first.synthetic, chain((first,), rest))


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
        _words(document.get("synthetic")),
    )


def _words(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MOST_WORDS:
        raise FileError(
            f"synthetic is {str(value)[:80]!a}, expected what made the trace up, in 1 to {MOST_WORDS} printable characters"
        )
    return value


def _layer(value: Any, at: int) -> int:
    found = _whole(value, f"model_layer[{at}]", 0, MOST_LAYERS - 1)
    if found is None:
        raise FileError(f"model_layer[{at}] is null, expected 0..{MOST_LAYERS - 1}")
    return found


def _whole(value: Any, where: str, least: int, most: int) -> int | None:
    return None if value is None else whole(value, where, least, most)
