"""Reading files: regular ones only, no larger than expected, again while they change; writing: all or nothing."""

import os

import pytest
from damage import settle

from eplb.errors import FileError
from eplb.formats import files
from eplb.formats.facts import ReadOptions
from placement import TraceError


def refused(action, *arguments, **options):
    with pytest.raises(FileError) as caught:
        action(*arguments, **options)
    return str(caught.value)


def test_a_file_that_is_being_written_is_read_when_it_is_done(tmp_path):
    """Half a document on the first look, all of it on the second."""
    path = tmp_path / "half.json"
    path.write_text('{"a": [1, 2')

    def attempt():
        try:
            return files.parse_json(path.read_text())
        finally:
            path.write_text('{"a": [1, 2, 3]}')

    assert files.steady(path, attempt) == {"a": [1, 2, 3]}


def test_a_file_that_never_stops_changing_is_given_up(tmp_path, monkeypatch):
    """The error says that it is still being written, and how it failed."""
    path, looks = tmp_path / "busy.json", []
    path.write_text("[")
    monkeypatch.setattr(files, "PAUSE_S", 0.0)

    def attempt():
        looks.append(1)
        path.write_text("[" * (len(looks) + 1))
        return files.parse_json(path.read_text())

    message = refused(files.steady, path, attempt)
    assert "still being written" in message
    assert "not JSON" in message
    assert len(looks) == files.TRIES


def test_a_damaged_file_is_not_read_again_and_again(tmp_path):
    """An old file once; a new one that does not change at most twice."""
    looks = []

    def attempt():
        looks.append(1)
        raise FileError("broken")

    path = settle(tmp_path / "old", b"x")
    assert refused(files.steady, path, attempt) == "broken"
    assert len(looks) == 1
    path.write_bytes(b"y")
    assert refused(files.steady, path, attempt) == "broken"
    assert len(looks) == 2


def test_only_regular_files_are_read(tmp_path):
    """A pipe would never end, a folder has no bytes, a missing file is named."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        message = refused(files.read_bytes, tmp_path / name, most_bytes=10)
        assert message.startswith(f"{tmp_path / name}: cannot be read: ")
    assert files.head(tmp_path / "pipe") == b""
    assert files.head(tmp_path / "none") == b""


def test_no_more_is_read_than_expected(tmp_path):
    """The limit and the size are named."""
    (tmp_path / "large").write_bytes(b"x" * 1001)
    assert "has 1,001 bytes, expected at most 1,000" in refused(
        files.read_bytes, tmp_path / "large", most_bytes=1000
    )
    assert len(files.read_bytes(tmp_path / "large", most_bytes=1001)) == 1001


@pytest.mark.parametrize(
    "text", ["", "[NaN]", "[Infinity]", '{"a": 1, "a": 2}', "[" * 100_000, "1 2", "9" * 5000, b"\xff\xfe"]
)
def test_what_json_may_not_hold_is_refused(tmp_path, text):
    """Numbers that are none, a key given twice, depth without end, damage: all are named errors with the file's name."""
    path = settle(tmp_path / "a.json", text if isinstance(text, bytes) else text.encode())
    assert refused(files.read_json, path).startswith(f"{path}: ")


@pytest.mark.parametrize("text", ["[2.0]", "[1e3]", "[-0.0]"])
def test_where_whole_numbers_are_asked_for_no_point_is_taken(text):
    """2.0 is an id that went through floats."""
    assert files.parse_json(text)
    assert "is not a number that may stand here" in refused(files.parse_json, text, whole=True)


def test_lines_are_counted_from_1_and_told(tmp_path):
    """Blank lines count but are left out; progress ends with all bytes; a line without end is refused."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a\n\n  \nb")
    told = []
    options = ReadOptions(progress=lambda done, total: told.append((done, total)))
    assert list(files.lines(path, options)) == [(1, b"a\n"), (4, b"b")]
    assert told[-1] == (7, 7)
    assert "line 4 is longer than 2 bytes" in refused(
        list, files.lines(settle(path, b"a\n\n\nbbb"), options, most_bytes=2)
    )


def test_errors_inside_a_file_start_with_its_path_once(tmp_path):
    """What the solver refuses and what memory cannot hold are errors of the file."""
    path = tmp_path / "a"

    def inside(error):
        with files.in_file(path):
            raise error

    assert refused(inside, FileError("odd")) == f"{path}: odd"
    assert refused(inside, FileError(f"{path}: odd")) == f"{path}: odd"
    assert refused(inside, TraceError("odd")) == f"{path}: odd"
    assert "more memory" in refused(inside, MemoryError())


def test_a_write_that_fails_keeps_the_old_file(tmp_path):
    """And leaves no temporary one."""
    path = tmp_path / "a"
    files.write_text(path, "old")

    def fail():
        with files.replacing(path) as file:
            file.write(b"new")
            raise FileError("no more")

    assert refused(fail) == "no more"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    files.write_bytes(path, b"new")
    assert path.read_text() == "new"
