"""Bring one wave's arrivals into staging in a background thread while the engine serves on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from eplb.agent.refusal import Code, Refusal, Refusals, decode_refusals, encode_refusal
from eplb.agent.rounds import contention_free_rounds, wave_copies
from eplb.errors import OfferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from eplb.agent.rounds import Copy
    from eplb.agent.side import RankSide
    from eplb.agent.staging import Staging
    from eplb.agent.transport import Parcel
    from eplb.agent.wire import LayerChange

_SERIAL_BITS, _INDEX_BITS = 10, 20
"""A tag holds the wave's serial, so that a parcel left over from a failed wave is not taken for one of this."""


class Transfer:
    """One wave on its way; ends with a gather of all ranks' results, so that each knows whether all are prepared.

    ``rows``: int32 [layers, slots], the live map when the group voted to stage the wave; nobody writes to this copy.
    A transfer cannot be stopped on one rank without its peers, so a rank that lets go of it leaves it its staging.
    """

    def __init__(
        self,
        side: RankSide,
        staging: Staging,
        rows: NDArray[np.int32],
        changes: Sequence[LayerChange],
        serial: int,
    ) -> None:
        self._side = side
        self._staging = staging
        self._rows = rows
        self._changes = changes
        self._serial = serial
        self._lock = threading.Lock()
        self._left = False
        self._done = threading.Event()
        self._refusals: Refusals = ()
        self._thread = threading.Thread(target=self._run, name="eplb-transfer", daemon=True)

    def start(self) -> None:
        """Begin in a background thread."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """True once all ranks' results are known here, or this rank gave up."""
        return self._done.is_set()

    @property
    def refusals(self) -> Refusals:
        """Who failed and why; empty = every rank is prepared. Only of use when ``done``."""
        return self._refusals

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds; true when done."""
        return self._done.wait(timeout_s)

    @property
    def staging_bytes(self) -> int:
        """Bytes of staging that it still holds."""
        return self._staging.bytes

    def leave(self) -> None:
        """Nobody wants the result: free the staging as soon as no message can come into it."""
        with self._lock:
            self._left = True
            if self.done:
                self._staging.release()

    def _run(self) -> None:
        mine: Refusal | None = None
        try:
            mine = self._bring()
            self._refusals = decode_refusals(
                self._side.transport.gather(encode_refusal(mine)), self._side.members
            )
        except Exception as error:  # noqa: BLE001 - a thread inside an engine ends with a result, never with a traceback
            own = mine or Refusal.of(Code.TRANSFER_FAILED, error)
            self._refusals = ((self._side.rank, str(own.code), own.sentence),)
        finally:
            with self._lock:
                if self._left:
                    self._staging.release()
                self._done.set()

    def _bring(self) -> Refusal | None:
        try:
            # Every rank finds the same sources, or the same lack of one, so no peer waits for a message.
            copies = wave_copies(self._side.facts, self._rows, self._changes, self._side.members)
            self._staging.fill_local(copies)
            for part in contention_free_rounds(self._side.facts, copies):
                self._exchange(part)
            return self._staging.check()
        except OfferError as error:
            return Refusal(Code.NO_SOURCE, f"{error!s:.200}")
        except Exception as error:  # noqa: BLE001 - the peers wait in the gather for this rank's result
            return Refusal.of(Code.TRANSFER_FAILED, error)

    def _exchange(self, part: tuple[Copy, ...]) -> None:
        rank, width = self._side.rank, self._side.facts.slots_per_rank
        names = self._side.memory.names()
        sends: list[Parcel] = []
        receives: list[Parcel] = []
        for copy in part:
            source, destination = copy.source // width, copy.destination // width
            if source == rank:
                live = self._side.memory.tensors(copy.layer, copy.source)
                sends += [(destination, self._tag(copy, i), live[name]) for i, name in enumerate(names)]
            elif destination == rank:
                buffers = self._staging.tensors(copy)
                receives += [(source, self._tag(copy, i), buffers[name]) for i, name in enumerate(names)]
        if sends or receives:
            self._side.transport.exchange(sends, receives)

    def _tag(self, copy: Copy, part: int) -> int:
        index = copy.index * len(self._side.memory.names()) + part
        return (self._serial % (1 << _SERIAL_BITS) << _INDEX_BITS) | index % (1 << _INDEX_BITS)
