"""Operator switches of one pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eplb.store.client import Store

PAUSED_FIELD = "paused"


def is_paused(store: Store) -> bool:
    """Whether an operator has paused the pool."""
    return store.read_control().get(PAUSED_FIELD, b"0") == b"1"


def set_paused(store: Store, *, paused: bool) -> None:
    """Pause or resume the pool; an operator's switch holds under any term."""
    store.write_control({PAUSED_FIELD: b"1" if paused else b"0"})
