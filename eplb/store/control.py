"""Operator switches of one pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

PAUSED_FIELD = "paused"


class Switches(Protocol):
    """Where an operator's switches are kept."""

    def read_control(self) -> dict[str, bytes]:
        """All operator switches."""

    def write_control(self, fields: Mapping[str, bytes], term: int | None = None) -> None:
        """Set operator switches; under a term, or by an operator's own hand."""


def is_paused(store: Switches) -> bool:
    """Whether an operator has paused the pool."""
    return store.read_control().get(PAUSED_FIELD, b"0") == b"1"


def set_paused(store: Switches, *, paused: bool, term: int | None = None) -> None:
    """Pause or resume the pool: an operator's switch holds under any term, a daemon writes under its own.

    Raises:
        StoreFenced: a newer term than ``term`` exists.
    """
    store.write_control({PAUSED_FIELD: b"1" if paused else b"0"}, term)
