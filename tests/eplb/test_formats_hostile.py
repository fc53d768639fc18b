"""Small files that claim, name or nest very much are refused with words, in little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_files import FILES

ROOT = Path(__file__).parents[2]
WORDS = {
    "aliases in YAML": "num_slots is [[[[",
    "a layer far away": "names layer 2000000000",
    "shared lists as counts": "expected numbers [layers, experts]",
    "shared lists as a map": "claims [32768, 32768] numbers",
    "a list in itself": "expected whole numbers [layers, slots]",
    "brackets as a map": "expected whole numbers [layers, slots]",
    "more brackets": "not JSON",
    "digits": "not JSON",
    "slices without experts": "with at least 1 each",
    "very many tiny slices": "33,554,432 slices",
    "very many sequences": "33,554,431 sequences",
    "an array that is not there": "the archive holds 0",
    "wide inverse": "more than 1 slots",
    "holes": "[1, 536870912]",
    "a header of 2^40 bytes": "header too large",
    "wild experts": "pool.experts is 2147483647",
    "a wild layer": "model_layer[0] is 2000000000",
    "an array without rows behind it": "cut off",
    "base64 of nothing": "is not base64",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What readers with a gigabyte to spare, in a process of their own, say of every file."""
    folder = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, str(Path(__file__).with_name("hostile_files.py")), str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def test_every_file_has_its_words():
    """So that none is written and not looked at."""
    assert set(WORDS) == set(FILES)


@pytest.mark.parametrize("name", WORDS)
def test_a_hostile_file_is_refused_for_what_it_is(said, name):
    """Not for the memory that it would have taken."""
    assert WORDS[name] in said[name]
    assert "needs more memory" not in said[name]
