"""Arrivals from a file."""

import pytest

from eplb.errors import FileError
from eplb.replay.arrivals import Arrival, read_arrivals

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_times_are_seconds_after_the_first_request_and_empty_answers_are_left_out(tmp_path):
    """Rows may be out of order; more than six digits of a second are cut."""
    path = tmp_path / "a.csv"
    path.write_text(
        HEAD + "2023-11-16 18:15:50.5,9,3\n2023-11-16 18:15:46.0000000,1,44\n2023-11-16 18:15:40,5,0\n"
    )
    assert read_arrivals(path) == (Arrival(0.0, 44), Arrival(4.5, 3))


def test_the_recorded_arrivals_are_read(shared_data):
    """The public file of conversations holds 6000 requests over an hour or less."""
    arrivals = read_arrivals(shared_data / "arrivals_conv.csv")
    assert len(arrivals) == 6000
    assert 0 < arrivals[-1].time_s < 3600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "expected TIMESTAMP, ContextTokens, GeneratedTokens"),
        (HEAD, "no request that generated a token"),
        (HEAD + "yesterday,1,2\n", "line 2: TIMESTAMP is 'yesterday'"),
        (HEAD + "2023-11-16 18:15:50,1,-2\n", "line 2: GeneratedTokens is '-2'"),
        (HEAD + "2023-11-16 18:15:50,1\n", "line 2: GeneratedTokens is None"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, text, words):
    """The message names the line, the value and what was expected."""
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(FileError, match=words):
        read_arrivals(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    """Like every file that cannot be read."""
    with pytest.raises(FileError, match=r"none\.csv: cannot be read"):
        read_arrivals(tmp_path / "none.csv")
