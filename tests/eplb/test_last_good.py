"""Rules of the last good map: it survives, it is never half written, and a foreign or damaged one is named and set aside."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.facts import PoolFacts
from eplb.agent.signing import RING, MapKeys
from eplb.errors import FileError, OfferError
from eplb.last_good import (
    LastGood,
    decode_last_good,
    encode_last_good,
    last_good_path,
    read_last_good,
    write_last_good,
)

FACTS = PoolFacts("p", 2, 1, 2, 3, 2, (3, 4))
GOOD = LastGood("p", 7, 3, 55, ((0, 1, 2, 0), (1, 2, -1, 0)), None, paused=True, saved_ms=1000)
SHARED = replace(GOOD, shares=((0.5, 1.0, 1.0, 0.5), (1.0, 1.0, 0.0, 1.0)))


@pytest.mark.parametrize("record", [GOOD, SHARED])
def test_what_is_written_is_read_again(tmp_path, record):
    """Every field, in a folder that did not exist before."""
    folder = tmp_path / "state" / "eplb"
    write_last_good(folder, record)
    assert read_last_good(folder, FACTS) == (record, "")
    assert [path.name for path in folder.iterdir()] == ["p.last-good.json"]


def test_no_file_is_no_complaint(tmp_path):
    """A first start has none."""
    assert read_last_good(tmp_path / "none", FACTS) == (None, "")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FACTS, pool="q"), "is of pool 'p'"),
        (replace(FACTS, model_layers=(3, 4, 5)), "3 rows"),
        (replace(FACTS, slots_per_rank=3), "6 slots"),
        (replace(FACTS, experts=2, top_k=1), "an id"),
    ],
)
def test_a_record_of_another_pool_or_shape_is_refused(facts, words):
    """Its rows would be read as something that they are not."""
    with pytest.raises(OfferError, match=words):
        decode_last_good(encode_last_good(GOOD), facts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"term": 2**53 + 1}, "term"),
        ({"term": -1}, "term"),
        ({"term": True}, "term"),
        ({"map_version": "3"}, "map_version"),
        ({"run_id": 1.5}, "run_id"),
        ({"paused": 1}, "paused"),
        ({"rows": ((0, 1, 2, 3), (0, 1, 2, 0))}, "an id"),
        ({"rows": ((0, 1, 2, 0.0), (0, 1, 2, 0))}, "an id"),
        ({"rows": 5}, "rows"),
        ({"shares": ((2.0, 1.0, 1.0, 0.5), (1.0, 1.0, 0.0, 1.0))}, "share"),
        ({"shares": ((0.5,),)}, "shares"),
    ],
)
def test_a_value_out_of_range_is_refused(changes, words):
    """A sound checksum says only that nobody changed the bytes."""
    with pytest.raises(OfferError, match=words):
        decode_last_good(encode_last_good(replace(GOOD, **changes)), FACTS)


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_no_bytes_get_past_the_reader(junk, place):
    """Junk, and junk in the middle of a sound record: refused by name, whatever it is."""
    sound = encode_last_good(GOOD)
    at = place % len(sound)
    for raw in (junk, sound[:at] + junk + sound[at:]):
        try:
            found = decode_last_good(raw, FACTS)
        except OfferError:
            continue
        assert found == GOOD


def test_a_damaged_file_is_named_moved_aside_and_replaced(tmp_path):
    """What was found stays for whoever wants to look."""
    write_last_good(tmp_path, GOOD)
    path = last_good_path(tmp_path, "p")
    damaged = path.read_bytes().replace(b'"term":7', b'"term":8')
    path.write_bytes(damaged)
    record, why = read_last_good(tmp_path, FACTS)
    assert record is None
    assert "checksum" in why
    assert str(path) in why
    assert not path.exists()
    assert path.with_suffix(".refused").read_bytes() == damaged
    write_last_good(tmp_path, GOOD)
    assert read_last_good(tmp_path, FACTS) == (GOOD, "")


def test_an_unsigned_file_is_refused_where_there_is_a_key(tmp_path):
    """Whoever can write the folder cannot make up a map."""
    write_last_good(tmp_path, GOOD)
    with RING.using(MapKeys((b"k" * 32,))):
        record, why = read_last_good(tmp_path, FACTS)
        assert record is None
        assert "is not signed" in why
        write_last_good(tmp_path, GOOD)
        assert read_last_good(tmp_path, FACTS) == (GOOD, "")


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    """With the setting that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="state_folder"):
        write_last_good(tmp_path / "file" / "state", GOOD)


FILLED_DISK = """
import resource, sys
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, sys.argv[2])
from test_last_good import GOOD
from eplb.errors import FileError
from eplb.last_good import write_last_good
folder = Path(sys.argv[1])
write_last_good(folder, GOOD)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
try:
    write_last_good(folder, replace(GOOD, term=8))
except FileError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
write_last_good(folder, replace(GOOD, term=9)) if len(sys.argv) > 3 else None
"""


@pytest.mark.parametrize("heals", [False, True])
def test_a_disk_that_is_full_leaves_the_old_file_whole(tmp_path, heals):
    """RLIMIT_FSIZE cuts the write: an error with a name, the old record, no other file, and the next write works again."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", FILLED_DISK, str(tmp_path), str(Path(__file__).parent)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, *(["again"] if heals else [])], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout
    assert "cannot be written: File too large" in done.stdout
    assert read_last_good(tmp_path, FACTS) == (replace(GOOD, term=9 if heals else 7), "")
    assert len(list(tmp_path.iterdir())) == 1


def test_the_file_says_what_it_is():
    """A reader of the file sees schema and pool."""
    outer = json.loads(encode_last_good(GOOD))
    assert outer["schema"] == "eplb.last_good/1"
    assert outer["body"]["pool"] == "p"
