"""Rules of plans that are written down: each file is the map that its plan leads to, and a folder does not fill up."""

import os

import numpy as np
from agent_crew import FACTS, rotated, start_map

from eplb.advice import KEPT_FILES, write_advice
from eplb.formats.neutral import read_map
from eplb.migration import make_plan

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])


def plan_of(created_ms):
    return make_plan(FACTS, BASE, TARGET, created_ms=created_ms)


def test_a_file_holds_the_map_that_the_plan_leads_to(tmp_path):
    plan = plan_of(1000)
    path = write_advice(tmp_path / "new" / "folder", FACTS, plan, BASE)
    assert [row.tolist() for row in read_map(path).placement.physical_to_logical] == [
        list(change.target) for change in plan.changes
    ]


def test_the_newest_plans_of_a_pool_stay_and_nobody_elses_file_is_touched(tmp_path):
    others = [
        tmp_path / name for name in (f"{FACTS.pool}-mine.json", f"{FACTS.pool}-b-p0123456789.json", "p.json")
    ]
    for path in others:
        path.write_text("{}")
        os.utime(path, (0, 0))
    written = []
    for number in range(KEPT_FILES + 3):
        written.append(write_advice(tmp_path, FACTS, plan_of(1000 + number), BASE))
        os.utime(written[-1], (number + 1, number + 1))
    write_advice(tmp_path, FACTS, plan_of(1), BASE)
    kept = [path for path in written if path.exists()]
    assert kept == written[-(KEPT_FILES - 1) :]
    assert all(path.exists() for path in others)
