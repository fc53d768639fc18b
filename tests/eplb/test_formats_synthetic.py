"""A synthetic trace stays marked as one, whichever of our formats it goes through."""

from itertools import pairwise

import numpy as np
import pytest

from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import Sequence
from eplb.formats.header import MOST_WORDS, SCHEMA, parse_header

FORMATS = ("npz", "jsonl", "parquet")
MADE = Sequence(np.array([[[0, 1]], [[2, 3]]]), "a", "decode", "made up by a test")


def test_the_mark_goes_from_format_to_format(tmp_path):
    """Picks and counts, round and round: what is read says it in a field and in a note."""
    pytest.importorskip("pyarrow")
    first = tmp_path / "first.npz"
    registry.write_sequences(first, [MADE], "npz")
    paths = {"npz": first}
    for one, two in pairwise((*FORMATS, "npz")):
        target = tmp_path / f"picks-{two}"
        registry.write_sequences(target, registry.read_sequences(paths[one]), two)
        paths[two] = target
    for one, two in pairwise((*FORMATS, "npz")):
        file = registry.read_trace(paths[one])
        assert (file.synthetic, file.notes[0].code) == (MADE.synthetic, "synthetic")
        target = tmp_path / f"counts-{two}"
        registry.write_trace(target, file, two)
        assert registry.read_trace(target).synthetic == MADE.synthetic


@pytest.mark.parametrize("name", ["npz", "jsonl"])
def test_a_recorded_trace_has_no_mark(tmp_path, name):
    """Nothing is written, nothing noted."""
    path = tmp_path / "trace"
    registry.write_sequences(path, [Sequence(MADE.picks)], name, experts=64)
    file = registry.read_trace(path)
    assert (file.synthetic, file.notes) == ("", ())
    assert next(registry.read_sequences(path)).synthetic == ""


@pytest.mark.parametrize("value", ["", 1, True, ["x"], "x" * (MOST_WORDS + 1), "a\nb", "\ud800"])
def test_a_mark_that_is_no_text_is_refused(value):
    """It is shown to people, so it is one printable line."""
    with pytest.raises(FileError, match="synthetic is "):
        parse_header({"schema": SCHEMA, "synthetic": value})


def test_an_array_in_place_of_the_mark_is_refused(tmp_path):
    """In npz it is one text."""
    path = tmp_path / "t.npz"
    np.savez(path, counts=np.ones((1, 1, 2), dtype=int), synthetic=np.array(["a", "b"]))
    with pytest.raises(FileError, match="expected one text"):
        registry.read_trace(path)
