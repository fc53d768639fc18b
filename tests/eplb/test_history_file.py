"""Rules of the history's file."""

import json

import numpy as np
import pytest
from history_world import FACTS, SHAPE

from eplb.errors import FileError, HistoryError
from eplb.history.file import MAGIC, Held, _digest, read_history, write_history
from eplb.history.moments import MOMENT_MS, Moment, Step
from eplb.history.packing import pack

MOST = 10**6


def held():
    counts = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    moments = tuple(
        Moment(
            n,
            tuple(Step(n * MOMENT_MS + at, 2**63 + 1, 10 * n + at, pack(counts + at)) for at in (0, 1)),
            SHAPE,
        )
        for n in (3, 7)
    )
    return Held(FACTS.pool, SHAPE, FACTS.model_layers, FACTS.top_k, 5, moments, (2, -1), 3)


def test_what_is_written_is_read(tmp_path):
    """All of it, over an older file too."""
    path = tmp_path / "p.history"
    path.write_bytes(b"older")
    write_history(path, held())
    assert read_history(path, most_bytes=MOST) == held()
    assert [file.name for file in tmp_path.iterdir()] == ["p.history"]


def test_any_flipped_byte_and_any_cut_is_refused_by_the_file_s_name(tmp_path):
    """Wherever it is."""
    path = tmp_path / "p.history"
    write_history(path, held())
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        for raw in (bytes(damaged), whole[:at]):
            path.write_bytes(raw)
            with pytest.raises(HistoryError, match=r"p\.history: "):
                read_history(path, most_bytes=MOST)


@pytest.mark.parametrize(
    "change",
    [
        {"experts": 9},
        {"layers": 0},
        {"next_id": -1},
        {"model_layers": 3},
        {"moments": [{"number": 3, "regime": 0, "steps": []}]},
        {"moments": [{"number": 3, "regime": 0, "steps": [[0, 1, 1, 10**12]]}]},
        {"moments": {}},
    ],
)
def test_a_header_that_does_not_fit_its_steps_is_refused(tmp_path, change):
    """Even with a checksum that is right: the file may come from anywhere."""
    path = tmp_path / "p.history"
    write_history(path, held())
    body = path.read_bytes()[len(MAGIC) + 16 :]
    size = int.from_bytes(body[:4], "little")
    text = json.dumps({**json.loads(body[4 : 4 + size]), **change}).encode()
    write_body(path, text, body[4 + size :])
    with pytest.raises(HistoryError, match="holds what no history holds"):
        read_history(path, most_bytes=MOST)


def test_a_header_of_a_hundred_thousand_brackets_is_refused(tmp_path):
    """It is deeper than a reader of JSON can go, and must not end the daemon."""
    path = tmp_path / "p.history"
    write_body(path, b"[" * 100_000, b"")
    with pytest.raises(HistoryError, match="holds what no history holds"):
        read_history(path, most_bytes=MOST)


def write_body(path, text, steps):
    body = len(text).to_bytes(4, "little") + text + steps
    path.write_bytes(MAGIC + _digest(body) + body)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    """It is refused by its size."""
    path = tmp_path / "p.history"
    with path.open("wb") as file:
        file.truncate(200_000_000)
    with pytest.raises(HistoryError, match="200000000 bytes are more than"):
        read_history(path, most_bytes=MOST)


def test_a_folder_that_cannot_be_written_is_a_named_error(tmp_path):
    """And leaves nothing behind."""
    with pytest.raises(FileError, match="cannot be written"):
        write_history(tmp_path / "none" / "p.history", held())
