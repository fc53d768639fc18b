"""Structured logging to stderr: one event a line, JSON for collectors or text for a terminal.

stdout stays free for data. Lines of libraries that use the standard ``logging`` module come out in the same form.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import structlog

from eplb.plain import plain

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import EventDict, Processor

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's root logger for this process; a later call replaces an earlier one.

    ``level`` is a key of :data:`LEVELS`, ``form`` is ``json`` or ``console``.
    """
    target: Any = Unfailing(stream if stream is not None else sys.stderr)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
    ]
    final = _final_processors(form, colors=target.isatty())
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries speak only of what is wrong, unless everything is asked for.
    root.setLevel(LEVELS[level] if level in ("debug", "error") else logging.WARNING)


class Unfailing:
    """A text stream that drops what cannot be written: a full disk under the log must not end the process that would say so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.dropped = 0

    def write(self, text: str) -> int:
        """Write and flush, or drop."""
        try:
            written = self._stream.write(text)
            self._stream.flush()
        except OSError:
            self.dropped += 1
            return len(text)
        return written

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        """Whether a person may be reading."""
        return self._stream.isatty()


def _final_processors(form: str, *, colors: bool) -> list[Processor]:
    if form == "console":
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [structlog.processors.format_exc_info, _plain_values, structlog.processors.JSONRenderer()]


def _plain_values(logger: Any, method: str, event: EventDict) -> EventDict:
    """Array scalars, arrays and NaN become what JSON has, because a log line must never be lost to a type."""
    del logger, method
    return {key: plain(value) for key, value in event.items()}
