"""Faults on a rank's own ways out: its frames, its parcels and its records, on real bytes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from collectors import Publisher
from eplb.agent.link import StoreLink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from eplb.agent.transport import Parcel, Transport

DROP, REPEAT, REORDER, DAMAGE = "frame_drop", "frame_repeat", "frame_reorder", "frame_damage"
CORRUPT, EXCHANGE_DELAY, GATHER_DELAY, RECORD_DELAY = (
    "tensor_corrupt",
    "exchange_delay_s",
    "gather_delay_s",
    "record_delay_s",
)


@dataclass(slots=True)
class Switchboard:
    """What is to go wrong on this rank, set by its forward thread and read by its background threads."""

    orders: dict[str, float] = field(default_factory=dict)
    _happened: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def order(self, name: str, value: float) -> None:
        """Begin a fault (a number of times, or seconds), or end it with 0."""
        with self._lock:
            self.orders[name] = value

    def value(self, name: str) -> float:
        """Seconds or times that are still ordered."""
        with self._lock:
            return self.orders.get(name, 0.0)

    def take(self, name: str) -> bool:
        """Whether the fault is to happen now; counts it."""
        with self._lock:
            left = self.orders.get(name, 0.0)
            if left < 1:
                return False
            self.orders[name] = left - 1
            self._happened.append(name)
            return True

    def happened(self) -> tuple[str, ...]:
        """What took effect since the last call."""
        with self._lock:
            found, self._happened = tuple(self._happened), []
            return found


class FaultyPublisher(Publisher):
    """A publisher whose frames are dropped, repeated, sent after the next one, or damaged, when that is ordered."""

    def __init__(self, *args: Any, faults: Switchboard, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._faults = faults
        self._held: bytes | None = None

    def _send(self, payload: bytes) -> None:
        if self._faults.take(DROP):
            return
        if self._held is None and self._faults.take(REORDER):
            self._held = payload
            return
        if self._faults.take(DAMAGE):
            payload = flipped(np.frombuffer(payload, dtype=np.uint8)).tobytes()
        super()._send(payload)
        if self._faults.take(REPEAT):
            super()._send(payload)
        held, self._held = self._held, None
        if held is not None:
            super()._send(held)


class FaultyTransport:
    """A transport that can damage a parcel on its way and be slow."""

    def __init__(self, inner: Transport, faults: Switchboard) -> None:
        self._inner, self._faults = inner, faults

    @property
    def rank(self) -> int:
        """The number of this rank in the pool."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return self._inner.size

    @property
    def broken(self) -> bool:
        """True when nothing can pass any more until ``renew``."""
        return self._inner.broken

    def renew(self) -> None:
        """Begin anew on a group of the same ranks."""
        self._inner.renew()

    def exchange(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Do one round, with a parcel damaged or late if that is ordered."""
        time.sleep(self._faults.value(EXCHANGE_DELAY))
        if sends and self._faults.take(CORRUPT):
            peer, tag, data = sends[0]
            sends = [(peer, tag, flipped(data)), *sends[1:]]
        self._inner.exchange(sends, receives)

    def gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """All ranks' arrays; known late if that is ordered."""
        gathered = self._inner.gather(array)
        time.sleep(self._faults.value(GATHER_DELAY))
        return gathered


class LateLink(StoreLink):
    """A link to the store whose records leave late if that is ordered."""

    faults: Switchboard

    def _write(self) -> None:
        time.sleep(self.faults.value(RECORD_DELAY))
        super()._write()


def flipped(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy with the sign of every 97th little-endian float32 turned, so that wrong weights stay finite: uint8 [bytes] -> uint8 [bytes]."""
    changed = data.copy()
    changed[3 :: 4 * 97] ^= 0x80
    return changed
