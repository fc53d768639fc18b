"""Clocks of this process that can be made to jump.

``time.time`` and ``time.monotonic`` are replaced before anything else is imported, because modules keep the function that they found; without a
jump both say what the system says. A wall clock is set forward and back in reality; a monotonic clock only leaps forward, when a machine resumes.
"""

from __future__ import annotations

import time

_real_wall, _real_monotonic = time.time, time.monotonic
_shift_s = {"wall": 0.0, "monotonic": 0.0}


def _wall() -> float:
    return _real_wall() + _shift_s["wall"]


def _monotonic() -> float:
    return _real_monotonic() + _shift_s["monotonic"]


def install() -> None:
    """Let this process read its clocks here."""
    time.time, time.monotonic = _wall, _monotonic


def jump(clock: str, seconds: float) -> None:
    """Move ``wall`` or ``monotonic`` by so many seconds."""
    _shift_s[clock] += seconds
