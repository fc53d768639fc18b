"""The way weights travel, on a group of its own, and its form for ranks that are threads of one process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from eplb.agent.group import ThreadGroup, ThreadMeeting
from eplb.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence

Parcel = tuple[int, int, NDArray[np.uint8]]
"""(peer rank, tag, bytes): to send, or to receive into. Ranks are the pool's, whatever their places in the group."""


class Transport(Protocol):
    """Point-to-point exchange of raw bytes; used from one background thread of each rank only.

    Tags are below 2^30. Each call blocks within the transport's own time limit and raises when a peer does not answer.
    """

    @property
    def rank(self) -> int:
        """The number of this rank in the pool."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Do one round; the received bytes are in place when it returns. Arrays are uint8 [bytes], contiguous."""
        ...

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays by place in the group, [size, ...]; shape and dtype are the same on all ranks."""
        ...


class _Mailbox:
    """Parcels on their way between threads, by (source, destination, tag)."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._parcels: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
        self._changed = threading.Condition()

    def put(self, key: tuple[int, int, int], data: NDArray[np.uint8]) -> None:
        with self._changed:
            self._parcels[key] = data.copy()
            self._changed.notify_all()

    def take(self, key: tuple[int, int, int]) -> NDArray[np.uint8]:
        limit_s = time.monotonic() + self._timeout_s
        with self._changed:
            while key not in self._parcels:
                if not self._changed.wait(limit_s - time.monotonic()) and time.monotonic() >= limit_s:
                    source, destination, tag = key
                    raise TransferError(
                        f"rank {destination}: nothing came from rank {source} for tag {tag} in time"
                    )
            return self._parcels.pop(key)


class ThreadTransport:
    """A ``Transport`` whose ranks are threads of one process."""

    def __init__(self, group: ThreadGroup, mailbox: _Mailbox, rank: int) -> None:
        self._group, self._rank = group, rank
        self._mailbox = mailbox

    @classmethod
    def create(cls, size: int, timeout_s: float = 10.0, members: Sequence[int] | None = None) -> list[Self]:
        """One transport for each of ``size`` ranks; ``timeout_s`` bounds the wait for a parcel, three times it a gather.

        The longer limit lets ranks whose round failed still tell the others. ``members`` pool ranks by place, None = 0..size-1.
        """
        meeting, mailbox = ThreadMeeting(size, 3 * timeout_s), _Mailbox(timeout_s)
        named = enumerate(range(size) if members is None else members)
        return [cls(ThreadGroup(meeting, place), mailbox, rank) for place, rank in named]

    @property
    def rank(self) -> int:
        """The number of this rank in the pool."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._group.size

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Do one round.

        Raises:
            TransferError: a peer sent nothing in time, or bytes of another length.
        """
        for peer, tag, data in sends:
            self._mailbox.put((self.rank, peer, tag), data)
        for peer, tag, out in receives:
            data = self._mailbox.take((peer, self.rank, tag))
            if data.size != out.size:
                raise TransferError(
                    f"rank {self.rank}: {data.size} bytes from rank {peer}, expected {out.size}"
                )
            np.copyto(out, data)

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays, [size, ...]."""
        return self._group.gather(array)
