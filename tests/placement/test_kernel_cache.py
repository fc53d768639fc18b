"""Machine code is kept where it can be written, read where an image build left it, and never needed."""

import shutil
import subprocess
import sys
from pathlib import Path

import placement

CALL = """
import sys
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "read-only":
    import tempfile
    def refuse(*args, **kwargs):
        raise PermissionError("read-only file system")
    tempfile.TemporaryFile = refuse
import numpy as np
from placement import kernel
assert kernel.__file__.startswith(sys.argv[1])
kernel.draw(np.array([1], dtype=np.uint64))
stats = kernel.draw.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def called(folder, mode):
    """Hits and misses of one call in a process of its own."""
    environment = {"HOME": str(folder / "home"), "PATH": ""}
    command = [sys.executable, "-c", CALL, str(folder), mode]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [int(number) for number in run.stdout.split()]


def installed(folder):
    """A copy of the package without machine code."""
    source = Path(placement.__file__).parent
    shutil.copytree(source, folder / "placement", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_read_only_container_loads_what_the_image_build_left(tmp_path):
    """Nothing there: compiled in memory. Built once: loaded, also where nothing can be written."""
    folder = installed(tmp_path)
    assert called(folder, "read-only") == [0, 1]
    assert called(folder, "writable") == [0, 1]
    assert called(folder, "writable") == [1, 0]
    assert called(folder, "read-only") == [1, 0]


def test_machine_code_is_stale_once_any_kernel_file_changes(tmp_path):
    """A function is compiled into its callers in other files, so all files count."""
    folder = installed(tmp_path)
    assert called(folder, "writable") == [0, 1]
    with (folder / "placement" / "kernel_pack.py").open("a") as file:
        file.write("\n# changed\n")
    assert called(folder, "writable") == [0, 1]
