"""The way weights travel, on a group of its own, and its form for ranks that are threads of one process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from eplb.agent.group import ThreadMeeting
from eplb.errors import MigrationError, TransferError

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

    @property
    def broken(self) -> bool:
        """True when nothing can pass any more until ``renew``."""
        ...

    def renew(self) -> None:
        """Begin anew on a group of the same ranks; every rank calls it at a gate, while no transfer runs anywhere."""
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


class _Wires:
    """What the threads of a group share, made by whichever comes first to a turn."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size, self._timeout_s = size, timeout_s
        self._lock = threading.Lock()
        self._turns: dict[int, tuple[ThreadMeeting, _Mailbox]] = {}

    def of_turn(self, turn: int) -> tuple[ThreadMeeting, _Mailbox]:
        with self._lock:
            if turn not in self._turns:
                meeting = ThreadMeeting(self.size, 3 * self._timeout_s)
                self._turns = {turn: (meeting, _Mailbox(self._timeout_s))}
            return self._turns[turn]


class ThreadTransport:
    """A ``Transport`` whose ranks are threads of one process."""

    def __init__(self, wires: _Wires, place: int, rank: int) -> None:
        self._wires, self._place, self._rank = wires, place, rank
        self._turn = -1
        self.renew()

    @classmethod
    def create(cls, size: int, timeout_s: float = 10.0, members: Sequence[int] | None = None) -> list[Self]:
        """One transport for each of ``size`` ranks; ``timeout_s`` bounds the wait for a parcel, three times it a gather.

        The longer limit lets ranks whose round failed still tell the others. ``members`` pool ranks by place, None = 0..size-1.
        """
        wires = _Wires(size, timeout_s)
        return [cls(wires, place, rank) for place, rank in enumerate(members or range(size))]

    @property
    def rank(self) -> int:
        """The number of this rank in the pool."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._wires.size

    @property
    def broken(self) -> bool:
        """True once a gather failed: a rank that missed one would take the next for it."""
        return self._broken

    def renew(self) -> None:
        """Begin anew: what lies in the mailbox is forgotten."""
        self._turn += 1
        self._broken = False
        self._meeting, self._mailbox = self._wires.of_turn(self._turn)

    def abort(self) -> None:
        """Leave for good: every present and later gather of every rank fails until ``renew``."""
        self._meeting.abort()

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
        try:
            return np.stack(self._meeting.swap(self._place, array))
        except MigrationError:
            self._broken = True
            raise
