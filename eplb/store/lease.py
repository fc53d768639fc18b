"""Leadership: one lease a pool, one term an acquisition, and a holder that steps down by its own clock in time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collectors.keys import desired_key, lease_key
from eplb.errors import ConfigError
from eplb.store.client import store_errors
from eplb.store.scripts import LEASE_ACQUIRE, LEASE_RELEASE, LEASE_RENEW

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.store.client import Store


class Lease:
    """Hold the lease of a pool under a growing term.

    ``owner`` must be unique to this process. ``ttl_s`` is the lease's life in the store; the holder counts from *before*
    its request was sent, by ``clock`` (monotonic seconds), and steps down ``margin_s`` before the store would let go
    (default ttl / 4). Renew about every ttl / 3.

    Raises:
        ConfigError: the margin leaves nothing of the lease, or the owner is empty.
    """

    def __init__(
        self,
        store: Store,
        ttl_s: float,
        owner: str,
        *,
        margin_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._margin_s = ttl_s / 4 if margin_s is None else margin_s
        if not 0 < self._margin_s < ttl_s:
            raise ConfigError(f"lease: margin {self._margin_s} s must be between 0 and the lease's {ttl_s} s")
        if not owner:
            raise ConfigError("lease: owner is empty; give each process a name of its own")
        self._store, self._ttl_s, self._owner, self._clock = store, ttl_s, owner, clock
        self._term = 0
        self._good_until_s = 0.0
        self._acquire = store.redis.register_script(LEASE_ACQUIRE)
        self._renew = store.redis.register_script(LEASE_RENEW)
        self._release = store.redis.register_script(LEASE_RELEASE)

    @property
    def term(self) -> int | None:
        """The term we lead under now, None when we do not lead."""
        return self._term if self._term and self._clock() < self._good_until_s else None

    def acquire(self, floor: int = 0) -> int | None:
        """Try to become the leader: the new term, which is 1 + max(store, ``floor``), or None while another holds it.

        Raises the fence of the store in the same step, so that an older leader cannot write any more.
        ``floor`` is the highest term known from elsewhere (last-good-map file, ranks' frames).
        """
        asked_s = self._clock()
        keys = [lease_key(self._store.pool), desired_key(self._store.pool)]
        with store_errors(self._store.url):
            term = int(self._acquire(keys=keys, args=[self._owner, self._ttl_ms, floor]))
        self._hold(term, asked_s)
        return self.term

    def renew(self) -> bool:
        """Prolong the lease; False when it is lost, and then we do not lead any more.

        A lease whose time ran out by our clock is not prolonged, even if the store still has it: acquire anew.
        """
        term, asked_s = self.term, self._clock()
        if term is None:
            self._hold(0, asked_s)
            return False
        with store_errors(self._store.url):
            kept = int(
                self._renew(keys=[lease_key(self._store.pool)], args=[self._value(term), self._ttl_ms])
            )
        self._hold(term if kept else 0, asked_s)
        return bool(kept)

    def step_down(self) -> None:
        """Stop leading at once without asking the store, after it refused a write."""
        self._term = 0

    def release(self) -> None:
        """Give the lease back, if it is still ours, so that another can lead at once."""
        term, self._term = self._term, 0
        if term:
            with store_errors(self._store.url):
                self._release(keys=[lease_key(self._store.pool)], args=[self._value(term)])

    @property
    def _ttl_ms(self) -> int:
        return int(self._ttl_s * 1000)

    def _value(self, term: int) -> str:
        return f"{term}:{self._owner}"

    def _hold(self, term: int, asked_s: float) -> None:
        self._term = term
        self._good_until_s = asked_s + self._ttl_s - self._margin_s
