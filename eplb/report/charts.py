"""What a figure shows, before anything is drawn. Places in a plot are 0..1, from left and from the bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Axis:
    """``name``: what it measures, with its unit. ``ticks``: (place, text)."""

    name: str
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A named line. ``key``: which colour and dash (``before``, ``after``, ``map2``.., ``floor``, ``even``). ``points``: (x, y).

    ``dots``: points that are marked. ``only_dots``: there is no line, the dots are large.
    """

    name: str
    key: str
    points: tuple[tuple[float, float], ...]
    dots: tuple[tuple[float, float], ...] = ()
    only_dots: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """What stands at one place of a line chart, in words."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """``rug``: (from, to) stretches to mark below the plot; ``rug_name``: what they are."""

    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    readings: tuple[Reading, ...]
    rug: tuple[tuple[float, float], ...] = ()
    rug_name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """``values``: float64 [rows, columns], multiples of the mean, NaN = no tokens. ``steps``: where the next colour begins."""

    title: str
    x: Axis
    y: Axis
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[np.float64]
    steps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: ``length`` 0..1 of the width; ``text``: its value."""

    name: str
    key: str
    length: float
    text: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale. ``axis``: what their length is, with unit and start."""

    axis: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A change on one scale, 0..1: from ``before`` to ``after``, with the ``floor``; ``text``: the same in numbers."""

    name: str
    before: float
    after: float
    floor: float
    text: str


@dataclass(frozen=True, slots=True)
class Spans:
    """Changes below each other on one axis."""

    x: Axis
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table of parts 0..1 in colour; None = not known. ``corner``: what rows and columns are."""

    corner: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Text by column; all columns but the first ``words`` ones are numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    caption: str = ""


Chart = LineChart | HeatMap | Bars | Spans | Matrix


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with all that a reader needs for it.

    ``key``: its name in links. ``title``: what it shows. ``help``: how to read it. ``summary``: what is to be seen, in words, for
    who does not see it. ``charts``: side by side where there is room. ``table``: the same numbers. ``shown``: the table is the figure.
    ``notes``: what was left out or put together.
    """

    key: str
    title: str
    help: str
    summary: str
    charts: tuple[Chart, ...] = ()
    table: Table | None = None
    shown: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page: ``key`` for links, ``title``, a sentence on what it answers, and its figures."""

    key: str
    title: str
    question: str
    figures: tuple[Figure, ...]
