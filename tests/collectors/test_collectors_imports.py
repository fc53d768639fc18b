"""The rank side enters an engine's environment: it may load what the base install has, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALLOWED = {"collectors", "numpy", "redis", "hiredis", "zstandard"}
ROOT = Path(__file__).parents[2]
MODULES = sorted(f"collectors.{path.stem}" for path in (ROOT / "collectors").glob("[a-z]*.py"))
REPORT = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    __import__(name)
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def test_collectors_load_only_the_base_install():
    """A fresh process that imports every module has loaded numpy, redis, zstandard and the standard library."""
    command = [sys.executable, "-P", "-c", REPORT, str(ROOT), "collectors", *MODULES]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert {"collectors", "numpy", "redis", "zstandard"} <= loaded
    assert loaded - sys.stdlib_module_names <= ALLOWED
