"""What a command says on stderr while it works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S = 2.0
"""Time between two reports on one piece of work."""


def say(text: str) -> None:
    """Write one line on stderr."""
    click.echo(text, err=True)


def progress(what: str, every_s: float = EVERY_S) -> Callable[[int, int | None], None]:
    """A function to tell how far work is (done, all of it or None); it says so on stderr now and then, in percent if it can."""
    last_s = time.monotonic()

    def told(done: int, total: int | None) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s < every_s:
            return
        last_s = now_s
        say(f"{what}: {done / total:.0%}" if total else f"{what}: {done:,}")

    return told
