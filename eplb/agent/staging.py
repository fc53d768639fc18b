"""Memory beside the live storage where a wave's arrivals wait until the group has voted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.refusal import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.agent.rounds import Copy
    from eplb.agent.side import RankSide


class Staging:
    """Buffers for the arrivals of one wave on one rank, and nothing else.

    Raises:
        MemoryError: the arrivals need more than the rank allows, or the system has no memory for them.
    """

    def __init__(self, side: RankSide, copies: Sequence[Copy]) -> None:
        self._side = side
        memory, limit_bytes = side.memory, side.staging_bytes_max
        self.arrivals = tuple(copy for copy in copies if side.owns(copy.destination))
        sizes = [
            {name: memory.tensors(copy.layer, copy.destination)[name].nbytes for name in memory.names()}
            for copy in self.arrivals
        ]
        self.bytes = sum(sum(size.values()) for size in sizes)
        if limit_bytes is not None and self.bytes > limit_bytes:
            raise MemoryError(
                f"the wave's arrivals need {self.bytes} bytes of staging, this rank allows {limit_bytes}"
            )
        self._buffers: dict[int, dict[str, NDArray[np.uint8]]] = {
            copy.index: {name: np.zeros(nbytes, dtype=np.uint8) for name, nbytes in size.items()}
            for copy, size in zip(self.arrivals, sizes, strict=True)
        }

    def tensors(self, copy: Copy) -> dict[str, NDArray[np.uint8]]:
        """The buffers of one arrival by tensor name, uint8 [bytes]."""
        return self._buffers[copy.index]

    def fill_local(self) -> None:
        """Copy the arrivals whose source is a slot of this same rank."""
        for copy in self.arrivals:
            if self._side.owns(copy.source):
                source = self._side.memory.tensors(copy.layer, copy.source)
                for name, buffer in self.tensors(copy).items():
                    np.copyto(buffer, source[name])

    def check(self) -> Refusal | None:
        """Compare every arrival with the digest table; the first difference, or None."""
        for copy in self.arrivals:
            refusal = self._side.table.check(self._side.memory, copy.layer, copy.expert, self.tensors(copy))
            if refusal is not None:
                return refusal
        return None

    def write(self, copy: Copy) -> None:
        """Copy one arrival into its slot of the live storage."""
        live = self._side.memory.tensors(copy.layer, copy.destination)
        for name, buffer in self.tensors(copy).items():
            np.copyto(live[name], buffer)

    def read_back(self, copy: Copy) -> Refusal | None:
        """Compare what now stands in the slot of the live storage with the digest table."""
        live = self._side.memory.tensors(copy.layer, copy.destination)
        return self._side.table.check(self._side.memory, copy.layer, copy.expert, live)

    def release(self) -> None:
        """Free the buffers."""
        self._buffers = {}
        self.arrivals = ()


def stage(side: RankSide, copies: Sequence[Copy]) -> Staging | Refusal:
    """Allocate staging for a wave, or say why not."""
    try:
        return Staging(side, copies)
    except MemoryError as error:
        return Refusal(Code.NO_MEMORY, str(error) or "no memory for staging")
