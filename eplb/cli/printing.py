"""Facts of a report as JSON, and as lines of text."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eplb.formats.facts import Note


def number(value: float | None) -> float | None:
    """A number for JSON; NaN = unknown is null."""
    return None if value is None or isnan(value) else round(value, 6)


def shown(value: float | None) -> str:
    """A ratio as text."""
    return "unknown" if value is None else f"{value:.4f}"


def notes_report(notes: Iterable[Note]) -> list[dict[str, str]]:
    """Notes as JSON."""
    return [{"code": note.code, "sentence": note.sentence, "fix": note.fix} for note in notes]


def note_lines(notes: Iterable[dict[str, str]]) -> list[str]:
    """Notes as lines of text."""
    lines: list[str] = []
    for note in notes:
        lines.append(f"note       {note['code']}: {note['sentence']}")
        if note.get("fix"):
            lines.append(f"           fix: {note['fix']}")
    return lines
