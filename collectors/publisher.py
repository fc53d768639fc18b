"""The publisher: a thread of its own that sends one rank's frames to the store and never hurts the engine.

The store away means: this frame is dropped and counted, there is no retry inside a call, and the next attempt waits
longer. Totals are cumulative, so that a lost frame costs resolution and not correctness.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from collectors.access import StoreAccess, client_options, tls_advice
from collectors.budget import Budget
from collectors.errors import AccessError, CollectorError
from collectors.frame import encode_frame
from collectors.keys import FRAME_FIELD, load_key
from collectors.urls import masked_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.recorder import Recorder

SOCKET_TIMEOUT_S = 1.0
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
_STREAM_ID = b"-"


RETENTION_S = 90.0
"""How long the store keeps a frame: half as long again as the default window, and within its memory at full budget."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """What the publisher did since it was made.

    ``published``, ``dropped`` frames; ``bytes`` of published frames; ``last_error`` a sentence, "" = none yet;
    ``interval_s`` between the last two frames as the budget allows it; ``stride`` steps between step samples.
    """

    published: int = 0
    dropped: int = 0
    bytes: int = 0
    last_error: str = ""
    interval_s: float = 0.0
    stride: int = 1


class Publisher:
    """Publishes a recorder's frames every ``interval_s`` seconds to the stream of its node.

    ``publish_bytes_per_s`` is the budget of the whole pool; this rank keeps to its part of it (``collectors.budget``).
    ``term`` gives the newest leadership term that the rank knows. Entries older than ``retention_s`` seconds, by the
    store's own clock, are trimmed. Nothing is published before the recorder is registered. ``access`` password and TLS files,
    None = what the environment says (:data:`collectors.access.ENVIRONMENT`).

    Raises:
        CollectorError: the URL is not one of redis://, rediss:// or unix://, its access settings contradict it, or a number is
            not positive.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        url: str,
        node: int,
        interval_s: float = 1.0,
        publish_bytes_per_s: float = 2_000_000,
        term: Callable[[], int] | None = None,
        retention_s: float = RETENTION_S,
        access: StoreAccess | None = None,
    ) -> None:
        for name, value in (("interval_s", interval_s), ("retention_s", retention_s)):
            if not value > 0:
                raise CollectorError(f"publisher: {name} is {value}, must be above 0")
        self._recorder = recorder
        self._client = _client(url, StoreAccess.from_environment() if access is None else access)
        self._key = load_key(recorder.facts.pool, node)
        self._budget = Budget(
            recorder.facts,
            recorder.kind,
            recorder.stride,
            interval_s,
            publish_bytes_per_s,
            sample_capacity=recorder.sample_capacity,
        )
        self._term = term
        self._term_seen = 0
        self._retention_ms = int(retention_s * 1000)
        self._oldest_id: str | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        self._stats = PublisherStats(interval_s=interval_s, stride=recorder.stride)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"eplb-publisher-{recorder.rank}", daemon=True)

    @property
    def stats(self) -> PublisherStats:
        """What was done so far; a new immutable object after each frame."""
        return self._stats

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread.ident is None and not self._stopping.is_set():
            self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> bool:
        """Send one last frame and end the thread; gives whether it ended within timeout_s seconds."""
        self._stopping.set()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # Ranks start together; spread over the interval they do not reach the store together.
        facts = self._recorder.facts
        wait_s = self._budget.interval_s * self._recorder.rank / facts.ranks
        while not self._stopping.wait(wait_s):
            wait_s = self._tick()
        # The engine is stopping: one attempt, whatever the backoff says.
        self._publish()
        self._client.close()

    def _tick(self) -> float:
        if time.monotonic() < self._retry_at_s:
            self._drop("")
            return self._budget.interval_s
        sent_bytes = self._publish()
        self._recorder.stride = self._budget.stride(self._recorder.group_step, time.monotonic())
        wait_s = self._budget.wait_s(sent_bytes)
        self._stats = replace(self._stats, interval_s=wait_s, stride=self._recorder.stride)
        return wait_s

    def _publish(self) -> int:
        if not self._recorder.registered:
            return 0
        try:
            frame = self._recorder.snapshot(self._newest_term())
        except Exception as error:  # noqa: BLE001 - this thread lives inside an engine
            self._drop(f"no snapshot: {error!r}")
            return 0
        try:
            payload = encode_frame(frame)
            self._send(payload)
        except Exception as error:  # noqa: BLE001 - this thread lives inside an engine
            self._recorder.undelivered(frame)
            why = tls_advice(error) or f"{type(error).__name__}: {error}"
            self._drop(f"{why}; the frame is dropped, the totals are kept")
            self._back_off()
            return 0
        self._failures = 0
        self._stats = replace(
            self._stats, published=self._stats.published + 1, bytes=self._stats.bytes + len(payload)
        )
        return len(payload)

    def _send(self, payload: bytes) -> None:
        # The store's clock dates the entries, so that its last answer also says what is too old.
        entry = self._client.xadd(self._key, {FRAME_FIELD: payload}, minid=self._oldest_id, approximate=True)
        self._oldest_id = f"{max(0, int(bytes(entry).split(_STREAM_ID)[0]) - self._retention_ms)}-0"

    def _newest_term(self) -> int:
        if self._term is not None:
            try:
                self._term_seen = max(self._term_seen, int(self._term()))
            except Exception as error:  # noqa: BLE001 - an older term is no reason to lose a frame
                self._stats = replace(self._stats, last_error=f"term unknown: {error!r}")
        return self._term_seen

    def _drop(self, why: str) -> None:
        self._stats = replace(
            self._stats, dropped=self._stats.dropped + 1, last_error=why or self._stats.last_error
        )

    def _back_off(self) -> None:
        delay_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at_s = time.monotonic() + delay_s


def _client(url: str, access: StoreAccess) -> Any:
    # redis-py retries ten times by itself, which takes seconds; RESP2 answers have the same shape in all its versions.
    options: dict[str, Any] = {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if not url.startswith("unix://"):
        options["socket_connect_timeout"] = SOCKET_TIMEOUT_S
    try:
        bare, reach = client_options(url, access)
        client = redis.Redis.from_url(bare, **options, **reach)
    except AccessError:
        raise
    except ValueError as error:
        raise _unusable(url, str(error)) from error
    if url == "unix://":
        raise _unusable(url, "it has no path")
    return client


def _unusable(url: str, why: str) -> CollectorError:
    return CollectorError(
        f"publisher: store URL {masked_url(url)!r} is not usable ({why}); use redis://host:port/0, rediss:// or unix:///path"
    )
