"""Maps for SGLang are read by SGLang's own loader, out of the engine's wheel, and mean there what they mean here."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from eplb.formats import sglang
from eplb.formats.neutral import NeutralMap
from placement import Placement

SCRIPT = Path(__file__).parents[2] / "scripts" / "sglang_loader.py"


@pytest.fixture
def wheel():
    """SGLang's wheel, where ``EPLB_SGLANG_WHEEL_DIR`` says it is."""
    folder = os.environ.get("EPLB_SGLANG_WHEEL_DIR")
    found = sorted(Path(folder).glob("sglang-*.whl")) if folder else []
    if not found:
        pytest.skip("SGLang's wheel is not here: .ci/run downloads it into EPLB_SGLANG_WHEEL_DIR")
    return found[-1]


def loaded(wheel, start_with, *extra):
    """What every rank of the engine makes of a map, started with the flags that the writer printed."""
    flags = dict(line.split(" ") for line in start_with)
    command = [
        sys.executable,
        str(SCRIPT),
        str(wheel),
        flags["--init-expert-location"],
        *("--redundant", flags["--ep-num-redundant-experts"], "--ep-size", flags["--ep-size"]),
        *extra,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def placed():
    """Two MoE layers behind a dense one: 8 experts, 4 ranks on 2 nodes, 3 slots each; up to four replicas."""
    rows = np.array([[0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 1], [7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4]])
    return NeutralMap(4, 2, 3, 8, (1, 2), Placement(rows), 3)


@pytest.mark.slow
def test_the_engine_loads_what_was_written(wheel, tmp_path):
    """Every rank sees the same map; every expert has its slots in every layer, the dense one included."""
    neutral = placed()
    written = sglang.write_map(tmp_path / "map.json", neutral)
    ranks = loaded(wheel, written.start_with, "--layers", "3", "--experts", "8")
    rows = neutral.placement.physical_to_logical.tolist()
    for rank in ranks:
        assert rank["physical_to_logical"][1:] == rows
        assert rank["copies"][1:] == neutral.placement.replicas(8).tolist()
        assert min(min(layer) for layer in rank["copies"]) >= 1
        for layer, row in enumerate(rank["physical_to_logical"]):
            for expert, slots in enumerate(rank["logical_to_physical"][layer]):
                assert [slot for slot in slots if slot >= 0] == [
                    slot for slot, held in enumerate(row) if held == expert
                ]


@pytest.mark.slow
def test_the_engine_collapses_replicas_to_the_nearest_one_as_the_note_says(wheel, tmp_path):
    """With an all-to-all backend a rank that holds an expert sends all its tokens there."""
    neutral = placed()
    written = sglang.write_map(tmp_path / "map.json", neutral)
    assert "nearest_replica" in {note.code for note in written.notes}
    extra = ("--layers", "3", "--experts", "8", "--nodes", "2", "--dispatch", "static", "--a2a", "deepep")
    ranks = loaded(wheel, written.start_with, *extra)
    for number, rank in enumerate(ranks):
        for layer, row in enumerate(neutral.placement.physical_to_logical.tolist()):
            for expert in range(8):
                own = [slot for slot in range(number * 3, number * 3 + 3) if row[slot] == expert]
                assert not own or rank["dispatch"][layer + 1][expert] == own[0]


@pytest.mark.slow
def test_the_engine_stops_on_the_second_key_that_our_reader_refuses(wheel, tmp_path):
    """So metadata stands in a file of its own."""
    path = tmp_path / "map.json"
    path.write_text('{"physical_to_logical_map": [[0, 1], [1, 0]], "ranks": 2}')
    flags = (f"--init-expert-location {path}", "--ep-num-redundant-experts 0", "--ep-size 2")
    assert "TypeError" in loaded(wheel, flags, "--layers", "2", "--experts", "2")


@pytest.mark.slow
def test_the_engine_takes_a_wrong_number_of_layers_in_silence(wheel, tmp_path):
    """So the writer refuses to guess the dense ones."""
    path = tmp_path / "map.json"
    path.write_text('{"physical_to_logical_map": [[0, 1]]}')
    flags = (f"--init-expert-location {path}", "--ep-num-redundant-experts 0", "--ep-size 2")
    ranks = loaded(wheel, flags, "--layers", "2", "--experts", "2")
    assert ranks[0]["physical_to_logical"] == [[0, 1]]


def test_every_flag_that_is_printed_is_one_of_the_engine(wheel, tmp_path):
    """The engine declares its flags as fields, one for each."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("sglang/srt/arg_groups/fields/")]
        declared = {
            name
            for file in names
            if file.endswith(".py")
            for name in re.findall(r"^    (\w+): A\[", archive.read(file).decode(), re.MULTILINE)
        }
    for line in sglang.write_map(tmp_path / "map.json", placed()).start_with:
        assert line.split(" ")[0].removeprefix("--").replace("-", "_") in declared
