"""Run one command that must not outlive whoever started this process.

Runs as ``python -m eplb.demo.leash FOLDER COMMAND ...`` in a session of its own, so that a Ctrl+C in the terminal does not reach the command.
The starter holds the write end of this process's standard input; its end of file means that the starter closed it or died. Then the command is ended and FOLDER, the starter's temporary one, removed.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys

CHECK_S = 0.5
STOP_S = 5.0


def main(folder: str, *command: str) -> int:
    """Run the command until it ends or the starter is gone; its exit status."""
    parent = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        gone = os.getppid() != parent or bool(select.select([0], [], [], CHECK_S)[0])
        if gone:
            _stop(child)
            shutil.rmtree(folder, ignore_errors=True)
    return child.returncode


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
