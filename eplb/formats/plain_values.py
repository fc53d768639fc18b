"""Values of documents that others wrote: whole numbers that are really that, and short text for messages."""

from __future__ import annotations

import reprlib
from typing import Any

from eplb.errors import FileError

MOST_SHOWN = 60
MOST_WHOLE = 2**62
SHORT = reprlib.Repr()
"""Looks at few items of few levels: a short text may name one list so often that all of it would fill the memory."""
SHORT.maxlevel = 4
SHORT.maxstring = SHORT.maxlong = SHORT.maxother = 2 * MOST_SHOWN


def whole(value: Any, where: str, least: int = 0, most: int = MOST_WHOLE) -> int:
    """A plain whole number.

    Raises:
        FileError: it is something else (``true`` and 2.0 too) or not in ``least``..``most``; ``where`` starts the message.
    """
    if type(value) is not int:
        raise FileError(f"{where} is {shown(value)}, expected a whole number written without a point")
    if not least <= value <= most:
        open_ended = value < least and most == MOST_WHOLE
        expected = f"at least {least}" if open_ended else f"{least}..{most}"
        raise FileError(f"{where} is {shown(value)}, expected {expected}")
    return value


def shown(value: Any) -> str:
    """A value as short text. Never raises."""
    try:
        text = SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a number of too many digits, or a foreign object
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def some(value: Any, where: str, of: str) -> list[Any]:
    """A list of a document with at least one member.

    Raises:
        FileError: names the place, what was found and what was expected.
    """
    if not isinstance(value, list):
        raise FileError(f"{where} is a {type(value).__name__}, expected a list of {of}")
    if not value:
        raise FileError(f"{where} is an empty list, expected {of}")
    return value
