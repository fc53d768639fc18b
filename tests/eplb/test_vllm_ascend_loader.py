"""Maps for vllm-ascend are read by the engine's own code, out of its wheel, and mean there what they mean here."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eplb.formats import vllm_ascend
from eplb.formats.neutral import NeutralMap
from placement import Placement

SCRIPT = Path(__file__).parents[2] / "scripts" / "vllm_ascend_loader.py"
EXPERTS, RANKS, WIDTH = 8, 4, 3
ROWS = [[0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 1], [7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4]]


@pytest.fixture
def wheel():
    """The engine's wheel, where ``EPLB_VLLM_ASCEND_WHEEL_DIR`` says it is."""
    folder = os.environ.get("EPLB_VLLM_ASCEND_WHEEL_DIR")
    found = sorted(Path(folder).glob("vllm_ascend-0.23.0-*.whl")) if folder else []
    if not found:
        pytest.skip("vllm-ascend's wheel is not here: .ci/run downloads it into EPLB_VLLM_ASCEND_WHEEL_DIR")
    return found[-1]


def loaded(wheel, config, layers=2):
    """What every rank and layer of the engine makes of its configuration."""
    shape = ("--layers", str(layers), "--experts", str(EXPERTS), "--ep-size", str(RANKS))
    command = [sys.executable, str(SCRIPT), str(wheel), config, *shape]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def printed_config(path, layers=(1, 2), rows=ROWS):
    """The configuration that the writer prints for a map of two MoE layers behind a dense one."""
    neutral = NeutralMap(RANKS, 2, WIDTH, EXPERTS, layers, Placement(np.array(rows)), 3)
    (line,) = (
        line
        for line in vllm_ascend.write_map(path, neutral).start_with
        if line.startswith("--additional-config ")
    )
    return shlex.split(line)[1]


@pytest.mark.slow
def test_the_engine_finds_every_expert_in_the_slot_that_was_written(wheel, tmp_path):
    """Entry 0 is the first MoE layer; a rank sends an expert to replica rank modulo copies, as dispatch "per_source" says."""
    for found in loaded(wheel, printed_config(tmp_path / "map.json")):
        row, rank = ROWS[found["layer"]], found["rank"]
        held = row[rank * WIDTH : (rank + 1) * WIDTH]
        assert found["local"] == [held.index(expert) if expert in held else -1 for expert in range(EXPERTS)]
        assert found["redundant"] == RANKS * WIDTH - EXPERTS
        for expert, slot in enumerate(found["slots"]):
            copies = [at for at, held in enumerate(row) if held == expert]
            assert slot == copies[rank % len(copies)]


@pytest.mark.slow
def test_rows_out_of_order_reach_the_engine_in_the_order_of_the_model(wheel, tmp_path):
    """It goes by position alone."""
    straight = loaded(wheel, printed_config(tmp_path / "map.json"))
    assert loaded(wheel, printed_config(tmp_path / "map.json", (2, 1), ROWS[::-1])) == straight


@pytest.mark.slow
def test_the_engine_takes_an_expert_twice_on_a_device_in_silence(wheel, tmp_path):
    """So the writer refuses it: here slot 1 of rank 0 becomes unreachable, and other ranks' slots shift."""
    path = tmp_path / "map.json"
    config = printed_config(path)
    path.write_text(path.read_text().replace("[0, 1, 2]", "[0, 0, 2]", 1))
    found = loaded(wheel, config, layers=1)
    assert found[1]["local"][3] == 1
    assert found[1]["slots"][3] != 1 * WIDTH + 1
