"""Experts that come from a checkpoint instead of a peer, loaded on all ranks at once while nobody serves."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

import numpy as np

from eplb.agent.refusal import Code, Refusal, Refusals, decode_refusals, encode_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eplb.agent.digests import DigestTable
    from eplb.agent.group import Group
    from eplb.agent.memory import ExpertMemory, Tensors

POLL_S = 0.5
"""Ranks that have loaded meet the others this often, so that a long load is no missed collective."""
LOAD_TIMEOUT_S = 600.0

Wanted = tuple[int, int, int]
"""(layer, slot, expert): position of the row, group-wide slot id of this rank, logical id."""


class ExpertLoader(Protocol):
    """The engine's way to its checkpoint."""

    def load(self, layer: int, expert: int) -> Tensors:
        """All tensors of one expert as the memory names them, uint8 [bytes] each; raises what it likes when it cannot."""
        ...


class _Loading:
    """One rank's loads in a thread of its own; after ``leave`` it writes nothing more."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        memory: ExpertMemory,
        loader: ExpertLoader | None,
        table: DigestTable | None,
    ) -> None:
        self._wanted, self._memory, self._loader, self._table = wanted, memory, loader, table
        self._lock = threading.Lock()
        self._left = False
        self.refusal: Refusal | None = None
        self.thread = threading.Thread(target=self._run, name="eplb-loader", daemon=True)

    def leave(self) -> None:
        with self._lock:
            self._left = True

    def _run(self) -> None:
        for layer, slot, expert in self._wanted:
            try:
                refusal = self._load(layer, slot, expert)
            except Exception as error:  # noqa: BLE001 - whatever the engine's loader does, all ranks must hear of it
                refusal = Refusal(
                    Code.EXPERT_LOST, f"layer {layer} expert {expert}: {type(error).__name__}: {error!s:.140}"
                )
            if refusal is not None or self._left:
                self.refusal = refusal
                return

    def _load(self, layer: int, slot: int, expert: int) -> Refusal | None:
        if self._loader is None:
            sentence = f"layer {layer} expert {expert}: no living copy, and no loader is configured"
            return Refusal(Code.EXPERT_LOST, sentence)
        tensors = self._loader.load(layer, expert)
        live = self._memory.tensors(layer, slot)
        with self._lock:
            if self._left:
                return None
            for name in self._memory.names():
                np.copyto(live[name], tensors[name], casting="no")
        if self._table is None:
            return None
        wrong = self._table.check(self._memory, layer, expert, live)
        return (
            None
            if wrong is None
            else Refusal(Code.EXPERT_LOST, f"{wrong.sentence}; loaded from a checkpoint")
        )


def load_everywhere(
    group: Group,
    members: Sequence[int],
    wanted: Sequence[Wanted],
    memory: ExpertMemory,
    loader: ExpertLoader | None,
    *,
    table: DigestTable | None,
    timeout_s: float = LOAD_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> Refusals:
    """Load this rank's share of the experts and wait for all ranks; every rank calls it. Empty = everything stands in its slot.

    ``wanted`` this rank's loads; each is compared with ``table`` (None = there is none yet). Each rank gives up on all when it
    needs more than ``timeout_s`` seconds; what its loader then still brings is thrown away.
    """
    loading, begun_s = _Loading(wanted, memory, loader, table), clock()
    loading.thread.start()
    try:
        overdue = _await_all(group, loading, begun_s + timeout_s, clock)
    finally:
        # Also when a rank died meanwhile: the next life proves its slots, so nothing of this one may come into them later.
        loading.leave()
    refusal = loading.refusal
    if overdue:
        refusal = Refusal(
            Code.EXPERT_LOST,
            f"{len(wanted)} experts were not loaded within {timeout_s:g} s; see the checkpoint's storage",
        )
    return decode_refusals(group.gather(encode_refusal(refusal)), members)


def _await_all(group: Group, loading: _Loading, limit_s: float, clock: Callable[[], float]) -> bool:
    """Wait until all ranks have loaded or one needs too long; whether this one does."""
    while True:
        loading.thread.join(POLL_S)
        running = loading.thread.is_alive()
        overdue = running and clock() > limit_s
        told = group.gather(np.array([running, overdue], dtype=np.int64))
        if told[:, 1].any() or not told[:, 0].any():
            return overdue
