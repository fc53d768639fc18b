"""The token that guards /metrics and /state, and the check of each request for it."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from eplb.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from eplb.config import HttpConfig

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""What an orchestrator probes without a token; neither says anything about load or maps."""

SHORTEST_TOKEN = 16
MOST_TOKEN_BYTES = 4096
_HOW = "make one with `openssl rand -hex 32`"


def read_token(config: HttpConfig) -> str | None:
    """The token of the settings, None = none is set.

    Raises:
        ConfigError: its file cannot be read, or it is too short or no plain text.
    """
    if config.token is not None:
        return _sound(config.token.get_secret_value(), "http.token")
    if config.token_file is None:
        return None
    path = Path(config.token_file)
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_TOKEN_BYTES)
    except OSError as error:
        raise ConfigError(f"http.token_file {path}: cannot be read: {error.strerror}; {_HOW}") from error
    return _sound(raw.decode("ascii", errors="replace").strip(), f"http.token_file {path}")


def _sound(token: str, where: str) -> str:
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            f"{where}: the token must be at least {SHORTEST_TOKEN} printable characters without spaces; {_HOW}"
        )
    return token


class TokenGuard:
    """Answers 401 to a request without the token, in the same time whatever it sent instead."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._wanted = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        answer = JSONResponse(
            {"error": "send the token of http.token_file as `Authorization: Bearer TOKEN`"},
            status_code=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
        await answer(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(sent) == 1 and hmac.compare_digest(bytes(sent[0]), self._wanted)
