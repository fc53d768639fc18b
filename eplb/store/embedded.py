"""A private store for one process tree: Valkey on a unix socket, nothing on disk, dying with its parent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from eplb.errors import StoreUnavailable

if TYPE_CHECKING:
    from types import TracebackType

_SOCKET_PATH_MAX_BYTES = 100
_STOP_S = 10.0


class EmbeddedStore:
    """Run a private Valkey for as long as the context is open and this process lives.

    ``socket_path`` a path to serve on, so that others can be told of it beforehand; None = in a private folder.
    ``url`` is ``unix:///…`` and is good for every process of this host and user. Nothing is persisted. The server stops
    with the context, and also when this process dies by any signal, SIGKILL included (see ``eplb.store.guard``).

    Raises:
        StoreUnavailable: the server cannot start: not installed, no space for its socket, or the path is too long.
    """

    def __init__(self, *, socket_path: Path | None = None, maxmemory_bytes: int = 512_000_000) -> None:
        self._wanted = socket_path
        self._maxmemory_bytes = maxmemory_bytes
        self._guard: subprocess.Popen[bytes] | None = None
        self._socket: Path | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self._socket is None:
            raise StoreUnavailable(
                "the embedded store is not running; open it with `with EmbeddedStore() as store:`"
            )
        return f"unix://{self._socket}"

    def start(self) -> Self:
        """Start the server and wait until it answers."""
        if self._guard is not None:
            return self
        data_dir = Path(tempfile.mkdtemp(prefix="eplb-"))
        socket = data_dir / "s" if self._wanted is None else self._wanted.absolute()
        if len(os.fsencode(socket)) > _SOCKET_PATH_MAX_BYTES:
            data_dir.rmdir()
            raise StoreUnavailable(
                f"embedded store: the socket path {socket} is longer than {_SOCKET_PATH_MAX_BYTES} bytes; set TMPDIR to a short folder"
            )
        guard = subprocess.Popen(
            [sys.executable, "-P", _guard_script(), str(data_dir), str(socket), str(self._maxmemory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._guard = guard
        answer = guard.stdout.readline().decode(errors="replace").strip() if guard.stdout else ""
        if answer != "ready":
            reason = answer or _last_line(guard)
            self.stop()
            shutil.rmtree(data_dir, ignore_errors=True)
            raise StoreUnavailable(
                f"embedded store does not start: {reason}; install `eplb-daemon[daemon]`, or give the URL of a running Redis"
            )
        self._socket = socket
        return self

    def stop(self) -> None:
        """Stop the server and remove its folder; safe to call twice."""
        guard, self._guard, self._socket = self._guard, None, None
        if guard is None:
            return
        for stream in (guard.stdin, guard.stdout, guard.stderr):
            if stream is not None:
                stream.close()
        try:
            guard.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _guard_script() -> str:
    return str(Path(__file__).with_name("guard.py"))


def _last_line(guard: subprocess.Popen[bytes]) -> str:
    lines = guard.stderr.read().decode(errors="replace").strip().splitlines() if guard.stderr else []
    return lines[-1] if lines else "no reason given"
