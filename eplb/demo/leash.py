"""Run one command that must not outlive whoever started this process.

Runs as ``python -m eplb.demo.leash COMMAND ...`` in a session of its own, so that a Ctrl+C in the terminal does not reach the command.
The starter holds the write end of this process's standard input; its end of file means that the starter closed it or died.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys

CHECK_S = 0.5
STOP_S = 5.0


def main(command: list[str]) -> int:
    """Run the command until it ends or the starter is gone; its exit status."""
    parent = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        gone = os.getppid() != parent or bool(select.select([0], [], [], CHECK_S)[0])
        if gone:
            _stop(child)
    return child.returncode


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
