"""Memory beside the live storage where a wave's arrivals wait until the group has voted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.refusal import Code, Refusal
from eplb.protocol import Event, RankState, decide_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.agent.rounds import Arrival, Copy
    from eplb.agent.side import RankSide


class Staging:
    """Buffers for the arrivals of one wave on one rank, and nothing else; ``bytes`` is their size now.

    Raises:
        MemoryError: the arrivals need more than the rank allows, or the system has no memory for them.
    """

    def __init__(self, side: RankSide, arrivals: Sequence[Arrival]) -> None:
        self._side = side
        memory, limit_bytes = side.memory, side.staging_bytes_max
        self.arrivals = tuple(arrivals)
        sizes = [
            {name: memory.tensors(x.layer, x.destination)[name].nbytes for name in memory.names()}
            for x in self.arrivals
        ]
        self.bytes = sum(sum(size.values()) for size in sizes)
        if limit_bytes is not None and self.bytes > limit_bytes:
            raise MemoryError(
                f"the wave's arrivals need {self.bytes} bytes of staging, this rank allows {limit_bytes}"
            )
        self._buffers: dict[int, dict[str, NDArray[np.uint8]]] = {
            arrival.index: {name: np.zeros(nbytes, dtype=np.uint8) for name, nbytes in size.items()}
            for arrival, size in zip(self.arrivals, sizes, strict=True)
        }

    def tensors(self, arrival: Arrival | Copy) -> dict[str, NDArray[np.uint8]]:
        """The buffers of one arrival by tensor name, uint8 [bytes]."""
        return self._buffers[arrival.index]

    def fill_local(self, copies: Sequence[Copy]) -> None:
        """Of a wave's copies, do those from this rank's slots to this rank's slots."""
        for copy in copies:
            if self._side.owns(copy.source) and self._side.owns(copy.destination):
                source = self._side.memory.tensors(copy.layer, copy.source)
                for name, buffer in self.tensors(copy).items():
                    np.copyto(buffer, source[name])

    def check(self) -> Refusal | None:
        """Compare every arrival with the digest table; the first difference, or None."""
        for arrival in self.arrivals:
            found = self._side.compare(arrival.layer, arrival.expert, self.tensors(arrival))
            judged = decide_rank(RankState.STAGING, Event.ARRIVED, known=found, guards=self._side.guards)
            if judged.refusal is not None:
                return judged.refusal
        return None

    def write(self, arrival: Arrival) -> None:
        """Copy one arrival into its slot of the live storage."""
        live = self._side.memory.tensors(arrival.layer, arrival.destination)
        for name, buffer in self.tensors(arrival).items():
            np.copyto(live[name], buffer)

    def read_back(self, arrival: Arrival) -> Refusal | None:
        """Compare what now stands in the slot of the live storage with the digest table."""
        live = self._side.memory.tensors(arrival.layer, arrival.destination)
        found = self._side.compare(arrival.layer, arrival.expert, live)
        return decide_rank(RankState.SWITCHED, Event.WRITTEN, known=found, guards=self._side.guards).refusal

    def release(self) -> None:
        """Free the buffers; not while a transfer works with them."""
        self._buffers, self.arrivals, self.bytes = {}, (), 0


def stage(side: RankSide, arrivals: Sequence[Arrival]) -> Staging | Refusal:
    """Allocate staging for a wave's arrivals on this rank, or say why not."""
    try:
        return Staging(side, arrivals)
    except MemoryError as error:
        return Refusal(Code.NO_MEMORY, str(error) or "no memory for staging")
