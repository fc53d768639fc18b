"""The agent's link to the store: a local cache of what is desired, and a mailbox for what is live.

The forward thread only reads the cache and leaves records in the mailbox; a background thread talks to the store. A
store that is away changes nothing: the cache keeps its last content and says how old it is.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from collectors.access import StoreAccess, client_options, tls_advice
from collectors.errors import AccessError
from collectors.keys import desired_key, live_key
from collectors.urls import masked_url
from eplb.agent.header import MAX_OFFER_BYTES, MAX_TERM
from eplb.agent.signing import RING
from eplb.agent.wire import LiveRecord, encode_live
from eplb.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.25
HEARTBEAT_S = 5.0
TIMEOUT_S = 1.0
BACKOFF_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the store asked for when it was last read.

    ``offer`` the raw bytes or None; ``term`` the newest leadership term; ``first_seen_s`` when these bytes were first
    read and ``read_s`` when the store last answered, both by the monotonic clock.
    """

    offer: bytes | None
    term: int
    first_seen_s: float
    read_s: float


class Link(Protocol):
    """What the agent needs of the store; neither call blocks or raises."""

    def wanted(self) -> Wanted | None:
        """The cached desired state; None before the first answer, and on ranks that are not their group's first."""
        ...

    def serve(self, *, first: bool) -> None:
        """A life of the group begins; its first member reads what is desired."""
        ...

    def publish(self, record: LiveRecord, *, changed: bool) -> None:
        """Leave a record for the store; ``changed`` asks for it to be written at once."""
        ...


