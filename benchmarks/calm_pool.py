"""The runtime of `make chaos` without a fault: a store, daemons and ranks as processes, and steps in their time."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eplb.chaos.load import tokens_of
from eplb.chaos.processes import DaemonProcess, StoreProcess, start_fork_server
from eplb.chaos.rank_group import RankGroup
from eplb.chaos.setup import STEP_S, TOKENS_PER_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from eplb.chaos.setup import RunFacts

DAEMONS = 2


class CalmPool:
    """``step`` steps served so far; ``version`` the smallest map_version that ranks had in the last of them."""

    def __init__(
        self, run: RunFacts, ranks: RankGroup, daemons: list[DaemonProcess], client: redis.Redis
    ) -> None:
        self._seed = run.seed
        self.ranks, self.daemons, self.client = ranks, daemons, client
        self.step = self.version = 0

    def serve(self) -> None:
        """Serve one step in its time."""
        began_s = time.monotonic()
        served = self.ranks.serve(tokens_of(self._seed, self.step, TOKENS_PER_STEP))
        self.version = min(part.map_version for part in served.parts.values())
        self.step += 1
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began_s)))


@contextmanager
def calm_pool(run: RunFacts, settings: Callable[[str, Path], dict[str, Any]]) -> Generator[CalmPool]:
    """Start all processes and end them; ``settings`` of a daemon, from the store's URL and the folder for what it keeps."""
    start_fork_server()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eplb-calm-")))
        store = StoreProcess(folder)
        stack.callback(store.kill)
        store.start()
        ranks = RankGroup(run, store.url, folder)
        stack.callback(ranks.end)

        def of_folder(home: Path) -> dict[str, Any]:
            return settings(store.url, home)

        daemons = [DaemonProcess(place, folder, of_folder, fenced=True) for place in range(DAEMONS)]
        for daemon in daemons:
            stack.callback(daemon.end)
            daemon.start()
        ranks.start()
        client = stack.enter_context(redis.Redis(unix_socket_path=str(store.socket)))
        yield CalmPool(run, ranks, daemons, client)
