"""The daemon's process: pools served in turn, the HTTP side in a thread, an orderly end on SIGTERM."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from collectors.urls import masked_url
from eplb.agent.signing import RING
from eplb.api import ApiServer, create_app
from eplb.api_token import read_token
from eplb.errors import ConfigError
from eplb.pool import Pool
from eplb.ports import served
from eplb.store.embedded import EmbeddedStore

if TYPE_CHECKING:
    from types import FrameType

    from eplb.config import DaemonConfig, PoolConfig
    from eplb.snapshot import PoolSnapshot

LIVE_CYCLES = 3
"""A loop in which no pool has ended a cycle for this many cycles, and for as long as a slow store may take, is not alive."""

STORE_CALLS = 12
"""Answers of the store that a pool's cycle waits for at the most; each may take up to ``store.timeout_s`` and still be an answer."""


def live_within_s(config: DaemonConfig) -> float:
    """Longest time between the ends of two pools' cycles in a process that need not be restarted, seconds."""
    return LIVE_CYCLES * config.cycle_s + STORE_CALLS * config.store.timeout_s


class Daemon:
    """Serve all pools of a configuration until :meth:`stop` or a signal."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._log = structlog.get_logger("eplb")
        self._stop = threading.Event()
        self._snapshots: tuple[PoolSnapshot, ...] = ()
        self._ended_s = time.monotonic()
        self._bad_keys = ""
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    def run(self) -> None:
        """Serve until stopped; a store that is away is waited for, and no map changes meanwhile.

        Raises:
            ConfigError: the store's URL is malformed, a window does not fit, the HTTP address is taken, or a file of a key, token or
            password cannot be used.
        """
        self._catch_signals()
        RING.use(None if self._config.map_key_file is None else Path(self._config.map_key_file))
        with ExitStack() as stack:
            url = self._store_url(stack)
            pools = [self._open(stack, pool, url) for pool in self._config.pools]
            server = stack.enter_context(self._server())
            names = [pool.config.name for pool in pools]
            self._log.info("serving", pools=names, http=server.url, store=masked_url(url))
            while not self._stop.is_set():
                started_s = time.monotonic()
                self._refresh_keys()
                self._snapshots = tuple(self._cycle(pool) for pool in pools)
                self._stop.wait(max(0.0, self._config.cycle_s - (self._ended_s - started_s)))
            self._log.info("stopping")

    def stop(self) -> None:
        """End after the present cycle; may be called from any thread or signal."""
        self._stop.set()

    def snapshots(self) -> tuple[PoolSnapshot, ...]:
        """The newest snapshot of every pool."""
        return self._snapshots

    def loop_age_s(self) -> float:
        """Time since a pool last ended a cycle."""
        return time.monotonic() - self._ended_s

    def _cycle(self, pool: Pool) -> PoolSnapshot:
        snapshot = pool.cycle()
        self._ended_s = time.monotonic()
        return snapshot

    def _open(self, stack: ExitStack, config: PoolConfig, url: str) -> Pool:
        ports = served(config, self._config, url, self.owner)
        pool = Pool(config, ports, Path(self._config.advice_folder))
        stack.callback(pool.close)
        return pool

    def _refresh_keys(self) -> None:
        try:
            RING.refresh()
        except ConfigError as error:
            bad = str(error)
            if bad != self._bad_keys:
                self._log.warning("map_keys_not_renewed", reason=f"{bad}; the keys stay as they were")
            self._bad_keys = bad
        else:
            self._bad_keys = ""

    def _store_url(self, stack: ExitStack) -> str:
        if self._config.store.embedded:
            return stack.enter_context(EmbeddedStore()).url
        if self._config.store.url is None:
            raise ConfigError("no store is given; set store.url or store.embedded")
        return self._config.store.url

    def _server(self) -> ApiServer:
        config = self._config
        app = create_app(
            self.snapshots,
            self.loop_age_s,
            live_within_s=live_within_s(config),
            layer_rank=config.metrics.layer_rank,
            token=read_token(config.http),
        )
        return ApiServer(app, config.http.host, config.http.port)

    def _catch_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()
