"""With CI=true a skip is a failure, unless it is listed with a reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TWO = ("-n", "2", "--dist", "loadscope")
SKIPPED = """
import pytest

def test_runs():
    assert True

def test_is_skipped():
    pytest.skip("no such thing here")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "allowed", "code", "says", "workers"),
    [
        ("", "", 0, "skips: 1 (0 listed", ()),
        ("true", "", 1, "skipped with CI=true: Skipped: no such thing here", TWO),
        ("true", "tests/test_sample.py::test_is_skipped # a reason\n", 0, "skips: 1 (1 listed", TWO),
        ("true", "tests/test_sample.py::test_is_skipped\n", 4, "has no reason", ()),
    ],
    ids=["elsewhere", "ci", "ci-listed", "listed-without-reason"],
)
def test_a_skip_fails_in_ci_unless_it_is_listed_with_a_reason(tmp_path, ci, allowed, code, says, *, workers):
    """The count of skips is always shown."""
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(TESTS / "conftest.py", tests)
    (tests / "allowed_skips.txt").write_text(allowed)
    (tests / "test_sample.py").write_text(SKIPPED)
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, "tests"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
