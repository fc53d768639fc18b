"""From charts to what the template lays out: SVG paths in a box of 1000 x 1000, pictures, and text that the script reads."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.png import data_uri

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from eplb.report.charts import HeatMap, LineChart

LIGHT = (
    "#c9ccd1",
    "#2f6fae",
    "#6fa4d3",
    "#b5d1ea",
    "#f4f2ec",
    "#fbdcae",
    "#f5b05c",
    "#e07b1f",
    "#b34d0c",
    "#6e2500",
)
DARK = (
    "#4a4f57",
    "#6aa9de",
    "#3f74a6",
    "#2b4a69",
    "#23272e",
    "#5e431f",
    "#99621f",
    "#db8b2b",
    "#f8ba6c",
    "#fff0d8",
)
"""First no tokens, then from cold to hot; blue and orange stay apart for colour-blind readers, and lightness rises towards both ends."""

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
BASE = len(DIGITS)
MOST_CODED = BASE * BASE - 2
"""Largest number that two digits write; the one above it means no tokens."""


def line(points: Iterable[tuple[float, float]]) -> str:
    """An SVG path through points."""
    return "M" + "L".join(f"{_x(x)} {_y(y)}" for x, y in points)


def dots(points: Iterable[tuple[float, float]]) -> str:
    """An SVG path of strokes without length, which round ends turn into dots."""
    return "".join(f"M{_x(x)} {_y(y)}h0" for x, y in points)


def grid(chart: LineChart) -> str:
    """An SVG path of a level at every tick of the upright axis."""
    return "".join(f"M0 {_y(at)}H1000" for at, _ in chart.y.ticks)


def rug(chart: LineChart) -> str:
    """An SVG path of the stretches below the plot, one for neighbours."""
    merged: list[list[float]] = []
    for start, stop in chart.rug:
        if merged and abs(merged[-1][1] - start) < 1e-9:
            merged[-1][1] = stop
        else:
            merged.append([start, stop])
    return "".join(f"M{_x(start)} 0H{_x(stop)}V10H{_x(start)}z" for start, stop in merged)


def readings(chart: LineChart) -> str:
    """Places and words for the script: [[percent from the left, words], ..]."""
    return json.dumps([[round(100 * each.x, 2), each.text] for each in chart.readings], ensure_ascii=False)


def classes(chart: HeatMap) -> NDArray[np.uint8]:
    """The colour of every cell, 0 = no tokens, 1 = coldest, uint8 [rows, columns]."""
    values = chart.values
    step = np.searchsorted(chart.steps, np.nan_to_num(values, nan=0.0), side="right") + 1
    found: NDArray[np.uint8] = np.where(np.isnan(values) | (values <= 0), 0, step).astype(np.uint8)
    return found


def pictures(chart: HeatMap) -> tuple[str, str]:
    """The heat map as data URIs for a light and a dark page."""
    pixels = classes(chart)
    return data_uri(pixels, LIGHT), data_uri(pixels, DARK)


def legend(chart: HeatMap) -> tuple[tuple[int, str], ...]:
    """Colours with their words, cold to hot."""
    steps = [f"{step:g}" for step in chart.steps]
    ranges = [
        f"below {steps[0]}",
        *(f"{a}–{b}" for a, b in itertools.pairwise(steps)),
        f"{steps[-1]} and more",
    ]
    return ((0, "no tokens"), *enumerate(ranges, start=1))


def coded(chart: HeatMap) -> str:
    """Every value in hundredths, row by row, two digits of base 36 each, capped at ``MOST_CODED``; one more = no tokens."""
    hundredths = np.minimum(np.nan_to_num(chart.values, nan=0.0) * 100, MOST_CODED).round().astype(int)
    hundredths[np.isnan(chart.values)] = MOST_CODED + 1
    return "".join(DIGITS[each // BASE] + DIGITS[each % BASE] for each in hundredths.ravel().tolist())


def _x(x: float) -> str:
    return f"{1000 * x:.0f}"


def _y(y: float) -> str:
    return f"{1000 - 1000 * y:.0f}"
