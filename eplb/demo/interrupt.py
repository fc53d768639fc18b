"""Ctrl+C that cannot be lost.

Python raises ``KeyboardInterrupt`` wherever the main thread happens to be. In a callback of a library (a finalizer, a hook called
from compiled code) it is reported and dropped, and the run goes on: so it is noted too, and the loop asks.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType


class Interrupt:
    """While entered, SIGINT raises ``KeyboardInterrupt`` as usual and is remembered; elsewhere than in the main thread, nothing."""

    def __init__(self) -> None:
        self._heard = False
        self._before: signal._HANDLER = None

    def __enter__(self) -> Self:
        """Answer SIGINT from now on."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        """Give SIGINT back to who answered it before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._heard = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise again what was raised where it was lost.

        Raises:
            KeyboardInterrupt: SIGINT came since this was entered.
        """
        if self._heard:
            raise KeyboardInterrupt
