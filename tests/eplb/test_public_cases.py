"""Failures that others had in public: every case of collectors, window, planner and migration has a test that names it."""

import json
import re
from pathlib import Path

COMPONENTS = {"collector", "window", "planner", "migration"}
TESTS = Path(__file__).parents[1]


def ids_named(text):
    """Ids such as MIG-06 in names of tests (test_MIG_06_07_...) and in what is said about them."""
    for kind, first, more in re.findall(
        r"(?<![a-z])(col|win|pln|mig)[-_](\d\d)((?:_\d\d)*)", text, re.IGNORECASE
    ):
        yield from (f"{kind.upper()}-{number}" for number in (first, *more.split("_")[1:]))


def test_several_ids_in_one_name_are_all_found():
    assert set(ids_named("def test_MIG_03_MIG_06_07_waves(): # PLN-12")) == {
        "MIG-03",
        "MIG-06",
        "MIG-07",
        "PLN-12",
    }


def test_every_case_of_the_daemon_and_the_ranks_has_a_test(shared_data):
    lines = (shared_data.parent / "cases.jsonl").read_text().splitlines()
    wanted = {case["id"] for case in map(json.loads, lines) if case["component"] in COMPONENTS}
    files = [file for file in TESTS.rglob("test_*.py") if file != Path(__file__)]
    found = {named for file in files for named in ids_named(file.read_text())}
    assert wanted - found == set()
