"""What a pool's loop needs of the world: a store, the lead, a solver and a clock.

The daemon gives it Redis, a lease, a process and the monotonic clock (:func:`served`). ``eplb replay`` gives it a trace on a
virtual clock, so that what is replayed is the daemon's own loop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from eplb.planner import Planner
from eplb.store.client import Store
from eplb.store.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from collectors.facts import Frame
    from eplb.config import DaemonConfig, PoolConfig
    from eplb.planner import PlanFailure, PlanRequest, PlanResult
    from eplb.store.health import StoreHealth


class PoolStore(Protocol):
    """What a pool reads and writes; :class:`eplb.store.client.Store` says what each call does and raises."""

    key_losses: int

    def time_ms(self) -> int:
        """The store's clock, milliseconds."""

    def tail_load(self, nodes: Iterable[int]) -> Sequence[tuple[int, int, Frame | bytes | None]]:
        """New entries of the nodes' streams: (store time in ms, node, frame or None)."""

    def backlog_ms(self, nodes: Iterable[int]) -> int:
        """Time between the last entry read and the last entry written, ms."""

    def read_live(self) -> dict[int, bytes]:
        """Live records by rank."""

    def read_desired(self) -> dict[str, bytes]:
        """Fields of the desired map, the term among them."""

    def write_desired(self, term: int, fields: Mapping[str, bytes]) -> None:
        """Set fields of the desired map under a term."""

    def read_control(self) -> dict[str, bytes]:
        """Operator switches."""

    def write_control(self, fields: Mapping[str, bytes], term: int | None = None) -> None:
        """Set operator switches; under a term, or by an operator's own hand."""

    def append_log(self, record_json: bytes) -> None:
        """Append one record to the decision log."""

    def read_log(self, count: int) -> list[bytes]:
        """The last records of the decision log, oldest first."""

    def health(self) -> StoreHealth:
        """The store's memory and what it does when that is full."""

    def close(self) -> None:
        """Let go of the store."""


class Lead(Protocol):
    """Leadership under a term; :class:`eplb.store.lease.Lease` says what each call does and raises."""

    @property
    def term(self) -> int | None:
        """The term we lead under now, None when we do not lead."""

    def acquire(self, floor: int = 0) -> int | None:
        """Try to become the leader under a term above ``floor``."""

    def renew(self) -> bool:
        """Go on leading; False when the lead is lost."""

    def step_down(self) -> None:
        """Stop leading at once."""

    def release(self) -> None:
        """Give the lead back."""


class Solver(Protocol):
    """At most one solve at a time; :class:`eplb.planner.Planner` says what each call does."""

    @property
    def busy(self) -> bool:
        """Whether a solve is running."""

    def warm(self) -> None:
        """Get ready for the first request."""

    def start(self, request: PlanRequest) -> None:
        """Take a request."""

    def poll(self) -> PlanResult | PlanFailure | None:
        """The answer, once, when there is one."""

    def close(self) -> None:
        """End the solve and what it runs in."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The world of one pool; ``clock`` gives seconds that only grow; ``state_folder`` keeps the last good map, None = nowhere."""

    store: PoolStore
    lead: Lead
    solver: Solver
    clock: Callable[[], float]
    state_folder: Path | None = None


def served(config: PoolConfig, daemon: DaemonConfig, url: str, owner: str) -> Ports:
    """The world of a served pool: the store at ``url``, a lease held under ``owner`` (unique to this process), a solver's process.

    Raises:
        ConfigError: the URL is malformed, or the lease's settings leave nothing of it.
    """
    store = Store(
        url,
        config.name,
        window_s=config.window.window_s,
        socket_timeout_s=daemon.store.timeout_s,
        access=None if daemon.store.embedded else daemon.store.access(),
    )
    lease = Lease(store, daemon.store.lease_ttl_s, owner)
    state_folder = None if daemon.state_folder is None else Path(daemon.state_folder)
    return Ports(
        store, lease, Planner(config.solver.deadline_s, config.dispatch), time.monotonic, state_folder
    )
