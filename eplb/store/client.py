"""The daemon's view of one pool's keys in Redis or Valkey."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from collectors.access import StoreAccess, client_options, tls_advice
from collectors.errors import AccessError
from collectors.keys import FRAME_FIELD, control_key, desired_key, lease_key, live_key, load_key, log_key
from collectors.urls import masked_url
from eplb.agent.wire import MAX_SEALED_BYTES
from eplb.errors import ConfigError, StoreError, StoreFenced, StoreUnavailable, StoreUntrusted
from eplb.store.advice import refusal_advice
from eplb.store.health import HealthWatch
from eplb.store.scripts import FENCED_WRITE, READ_HASH

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from eplb.store.health import StoreHealth

_URL_SCHEMES = ("redis://", "rediss://", "unix://")
_ANY_TERM = -1
MOST_FIELDS = 1 << 16
"""Fields of a hash that are read: one a rank, and room."""
MOST_VALUE_BYTES = MAX_SEALED_BYTES
"""Bytes of one value that are read; a larger one is read as empty."""
LOG_KEPT = 10_000
"""Records of the decision log that stay."""
MOST_OWNER_BYTES = 256
"""Bytes of a leader's name that are shown."""
_BLOCK_SHARE = 0.5


class Store:
    """Read a pool's frames and live records, write its desired map, control switches and decision log.

    One instance a pool and thread. A call fails with a named error after ``socket_timeout_s``, a refused connection after
    ``retries`` retries within half a second. ``window_s`` is how far back the first read of a stream goes, by the
    store's clock. ``access`` password and TLS files. ``key_losses`` counts streams that vanished or whose ids fell back (emptied store, clock stepped back).

    Raises:
        ConfigError: the URL is malformed.
    """

    def __init__(
        self,
        url: str,
        pool: str,
        *,
        window_s: float = 60.0,
        socket_timeout_s: float = 2.0,
        retries: int = 3,
        access: StoreAccess | None = None,
    ) -> None:
        self.url, self.pool = url, pool
        self.key_losses = 0
        self._window_ms = int(window_s * 1000)
        self._socket_timeout_s = socket_timeout_s
        self._cursors: dict[int, bytes] = {}
        self._read: set[int] = set()
        self.redis = connect(url, socket_timeout_s=socket_timeout_s, retries=retries, access=access)
        self._watch = HealthWatch(self.redis)
        self._fenced_write = self.redis.register_script(FENCED_WRITE)
        self._read_hash = self.redis.register_script(READ_HASH)

    def close(self) -> None:
        """Close the connections."""
        self.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- time and health ------------------------------------------------------------------------------------------

    def time_ms(self) -> int:
        """The store's clock, milliseconds since 1970; the only clock that ages are computed from."""
        with store_errors(self.url):
            seconds, micros = self.redis.time()
        return seconds * 1000 + micros // 1000

    def health(self) -> StoreHealth:
        """The store's memory, at most a minute old; unknown where this user may not ask."""
        with store_errors(self.url):
            return self._watch.read()

    # --- desired, control, live -----------------------------------------------------------------------------------

    def write_desired(self, term: int, fields: Mapping[str, bytes]) -> None:
        """Set fields of the desired map under ``term``.

        Raises:
            StoreFenced: a newer term exists, or another one leads; nothing was written.
        """
        self._write(desired_key(self.pool), self._under(term), fields)

    def write_control(self, fields: Mapping[str, bytes], term: int | None = None) -> None:
        """Set operator switches; ``term`` None = an operator's own hand, which holds under any leader.

        Raises:
            StoreFenced: a newer term exists, or another one leads; nothing was written.
        """
        self._write(control_key(self.pool), _ANY_TERM if term is None else self._under(term), fields)

    def read_desired(self) -> dict[str, bytes]:
        """All fields of the desired map; ``term`` among them is the newest term."""
        return _by_name(self._hash(desired_key(self.pool)))

    def read_control(self) -> dict[str, bytes]:
        """All operator switches."""
        return _by_name(self._hash(control_key(self.pool)))

    def read_live(self) -> dict[int, bytes]:
        """Live records by rank, as the ranks wrote them; fields that are not a rank are left out."""
        return {int(name): value for name, value in self._hash(live_key(self.pool)).items() if name.isdigit()}

    def _hash(self, key: str) -> dict[bytes, bytes]:
        with store_errors(self.url):
            found: Any = self._read_hash(
                keys=[desired_key(self.pool)], args=[key, MOST_FIELDS, MOST_VALUE_BYTES]
            )
        if isinstance(found, int):
            raise StoreError(
                f"{key}: has {found} fields, at most {MOST_FIELDS} are read; something else writes there: give it a user of "
                "its own (configs/redis/users.acl)"
            )
        pairs, large = found
        # An empty value is nothing under desired, and a damaged record under live: it is named without being fetched.
        return {**dict(zip(pairs[::2], pairs[1::2], strict=True)), **dict.fromkeys(large, b"")}

    def _under(self, term: int) -> int:
        if term < 0:
            raise StoreError(
                f"pool {self.pool!r}: term {term} is nobody's; acquire the lease, which gives one"
            )
        return term

    def _write(self, key: str, term: int, fields: Mapping[str, bytes]) -> None:
        if "term" in fields:
            raise StoreError(
                f"{key}: the field 'term' is the fence and is set from the argument; leave it out"
            )
        arguments: list[Any] = [term]
        for pair in fields.items():
            arguments.extend(pair)
        with store_errors(self.url):
            keys = [desired_key(self.pool), key, lease_key(self.pool)]
            found = int(self._fenced_write(keys=keys, args=arguments))
        if found >= 0:
            raise StoreFenced(
                f"{key}: term {found} leads, this process writes under {term}; it must stop leading"
            )

    def leader(self) -> str:
        """Who holds the lease, ``host:pid:mark``; "" = nobody does."""
        with store_errors(self.url):
            held: Any = self.redis.get(lease_key(self.pool))
        return bytes(held or b"").partition(b":")[2][:MOST_OWNER_BYTES].decode(errors="replace")

    # --- log ------------------------------------------------------------------------------------------------------

    def append_log(self, record_json: bytes, *, keep: int = LOG_KEPT) -> None:
        """Append one record to the decision log, which keeps about the last ``keep`` records."""
        with store_errors(self.url):
            self.redis.xadd(log_key(self.pool), {b"r": record_json}, maxlen=keep, approximate=True)

    def read_log(self, count: int) -> list[bytes]:
        """The last ``count`` records, oldest first."""
        with store_errors(self.url):
            entries = cast("list[Any]", self.redis.xrevrange(log_key(self.pool), count=count))
        return [fields[b"r"] for _, fields in reversed(entries) if b"r" in fields]

    # --- load -----------------------------------------------------------------------------------------------------

    def tail_load(
        self, nodes: Iterable[int], *, block_ms: int | None = None, limit: int = 512
    ) -> list[tuple[int, int, bytes | None]]:
        """New entries of the nodes' streams since the last call: (store time in ms, node, frame or None).

        None is an entry without a frame. At most ``limit`` entries a stream and call; call again while lists are long.
        ``block_ms`` waits for a first entry, at most half the socket timeout. The first read of a stream begins one
        window before the store's time.
        """
        streams = self._with_cursors(nodes)
        if not streams:
            return []
        block = (
            None
            if block_ms is None
            else max(1, min(block_ms, int(self._socket_timeout_s * 1000 * _BLOCK_SHARE)))
        )
        with store_errors(self.url):
            keys: Any = {load_key(self.pool, node): self._cursors[node] for node in streams}
            reply = cast("list[Any]", self.redis.xread(keys, count=limit, block=block))
        by_key = {load_key(self.pool, node).encode(): node for node in streams}
        found: list[tuple[int, int, bytes | None]] = []
        quiet = set(streams)
        for key, entries in reply:
            node = by_key[key]
            if entries:
                quiet.discard(node)
                self._read.add(node)
                self._cursors[node] = entries[-1][0]
            found.extend(
                (_milliseconds(entry), node, (fields or {}).get(FRAME_FIELD)) for entry, fields in entries
            )
        self._check_quiet(sorted(quiet))
        found.sort(key=lambda item: item[0])
        return found

    def backlog_ms(self, nodes: Iterable[int]) -> int:
        """Time between the last entry read and the last entry written, ms, the worst stream; 0 = nothing is left to read."""
        streams = self._with_cursors(nodes)
        newest = self._newest(streams)
        behind = [
            _milliseconds(newest[node]) - _milliseconds(self._cursors[node])
            for node in streams
            if node in newest and _place(newest[node]) > _place(self._cursors[node])
        ]
        return max(behind, default=0)

    def _with_cursors(self, nodes: Iterable[int]) -> list[int]:
        streams = list(nodes)
        new = [node for node in streams if node not in self._cursors]
        if new:
            start = f"{max(0, self.time_ms() - self._window_ms)}-0".encode()
            self._cursors.update(dict.fromkeys(new, start))
        return streams

    def _check_quiet(self, nodes: Sequence[int]) -> None:
        """A stream we have read that is gone, or ends before our cursor, was lost: read it anew from its beginning."""
        read_before = [node for node in nodes if node in self._read]
        newest = self._newest(read_before)
        for node in read_before:
            if node not in newest or _place(newest[node]) < _place(self._cursors[node]):
                self.key_losses += 1
                self._cursors[node] = b"0-0"
                self._read.discard(node)

    def _newest(self, nodes: Sequence[int]) -> dict[int, bytes]:
        if not nodes:
            return {}
        with store_errors(self.url), self.redis.pipeline(transaction=False) as pipe:
            for node in nodes:
                pipe.xrevrange(load_key(self.pool, node), count=1)
            replies = pipe.execute()
        return {node: reply[0][0] for node, reply in zip(nodes, replies, strict=True) if reply}


