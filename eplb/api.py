"""The daemon's HTTP side: /metrics, /livez, /readyz and /state, read only, served from the newest snapshots.

It runs in a thread of its own and touches nothing but immutable snapshots, so that a slow reader cannot slow the loop.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Self

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eplb.api_token import TokenGuard
from eplb.errors import ConfigError, EplbError
from eplb.metrics import SnapshotCollector, registry
from eplb.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from eplb.snapshot import PoolSnapshot

START_LIMIT_S = 10.0
"""A server that has not begun to listen after this time is a fault."""


def create_app(
    snapshots: Callable[[], tuple[PoolSnapshot, ...]],
    loop_age_s: Callable[[], float],
    *,
    live_within_s: float,
    layer_rank: bool = False,
    token: str | None = None,
) -> Starlette:
    """The application over two callables that other threads may call at any time.

    ``snapshots()`` returns the newest snapshot of every pool, ``()`` before the first cycle. ``loop_age_s()`` is the time
    in seconds since the loop last ended a cycle; older than ``live_within_s`` means that the process should be restarted.
    ``token``: what readers must send, None = nothing; probes of an orchestrator (/livez, /readyz) need none.
    """
    metrics = registry(SnapshotCollector(snapshots, loop_age_s, layer_rank=layer_rank))

    async def show_metrics(_: Request) -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    async def livez(_: Request) -> Response:
        age_s = loop_age_s()
        alive = age_s <= live_within_s
        body = {"alive": alive, "loop_age_s": plain(age_s), "limit_s": live_within_s}
        return JSONResponse(body, status_code=200 if alive else 503)

    async def readyz(_: Request) -> Response:
        reason = why_not_ready(snapshots())
        return JSONResponse(
            {"ready": reason is None, "reason": reason}, status_code=200 if reason is None else 503
        )

    async def state(request: Request) -> Response:
        wanted = request.query_params.get("pool")
        shown = [snapshot for snapshot in snapshots() if wanted in (None, snapshot.pool)]
        if wanted is not None and not shown:
            known = ", ".join(snapshot.pool for snapshot in snapshots()) or "none yet"
            return JSONResponse({"error": f"no pool {wanted!r}; known: {known}"}, status_code=404)
        return Response(state_json(tuple(shown)), media_type="application/json")

    return Starlette(
        routes=[
            Route("/metrics", show_metrics),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/state", state),
        ],
        middleware=[] if token is None else [Middleware(TokenGuard, token=token)],
    )


def why_not_ready(snapshots: tuple[PoolSnapshot, ...]) -> str | None:
    """Why the daemon cannot serve its pools, or None; a standby is as ready as the leader."""
    if not snapshots:
        return "no cycle has ended yet"
    away = [snapshot.pool for snapshot in snapshots if not snapshot.store_up]
    return f"the store does not answer for: {', '.join(away)}; maps stay as they are" if away else None


def state_json(snapshots: tuple[PoolSnapshot, ...]) -> bytes:
    """All snapshots as JSON: arrays as lists, NaN as null, integers exact."""
    return json.dumps({"pools": [plain(snapshot) for snapshot in snapshots]}, allow_nan=False).encode()


class ApiServer:
    """Serve an application from a thread until :meth:`stop`; a context manager.

    ``port`` 0 lets the system choose; :attr:`port` is the real one from construction on.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._socket = _listen(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(settings)
        self._thread = threading.Thread(target=self._serve, name="eplb-api", daemon=True)

    @property
    def url(self) -> str:
        """Base address, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Begin to serve; returns when requests are answered.

        Raises:
            EplbError: the server did not start.
        """
        self._thread.start()
        if not self._server.listening.wait(START_LIMIT_S) or not self._server.started:
            self.stop()
            raise EplbError(
                f"the HTTP server at {self.url} did not start within {START_LIMIT_S:g} s; see the log"
            )

    def stop(self, timeout_s: float = 5.0) -> None:
        """Answer what was asked, close the port and end the thread; may be called at any time and more than once."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.listening.set()


class _Server(uvicorn.Server):
    """Tells another thread when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"http: cannot listen on {host}:{port}: {reason}; set http.host and http.port to a free address (port 0 = any)"
        ) from error
