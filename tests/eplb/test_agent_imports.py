"""The rank side enters an engine's environment: it must bring in nothing but the base install."""

import subprocess
import sys

BASE_INSTALL = {"numpy", "redis", "hiredis", "zstandard", "collectors", "eplb"}


def test_importing_the_agent_loads_only_the_base_install():
    code = (
        "import sys; before = set(sys.modules); import eplb.agent; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert {"eplb", "numpy", "redis"} <= loaded
    assert loaded - set(sys.stdlib_module_names) <= BASE_INSTALL | {
        "async_timeout",
        "typing_extensions",
        "backports",
    }


def test_the_agent_loads_neither_torch_nor_the_daemon():
    code = "import sys, eplb.agent; print([n for n in sys.modules if n.startswith(('torch', 'eplb.migration', 'placement'))])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
