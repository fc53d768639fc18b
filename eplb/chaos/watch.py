"""What the driver sees of the pool in the store, read every few milliseconds: who leads, and where the plan stands."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from collectors.keys import desired_key, lease_key, live_key, log_key
from eplb.migration import observe, of_one_run, read_desired
from eplb.migration.desired import read_records
from eplb.migration.status import State

if TYPE_CHECKING:
    from collectors.facts import PoolFacts
    from eplb.agent.wire import LiveRecord
    from eplb.migration import Desired

POLL_S = 0.008
TIMEOUT_S = 0.5

PLANNING, STAGING, PREPARED, IN_DOUBT, WAVE_LIVE, ALL_LIVE, SETTLING = (
    "planning",
    "staging",
    "prepared",
    "in_doubt",
    "wave_live",
    "all_live",
    "settling",
)
PROTOCOL_STATES = (PLANNING, STAGING, PREPARED, IN_DOUBT, WAVE_LIVE, ALL_LIVE, SETTLING)
"""States at which a leader is killed: the daemon's migration_state, its state moving told apart by what the ranks' records say."""
SHARES_STATES = (STAGING, PREPARED)
"""States of a wave in which what it would move can be told: the ranks still serve the map before."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: ``leader`` process id from the lease, 0 = nobody; ``phase`` one of ``PROTOCOL_STATES``, or another word; ``up`` the store answers; ``code`` of the last decision, ``refused`` of the last refusal that ranks report;
    ``shares_alone`` the wave on offer moves nothing, told in ``SHARES_STATES``.
    """

    up: bool = False
    leader: int = 0
    term: int = 0
    phase: str = ""
    offer: str = ""
    code: str = ""
    refused: str = ""
    shares_alone: bool = False
    at_s: float = 0.0


class Watch:
    """Looks in a thread of its own, so that a store that hangs does not hold up the driver."""

    def __init__(self, facts: PoolFacts, socket: str) -> None:
        self._facts = facts
        self._client = redis.Redis(unix_socket_path=socket, socket_timeout=TIMEOUT_S, protocol=2)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-watch", daemon=True)
        self._raw: tuple[Any, Any] = (None, None)
        self._known: tuple[Desired, dict[int, LiveRecord]] | None = None
        self.seen = Seen()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            try:
                self.seen = self._look()
            except (redis.RedisError, OSError):
                self.seen = Seen(at_s=time.monotonic())

    def _look(self) -> Seen:
        pool = self._facts.pool
        with self._client.pipeline(transaction=False) as pipe:
            pipe.get(lease_key(pool))
            pipe.hgetall(desired_key(pool))
            pipe.hgetall(live_key(pool))
            pipe.xrevrange(log_key(pool), count=1)
            pipe.time()
            lease, desired, live, log, now = pipe.execute()
        if self._known is None or self._raw != (desired, live):
            self._raw = (desired, live)
            names = {name.decode(): value for name, value in desired.items()}
            records, _ = read_records({int(name): value for name, value in live.items() if name.isdigit()})
            self._known = read_desired(names), records
        wanted, records = self._known
        decision = json.loads(log[0][1][b"r"]) if log else {}
        phase, offer = self._phase(wanted, records, now[0] * 1000 + now[1] // 1000, decision.get("state", ""))
        return Seen(
            up=True,
            leader=leader_pid(lease),
            term=wanted.term,
            phase=phase,
            offer=offer,
            code=decision.get("code", ""),
            refused=next((r.refusals[0][1] for r in records.values() if r.refusals), ""),
            shares_alone=phase in SHARES_STATES and _moves_nothing(wanted, of_one_run(self._facts, records)),
            at_s=time.monotonic(),
        )

    def _phase(
        self, desired: Desired, records: dict[int, LiveRecord], now_ms: int, state: str
    ) -> tuple[str, str]:
        if desired.offer is None:
            return state, ""
        status = observe(self._facts, desired, records, now_ms)
        if status.state is not State.MOVING:
            return str(status.state), status.offer
        ready = any(r.offer == status.offer and r.state == "prepared" for r in records.values())
        return PREPARED if ready else STAGING, status.offer


def _moves_nothing(desired: Desired, records: dict[int, LiveRecord]) -> bool:
    rows = next((record.map_rows for record in records.values() if record.map_rows is not None), None)
    if rows is None or desired.offer is None:
        return False
    return all(rows[change.layer] == change.target for change in desired.offer.changes)


def leader_pid(lease: bytes | None) -> int:
    """The process id in a lease, ``term:host:pid:token``, 0 = nobody's."""
    parts = lease.decode().split(":") if lease else []
    return int(parts[-2]) if len(parts) >= 4 and parts[-2].isdigit() else 0
