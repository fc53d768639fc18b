"""Drawing: pictures hold the cells, codes hold the values, axes hold the data."""

import struct
import zlib
from base64 import b64decode

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from eplb.report import draw
from eplb.report.charts import Axis, HeatMap, LineChart
from eplb.report.load_figures import MOST_CELLS, fewer_cells
from eplb.report.png import data_uri
from eplb.report.scale import LEAST_SPAN, places, round_ticks
from eplb.report.words import count, listed, percent, ratio, some, times

NO_AXIS = Axis("", ())


def heat(values, steps=(0.5, 2.0)):
    rows, columns = values.shape
    return HeatMap("", NO_AXIS, NO_AXIS, ("r",) * rows, ("c",) * columns, values, steps)


def pixels_of(uri):
    """Read a PNG of 8-bit palette places without filters."""
    data, at, body = b64decode(uri.partition(",")[2]), 8, b""
    while at < len(data):
        (length,), name = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        chunk = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + chunk)
        if name == b"IHDR":
            columns, rows = struct.unpack(">II", chunk[:8])
        if name == b"IDAT":
            body += chunk
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(rows, columns + 1)
    return lines[:, 1:]


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 9)))
def test_a_picture_holds_its_pixels(pixels):
    """One pixel a cell, whatever the shape."""
    assert np.array_equal(pixels_of(data_uri(pixels, draw.LIGHT)), pixels)


def test_a_cell_has_the_colour_of_its_range():
    """A step belongs to the range above it; no tokens and no load are apart from little load."""
    values = np.array([[0.0, 0.1, 0.5, 1.0, 2.0, np.nan]])
    assert draw.classes(heat(values)).tolist() == [[0, 1, 2, 2, 3, 0]]
    assert [text for _, text in draw.legend(heat(values))] == [
        "no tokens",
        "below 0.5",
        "0.5–2",
        "2 and more",
    ]


@given(arrays(np.float64, (2, 3), elements=st.floats(0, 300)))
def test_codes_hold_every_value_to_a_hundredth(values):
    """Two digits of base 36, capped."""
    text = draw.coded(heat(values))
    found = [int(text[at : at + 2], 36) for at in range(0, len(text), 2)]
    assert found == np.minimum(values * 100, draw.MOST_CODED).round().astype(int).ravel().tolist()
    assert draw.coded(heat(np.array([[np.nan]]))) == "zz"


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(2, 6))
def test_ticks_hold_the_data_and_are_few(low, length, most):
    """From below the least to above the most, evenly."""
    high = low + length
    ticks = round_ticks(low, high, most)
    assert ticks[0] <= low + 1e-6
    assert ticks[-1] >= high - 1e-6
    assert ticks[-1] - ticks[0] >= LEAST_SPAN - 1e-9
    assert 2 <= len(ticks) <= most + 3
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=1e-5)


@given(st.integers(1, 10**6))
def test_whole_ticks_are_whole_and_differ(high):
    """Counts have no halves."""
    ticks = round_ticks(0, high, 4, whole=True)
    assert all(tick == int(tick) for tick in ticks)
    assert len(set(ticks)) == len(ticks) >= 2


@given(st.integers(1, 5000))
def test_few_places_are_named_and_the_first_is(many):
    """At most six, evenly."""
    named = places(many)
    assert named[0] == 0
    assert 1 <= len(named) <= 6
    assert named[-1] < many


def test_too_many_cells_are_put_together_by_the_largest():
    """With a note; below the limit nothing changes."""
    few, many = np.ones((4, 8)), np.ones((100, 500))
    many[3, 7] = 9.0
    assert fewer_cells(few, tuple("abcdefgh"), "experts")[2] == ()
    merged, names, notes = fewer_cells(many, tuple(map(str, range(500))), "experts")
    assert merged.size <= MOST_CELLS
    assert len(names) == merged.shape[1]
    assert merged[3, 7 // 3] == 9.0
    assert names[2] == "6 to 8"
    assert "largest of 3" in notes[0]


def test_neighbouring_stretches_become_one():
    """So that a long rug stays a short path."""
    chart = LineChart(NO_AXIS, NO_AXIS, (), (), rug=((0.0, 0.25), (0.25, 0.5), (0.75, 1.0)))
    assert draw.rug(chart).count("z") == 2


def test_numbers_are_written_for_people():
    """No break inside a number with its unit; no -0; what is not known is a dash."""
    assert percent(0.12345) == "12.3\u00a0%"
    assert percent(-0.0001) == "0.0\u00a0%"
    assert percent(-0.5, 0) == "-50\u00a0%"
    assert (ratio(1.23456), ratio(12.3456), ratio(float("nan"))) == ("1.235", "12.35", "–")
    assert (times(2.5), times(25.04), times(float("nan"))) == ("2.50\u00a0×", "25.0\u00a0×", "–")
    assert (count(12345), some(1, "copy", "copies"), some(2, "copy", "copies")) == (
        "12,345",
        "1 copy",
        "2 copies",
    )
    assert listed(list("abc"), 2) == "a, b and 1 more"
