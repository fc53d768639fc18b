"""Failures that others had in public: every case that concerns placement has a test that begins with its id."""

import json
import re
from pathlib import Path

PLANNER = {"PLN-03", "PLN-04", "PLN-06", "PLN-09", "PLN-11"}
"""Cases of the planner that a placement alone can get right; the others are about decisions, votes and processes."""


def test_every_case_of_the_solver_has_a_test(shared_data):
    """By the ids in the names of the tests beside this one."""
    lines = (shared_data.parent / "cases.jsonl").read_text().splitlines()
    cases = {case["id"]: case["component"] for case in map(json.loads, lines)}
    assert {id_ for id_, component in cases.items() if component == "planner"} >= PLANNER
    wanted = PLANNER | {id_ for id_, component in cases.items() if component == "solver"}
    text = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    found = {f"{kind.upper()}-{number}" for kind, number in re.findall(r"def test_(sol|pln)_(\d+)_", text)}
    assert wanted <= found
