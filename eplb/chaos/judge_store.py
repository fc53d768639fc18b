"""What the judge reads in the store by itself, raw: terms that were granted, offers that were made, and how their plans ended."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, cast

import redis

POLL_S, LIVE_POLL_S, TIMEOUT_S = 0.005, 0.05, 0.5


@dataclass(frozen=True, slots=True)
class OfferSeen:
    """An offer when it was first seen: ``newest_term`` that had been granted before that look."""

    key: str
    plan_id: str
    wave: int
    term: int
    newest_term: int
    at_s: float

    @property
    def stale(self) -> bool:
        """Whether it was written by a leader that had been followed by another."""
        return self.term < self.newest_term


@dataclass(slots=True)
class PlanSeen:
    """A plan in flight from ``begun_s`` to ``ended_s`` (0 = still)."""

    plan_id: str
    begun_s: float
    ended_s: float = 0.0


@dataclass(slots=True)
class StoreView:
    """Everything seen so far; ``grants`` (time, term) in order, since the store was last emptied; ``present`` key of what is on offer."""

    offers: dict[str, OfferSeen] = field(default_factory=dict)
    plans: dict[str, PlanSeen] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    grants: list[tuple[float, int]] = field(default_factory=list)
    terms: set[int] = field(default_factory=set)
    present: str = ""

    def newest_term(self, before_s: float) -> int:
        """The newest term granted before a moment."""
        return max((term for at_s, term in self.grants if at_s < before_s), default=0)

    def see_term(self, term: int, at_s: float) -> None:
        """Take note of the store's term."""
        if term > max((known for _, known in self.grants), default=0):
            self.grants.append((at_s, term))
            self.terms.add(term)

    def see_offer(self, raw: bytes, at_s: float) -> None:
        """Take note of what is on offer; ``raw`` b"" = nothing. Terms of the same look come after it."""
        offer = _offer(raw, self.newest_term(at_s), at_s)
        if offer is not None:
            self.offers.setdefault(offer.key, offer)
            plan = self.plans.setdefault(offer.plan_id, PlanSeen(offer.plan_id, at_s))
            plan.ended_s = 0.0
        self.present = "" if offer is None else offer.key
        current = "" if offer is None else offer.plan_id
        for plan in self.plans.values():
            if plan.plan_id != current and not plan.ended_s:
                plan.ended_s = at_s

    def emptied(self) -> None:
        """The store lost its data: what was granted before is known from the ranks alone."""
        self.grants = []


def _offer(raw: bytes, newest_term: int, at_s: float) -> OfferSeen | None:
    try:
        body = json.loads(raw)["body"]
        plan_id, wave, term = str(body["plan_id"]), int(body["wave"]), int(body["term"])
    except (ValueError, KeyError, TypeError):
        return None
    return OfferSeen(f"{plan_id}/{wave}@{term}", plan_id, wave, term, newest_term, at_s)


class StoreWatch:
    """Reads in a thread; ``view`` may be used under ``lock``."""

    def __init__(self, socket: str, pool: str) -> None:
        self._client = redis.Redis(unix_socket_path=socket, socket_timeout=TIMEOUT_S, protocol=2)
        self._desired, self._live = f"eplb:{{{pool}}}:desired", f"eplb:{{{pool}}}:live"
        self.lock = threading.Lock()
        self.view = StoreView()
        self._raw: object = None
        self._live_s = 0.0
        self._error: Exception | None = None

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name="judge-store", daemon=True).start()

    def check(self) -> None:
        """Raise what ended the reading, if anything did: a judge that is blind must not say that it found nothing."""
        if self._error is not None:
            raise RuntimeError("the judge can no longer read the store") from self._error

    def _run(self) -> None:
        while self._error is None:
            time.sleep(POLL_S)
            try:
                self._look()
            except (redis.RedisError, OSError):
                continue
            except Exception as error:  # noqa: BLE001 - raised in the judge's own thread
                self._error = error

    def _look(self) -> None:
        raw, term = cast("list[Any]", self._client.hmget(self._desired, ["offer", "term"]))
        now_s = time.monotonic()
        if (raw, term) != self._raw:
            self._raw = (raw, term)
            with self.lock:
                self.view.see_offer(raw or b"", now_s)
                self.view.see_term(int(term or 0), now_s)
        if now_s - self._live_s >= LIVE_POLL_S:
            self._live_s = now_s
            self._refusals(cast("dict[bytes, bytes]", self._client.hgetall(self._live)))

    def _refusals(self, live: dict[bytes, bytes]) -> None:
        for raw in live.values():
            if b'"refused"' not in raw:
                continue
            try:
                body = json.loads(raw)["body"]
                key, refused = str(body["offer"]), body["state"] == "refused" and bool(body["refusals"])
            except (ValueError, KeyError, TypeError):
                continue
            if refused:
                with self.lock:
                    self.view.refused.add(key)