def connect(
    url: str, *, socket_timeout_s: float = 2.0, retries: int = 3, access: StoreAccess | None = None
) -> redis.Redis:
    """A client with bounded waits: the library's own default needs 4.45 s to give up on a refused port.

    Raises:
        ConfigError: the URL is malformed, or ``access`` contradicts it or names a file that cannot be read.
    """
    shown = masked_url(url)
    if not url.startswith(_URL_SCHEMES):
        raise ConfigError(
            f"store URL {shown!r}: must begin with {', '.join(_URL_SCHEMES)}; for example redis://localhost:6379/0 or unix:///run/redis.sock"
        )
    database = urlsplit(url).path.strip("/")
    if database and not database.isdigit() and not url.startswith("unix://"):
        raise ConfigError(
            f"store URL {shown!r}: database {database!r} is not a number; for example redis://localhost:6379/0"
        )
    try:
        bare, reach = client_options(url, access or StoreAccess())
        return redis.Redis.from_url(
            bare,
            **reach,
            protocol=2,
            socket_timeout=socket_timeout_s,
            socket_connect_timeout=socket_timeout_s,
            # A refused connection may be a restart; a time-out is not asked again, so that a wait is one time-out long.
            retry=Retry(
                ExponentialBackoff(cap=0.2, base=0.02), retries, supported_errors=(RedisConnectionError,)
            ),
        )
    except AccessError as error:
        raise ConfigError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"store URL {shown!r}: {error}; write it like redis://user:password@host:6379/0"
        ) from error