class LocalLink:
    """A link inside one process, for engines and daemons that share it, and for many-rank tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self.records: dict[int, LiveRecord] = {}

    def offer(self, raw: bytes | None, term: int) -> None:
        """Ask for an offer (None = nothing) under a term."""
        with self._lock:
            self._wanted = Wanted(raw, term, self._clock(), self._clock())

    def serve(self, *, first: bool) -> None:
        """Nothing to do: every rank may read what is asked for."""

    def wanted(self) -> Wanted | None:
        """What was last asked for; it is never old."""
        with self._lock:
            known = self._wanted
        return None if known is None else Wanted(known.offer, known.term, known.first_seen_s, self._clock())

    def publish(self, record: LiveRecord, *, changed: bool) -> None:  # noqa: ARG002 - nothing to hurry here
        """Keep the newest record of each rank."""
        with self._lock:
            self.records[record.rank] = record


class StoreLink:
    """A link through Redis or Valkey, in a background thread of its own.

    The group's first member, rank 0 until an agent says otherwise, polls ``desired`` (fields ``offer`` and ``term``) every ``poll_s`` seconds; every rank writes its record to
    ``live`` when it changed and every ``heartbeat_s`` seconds. Errors are counted in ``stats`` and answered by a pause
    that doubles up to 5 s. A term outside 0..2^53 is counted and the last sound one kept.

    ``access`` password and TLS files, None = what the environment says (:data:`collectors.access.ENVIRONMENT`). A changed map key
    file is taken over while it runs (:mod:`eplb.agent.signing`).

    Raises:
        ConfigError: ``url`` is not a Redis URL, its access settings contradict it, or the map key file cannot be used.
    """

    def __init__(
        self,
        url: str,
        pool: str,
        rank: int,
        *,
        poll_s: float = POLL_S,
        heartbeat_s: float = HEARTBEAT_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        access: StoreAccess | None = None,
    ) -> None:
        # A key file that cannot be used must be said here and not in the middle of a gate.
        RING.load()
        self._pool, self._rank, self._first = pool, rank, rank == 0
        self._poll_s, self._heartbeat_s, self._clock = poll_s, heartbeat_s, clock
        self._client = _connect(url, timeout_s, StoreAccess.from_environment() if access is None else access)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._wanted: Wanted | None = None
        self._record: LiveRecord | None = None
        self._dirty = False
        self._written_s = float("-inf")
        self._thread: threading.Thread | None = None
        self.stats: dict[str, int] = {
            "polls": 0,
            "records": 0,
            "errors": 0,
            "oversize": 0,
            "bad_term": 0,
            "bad_keys": 0,
        }
        self.last_error = ""

    def start(self) -> None:
        """Begin to poll and to write."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="eplb-link", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Write the last record once more if the store answers, then end; waits at most ``timeout_s`` seconds."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def serve(self, *, first: bool) -> None:
        """Poll what is desired from now on, or no longer."""
        with self._lock:
            self._first = first
            if not first:
                self._wanted = None
        self._wake.set()

    def wanted(self) -> Wanted | None:
        """The cached desired state."""
        with self._lock:
            return self._wanted

    def publish(self, record: LiveRecord, *, changed: bool) -> None:
        """Leave a record; only the newest is kept."""
        with self._lock:
            self._record = record
            self._dirty = self._dirty or changed
        if changed:
            self._wake.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            self._refresh_keys()
            try:
                self._poll()
                self._write()
                failures = 0
            except Exception as error:  # noqa: BLE001 - the store's troubles stay in this thread
                self.stats["errors"] += 1
                self.last_error = tls_advice(error) or f"{type(error).__name__}: {error!s:.200}"
                self._rest(min(BACKOFF_MAX_S, self._poll_s * 2 ** min(failures, 16)))
                failures += 1
                continue
            self._wake.wait(self._poll_s if self._first else self._heartbeat_s)
        self._finish()

    def _refresh_keys(self) -> None:
        try:
            RING.refresh()
        except ConfigError as error:
            # A file that is bad for a moment must not stop the polls: the keys stay as they were.
            self.stats["bad_keys"] += 1
            self.last_error = str(error)

    def _rest(self, pause_s: float) -> None:
        # A record that waits must not cut the pause short, or a dead store would be asked at the rate of the forwards.
        limit_s = time.monotonic() + pause_s
        while not self._stopping and time.monotonic() < limit_s:
            time.sleep(min(0.1, pause_s))

    def _finish(self) -> None:
        try:
            self._dirty = True
            self._write()
            self._client.close()
        except Exception as error:  # noqa: BLE001
            self.stats["errors"] += 1
            self.last_error = f"{type(error).__name__}: {error!s:.200}"

    def _poll(self) -> None:
        with self._lock:
            first = self._first
        if not first:
            return
        offer, term = self._read_desired()
        now_s = self._clock()
        newest = _number(term)
        with self._lock:
            if not self._first:
                return
            if not 0 <= newest <= MAX_TERM:
                self.stats["bad_term"] += 1
                newest = 0 if self._wanted is None else self._wanted.term
            same = self._wanted is not None and self._wanted.offer == offer
            first_seen_s = self._wanted.first_seen_s if same and self._wanted is not None else now_s
            self._wanted = Wanted(offer, newest, first_seen_s, now_s)
        self.stats["polls"] += 1

    def _read_desired(self) -> tuple[bytes | None, bytes | None]:
        """Offer and term; an offer larger than what may be broadcast is not even fetched."""
        key = desired_key(self._pool)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hstrlen(key, "offer")
            pipe.hget(key, "term")
            size, term = pipe.execute()
        if size > MAX_OFFER_BYTES:
            self.stats["oversize"] += 1
        raw = self._client.hget(key, "offer") if 0 < size <= MAX_OFFER_BYTES else None
        return raw if isinstance(raw, bytes) and 0 < len(raw) <= MAX_OFFER_BYTES else None, term

    def _write(self) -> None:
        with self._lock:
            record, due = self._record, self._dirty or self._clock() - self._written_s >= self._heartbeat_s
            self._dirty = False
        if record is None or not due:
            return
        try:
            self._client.hset(live_key(self._pool), str(self._rank), encode_live(record))
        except BaseException:
            with self._lock:
                self._dirty = True
            raise
        self._written_s = self._clock()
        self.stats["records"] += 1


def _number(term: bytes | None) -> int:
    """The term, or one that is out of range where the store has no number."""
    try:
        return int(term or 0)
    except ValueError:
        return -1


def _connect(url: str, timeout_s: float, access: StoreAccess) -> redis.Redis:
    try:
        bare, reach = client_options(url, access)
        return redis.Redis.from_url(
            bare,
            **reach,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except AccessError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(
            f"store URL {masked_url(url)!r}: {error}; use redis://host:port/0, rediss:// or unix:///path.sock"
        ) from error
