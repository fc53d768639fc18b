"""The file of a pool's history and when it is read and written; whatever fails is logged and stops nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from eplb.errors import FileError, HistoryError
from eplb.formats.files import make_folder
from eplb.history.file import Held, read_history, write_history

if TYPE_CHECKING:
    from collectors.facts import PoolFacts
    from eplb.config import HistoryConfig

SAVE_EVERY_MS = 300_000
"""Five minutes of history are lost at most, and a file of some ten megabytes is written no oftener."""


class Keeper:
    """Reads the file once and writes it from time to time; without a folder it does neither."""

    def __init__(self, facts: PoolFacts, config: HistoryConfig) -> None:
        self._facts, self._most_bytes = facts, config.most_bytes
        self._path = Path(config.folder) / f"{facts.pool}.history" if config.folder else None
        self._written_ms: int | None = None
        self._log = structlog.get_logger("eplb").bind(pool=facts.pool)

    def load(self) -> Held | None:
        """What an earlier life kept; None = nothing, or nothing that fits this pool, and the file is then moved aside."""
        if self._path is None:
            return None
        try:
            if not self._path.exists():
                return None
            held = read_history(self._path, most_bytes=self._most_bytes)
            self._check(self._path, held)
        except HistoryError as error:
            self._log.warning("history_refused", reason=str(error), moved_to=self._set_aside(self._path))
            return None
        except (OSError, FileError) as error:
            self._log.warning("history_unread", reason=str(error))
            return None
        self._log.info("history_read", file=str(self._path), moments=len(held.moments))
        return held

    def due(self, now_ms: int) -> bool:
        """Whether it is time to write; the first time is an interval after the first call."""
        if self._path is None:
            return False
        if self._written_ms is None or now_ms < self._written_ms:
            self._written_ms = now_ms
        return now_ms - self._written_ms >= SAVE_EVERY_MS

    def save(self, now_ms: int, held: Held) -> None:
        """Write the file."""
        if self._path is None or not held.moments:
            return
        self._written_ms = now_ms
        try:
            make_folder(self._path.parent, "history.folder")
            write_history(self._path, held)
        except FileError as error:
            self._log.warning(
                "history_unwritten", reason=str(error), would_help="space, or another history.folder"
            )

    def dropped(self, reason: str) -> None:
        """Say that the history begins anew, and keep the file of the old one beside it."""
        moved = None if self._path is None or not self._path.exists() else self._set_aside(self._path)
        self._log.warning("history_dropped", reason=reason, moved_to=moved)

    def _check(self, path: Path, held: Held) -> None:
        facts = self._facts
        theirs = (held.pool, held.model_layers, held.shape[1], held.top_k)
        ours = (facts.pool, facts.model_layers, facts.experts, facts.top_k)
        if theirs != ours or held.shape[0] != facts.layers:
            raise HistoryError(
                f"{path}: is the history of another pool or model: pool {held.pool!r}, {held.shape[0]} layers x {held.shape[1]} experts, "
                f"top-{held.top_k}; this one is {facts.pool!r}, {facts.layers} x {facts.experts}, top-{facts.top_k}"
            )

    def _set_aside(self, path: Path) -> str | None:
        aside = path.with_name(f"{path.name}.refused")
        try:
            path.replace(aside)
        except OSError:
            return None
        return str(aside)
