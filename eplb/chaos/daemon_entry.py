"""Entry of a daemon under chaos: the real ``eplb run``, with a hand on its clocks and a point where it can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from eplb.chaos import clocks
from eplb.store import client

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

_PARENT_GONE = 3

UNFENCED_WRITE = """
redis.call('HSET', KEYS[1], 'term', ARGV[1])
local first = 2
while first <= #ARGV do
  redis.call('HSET', KEYS[2], ARGV[first], ARGV[first + 1])
  first = first + 2
end
return -1
"""
"""The store's write without its check of the term; for the negative control alone."""

_stop_at_write = threading.Event()


def run_daemon(config_path: str, log_path: str, fenced: bool, pipe: Connection) -> None:
    """Serve until killed; ``log_path`` takes what the daemon says, ``fenced`` False removes the store's check of terms."""
    _log_to(log_path)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver answers Ctrl+C for all
    for name in [name for name in os.environ if name.startswith("EPLB_")]:
        del os.environ[name]  # settings of a daemon that the user runs elsewhere
    threading.Thread(target=_obey, args=(pipe,), name="chaos-orders", daemon=True).start()
    if not fenced:
        vars(client)["FENCED_WRITE"] = UNFENCED_WRITE
    _watch_writes()
    from eplb.cli.main import main

    sys.exit(main(["run", "--config", config_path]))


def _log_to(path: str) -> None:
    """Send this process's output through a pipe, as a service manager does: its own limit on file sizes must not touch its log."""
    reading, writing = os.pipe()
    with Path(path).open("ab") as log:
        subprocess.Popen(["cat"], stdin=reading, stdout=log, stderr=log)
    os.close(reading)
    for number in (1, 2):
        os.dup2(writing, number)
    os.close(writing)


def _obey(pipe: Connection) -> None:
    """Take orders until the driver is gone, then end this process at once."""
    try:
        while True:
            name, value = pipe.recv()
            if name == "stop_at_write" and value < 0:
                _stop_at_write.clear()
            elif name == "stop_at_write":
                _stop_at_write.set()
            else:
                clocks.jump(name, value)
    except (EOFError, OSError):
        os._exit(_PARENT_GONE)


def _watch_writes() -> None:
    """Let an order stop this process between its look at the lease and its write, where only the fence can help."""
    write = client.Store.write_desired

    def stopped_write(store: client.Store, term: int, fields: Mapping[str, bytes]) -> None:
        if _stop_at_write.is_set():
            _stop_at_write.clear()
            os.kill(os.getpid(), signal.SIGSTOP)
        write(store, term, fields)

    client.Store.write_desired = stopped_write  # type: ignore[method-assign, assignment]
