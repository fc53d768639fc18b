"""The CPU group on which ranks meet at a gate, and its form for ranks that are threads of one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from eplb.errors import MigrationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Group(Protocol):
    """Collectives of one EP group; every rank makes the same calls in the same order.

    Each call blocks until all ranks made it and raises when one does not within the group's own time limit.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, 0..size-1."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    def broadcast(self, array: NDArray[Any], source: int = 0) -> NDArray[Any]:
        """The array of rank ``source``; shape and dtype are the same on all ranks."""
        ...

    def min(self, value: int) -> int:
        """The smallest of all ranks' values."""
        ...

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays, [size, ...]; shape and dtype are the same on all ranks."""
        ...


class ThreadMeeting:
    """What the ranks of a ``ThreadGroup`` share: a place for each rank's array and a barrier.

    ``timeout_s`` bounds every wait, in seconds.
    """

    def __init__(self, size: int, timeout_s: float = 10.0) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=timeout_s)
        self._places: list[NDArray[Any] | None] = [None] * size

    def swap(self, rank: int, array: NDArray[Any]) -> list[NDArray[Any]]:
        """Leave a copy, wait for all, take copies of all.

        Raises:
            MigrationError: a rank did not come in time, or one left.
        """
        self._places[rank] = array.copy()
        try:
            self._barrier.wait()
            taken = [place.copy() for place in self._places if place is not None]
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise MigrationError(
                f"rank {rank}: another rank did not come to the collective in time"
            ) from error
        return taken

    def abort(self) -> None:
        """Make every present and later wait of this meeting fail."""
        self._barrier.abort()


class ThreadGroup:
    """A ``Group`` whose ranks are threads of one process."""

    def __init__(self, meeting: ThreadMeeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    @classmethod
    def create(cls, size: int, timeout_s: float = 10.0) -> list[Self]:
        """One group object for each of ``size`` ranks."""
        meeting = ThreadMeeting(size, timeout_s)
        return [cls(meeting, rank) for rank in range(size)]

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._meeting.size

    def broadcast(self, array: NDArray[Any], source: int = 0) -> NDArray[Any]:
        """The array of rank ``source``."""
        return self._meeting.swap(self._rank, array)[source]

    def min(self, value: int) -> int:
        """The smallest of all ranks' values."""
        return int(min(int(x[0]) for x in self._meeting.swap(self._rank, np.array([value], dtype=np.int64))))

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays, [size, ...]."""
        return np.stack(self._meeting.swap(self._rank, array))

    def abort(self) -> None:
        """Leave for good: every present and later collective of every rank fails."""
        self._meeting.abort()
