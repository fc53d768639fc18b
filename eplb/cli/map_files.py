"""Reading maps beside a trace, and writing them so that what was written is known to be right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.cli.printing import note_lines, notes_report
from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import MapFacts
from eplb.formats.map_rules import in_model_order

if TYPE_CHECKING:
    from pathlib import Path

    from eplb.formats.facts import TraceFile, Written
    from eplb.formats.neutral import NeutralMap


def read_beside(path: Path, file: TraceFile, facts: MapFacts, name: str | None = None) -> NeutralMap:
    """Read a map of the model that a trace is of; what the map's format leaves out comes from ``facts``, then the trace.

    ``name``: of the map's format, None = recognised.

    Raises:
        FileError: the map cannot be read, or has other layers or experts than the trace.
    """
    known = replace(facts, experts=file.trace.experts, layers=file.layers)
    neutral = registry.read_map(path, known, name)
    rows = neutral.placement.layers
    if rows != file.trace.layers:
        raise FileError(
            f"{path}: the map has {rows} layers, the trace {file.trace.layers}: if both are of one model, say which of its layers "
            "they are with --moe-layers and --hidden-layers"
        )
    return neutral


def write_map(path: Path, neutral: NeutralMap, name: str) -> Written:
    """Write a map, rows in the order of the model's layers, and read it back.

    Raises:
        FileError: it cannot be written, or reads back as another map.
    """
    ordered = in_model_order(neutral)
    written = registry.write_map(path, ordered, name)
    facts = MapFacts(ordered.ranks, ordered.nodes, ordered.experts, ordered.layers)
    back = registry.read_map(path, facts, name)
    if not np.array_equal(back.placement.physical_to_logical, ordered.placement.physical_to_logical):
        raise FileError(f"{path}: reads back as another map than was written: do not start an engine with it")
    return written


def written_report(written: Written, name: str) -> dict[str, Any]:
    """What was written and how to start the engine with it, as JSON."""
    return {
        "format": name,
        "files": [str(path) for path in written.files],
        "start_with": list(written.start_with),
        "notes": notes_report(written.notes),
    }


def written_lines(written: dict[str, Any]) -> list[str]:
    """The same as lines of text; ``written``: a ``written_report``."""
    first, *others = written["files"]
    lines = [f"wrote      {first} ({written['format']}), and read it back"]
    lines.extend(f"           {path}, beside it" for path in others)
    lines.extend(
        f"{'start with' if at == 0 else '':<10} {line}" for at, line in enumerate(written["start_with"])
    )
    lines.extend(note_lines(written["notes"]))
    return lines