@contextmanager
def store_errors(url: str) -> Generator[None]:
    """Turn the library's errors into ours, each with what to do."""
    try:
        yield
    except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
        raise StoreError(
            f"store {masked_url(url)} refuses this user: {error}; check user and password, and configs/redis/users.acl"
        ) from error
    except (RedisConnectionError, RedisTimeoutError, BusyLoadingError, OSError) as error:
        if (advice := tls_advice(error)) is not None:
            raise StoreUntrusted(f"store {masked_url(url)}: {advice} ({error})") from error
        # A server that speaks plain text only waits for the end of what it takes for a line.
        tls_port = ", that this is its TLS port" if url.startswith("rediss://") else ""
        raise StoreUnavailable(
            f"store {masked_url(url)} does not answer: {error}; check that it runs{tls_port} and that the URL is right "
            "(store.url, EPLB_STORE__URL), or use the embedded store"
        ) from error
    except RedisError as error:
        raise StoreError(f"store {masked_url(url)}: {error}; {refusal_advice(error)}") from error


def _by_name(found: Mapping[bytes, bytes]) -> dict[str, bytes]:
    # A name that is no text is none of ours, and must not keep the others from being read.
    return {name.decode(errors="replace"): value for name, value in found.items()}


def _place(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence or 0)


def _milliseconds(entry_id: bytes) -> int:
    return _place(entry_id)[0]
