"""Install the base alone into a throw-away environment and import the rank side.

Fails if importing ``collectors`` or ``eplb.agent`` loads any third-party module beyond numpy, redis (with hiredis) and
zstandard. Run: python scripts/check_base_install.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A copy is installed, because building leaves files beside the source.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "placement", "collectors", "eplb")
ALLOWED = {"collectors", "eplb", "numpy", "redis", "hiredis", "zstandard"}
PROBE = """
import sys
before = set(sys.modules)
import collectors, eplb.agent
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(name for name in names if name not in sys.stdlib_module_names)))
"""


def main() -> int:
    """Return 0 when only the allowed modules were loaded."""
    with tempfile.TemporaryDirectory(prefix="eplb-base-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        source = Path(folder) / "source"
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / name, source / name)
        subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), str(source)], check=True)
        loaded = subprocess.run(
            [str(python), "-c", PROBE], check=True, capture_output=True, text=True, cwd=folder
        ).stdout.split()
    foreign = sorted(name for name in loaded if name not in ALLOWED and not name.startswith("_"))
    if foreign:
        print(f"base install: importing the rank side loaded {', '.join(foreign)}", file=sys.stderr)
        return 1
    print(f"base install: rank side imports with {', '.join(sorted(set(loaded) & ALLOWED))} alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
