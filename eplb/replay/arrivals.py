"""Request arrivals from a file of columns TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from eplb.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_ARRIVALS = 10_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it came, seconds after the first one, and how many tokens it generated, at least 1."""

    time_s: float
    generated_tokens: int


def read_arrivals(path: Path) -> tuple[Arrival, ...]:
    """Read a file of arrivals, in the order of their time; requests that generated nothing are left out.

    Raises:
        FileError: names the file, the line, the value and what was expected.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(_rows(path, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"{path}: cannot be read as CSV: {error}") from error
    if not rows:
        raise FileError(
            f"{path}: holds no request that generated a token; expected columns {', '.join(COLUMNS)}"
        )
    first = min(time for time, _ in rows)
    rows.sort(key=lambda row: row[0])
    return tuple(Arrival((time - first).total_seconds(), tokens) for time, tokens in rows)


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[datetime, int]]:
    if not set(COLUMNS) <= set(reader.fieldnames or ()):
        raise FileError(f"{path}: columns are {list(reader.fieldnames or ())}, expected {', '.join(COLUMNS)}")
    for count, row in enumerate(reader, start=1):
        if count > MOST_ARRIVALS:
            raise FileError(f"{path}: more than {MOST_ARRIVALS} requests; cut the file")
        place = f"{path}: line {reader.line_num}"
        time, tokens = _time(place, row["TIMESTAMP"]), _tokens(place, row["GeneratedTokens"])
        if tokens:
            yield time, tokens


def _time(place: str, text: str | None) -> datetime:
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError as error:
        raise FileError(
            f"{place}: TIMESTAMP is {text!r}, expected a date and time like 2023-11-16 18:15:46.680"
        ) from error
    # All times of one file are on one clock; which one does not matter.
    return time.replace(tzinfo=None)


def _tokens(place: str, text: str | None) -> int:
    if text is None or not text.strip().isdecimal() or len(text) > 9:
        raise FileError(f"{place}: GeneratedTokens is {text!r}, expected a whole number of at least 0")
    return int(text)
