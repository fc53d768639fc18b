"""Numbers as a reader wants them."""

from __future__ import annotations

from math import isnan

NO_BREAK = "\u00a0"
UNKNOWN = "–"


def ratio(value: float) -> str:
    """A ratio with three digits after the point, two from ten on."""
    if isnan(value):
        return UNKNOWN
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def times(value: float) -> str:
    """A multiple of the mean."""
    if isnan(value):
        return UNKNOWN
    return f"{value:.2f}{NO_BREAK}×" if value < 10 else f"{value:.1f}{NO_BREAK}×"


def percent(value: float, digits: int = 1) -> str:
    """A part as percent; never -0."""
    if isnan(value):
        return UNKNOWN
    text = f"{100 * value:.{digits}f}"
    return f"{text.removeprefix('-') if float(text) == 0 else text}{NO_BREAK}%"


def count(value: int) -> str:
    """A whole number, in groups of three."""
    return f"{value:,}"


def some(number: int, one: str, many: str | None = None) -> str:
    """A number and its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: list[str], most: int = 6) -> str:
    """Names as a sentence shows them, the first ones if there are many."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
