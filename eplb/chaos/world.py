"""What a fault may touch: the store, the daemons, the ranks, and what is seen of them."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eplb.chaos.processes import DaemonProcess, StoreProcess
    from eplb.chaos.rank_group import RankGroup
    from eplb.chaos.watch import Seen, Watch

RESTING = ("observing", "settling", "")


@dataclass(slots=True)
class World:
    """Everything under chaos. ``happened`` faults that took effect on a rank so far, by (rank, name)."""

    store: StoreProcess
    daemons: list[DaemonProcess]
    ranks: RankGroup
    watch: Watch
    happened: Counter[tuple[int, str]] = field(default_factory=Counter)

    @property
    def seen(self) -> Seen:
        """The newest look at the store."""
        return self.watch.seen

    @property
    def now_s(self) -> float:
        """The host's monotonic clock."""
        return time.monotonic()

    @property
    def leader(self) -> DaemonProcess | None:
        """The daemon that holds the lease, if it is alive."""
        pid = self.seen.leader
        return next((daemon for daemon in self.daemons if pid and daemon.pid == pid), None)

    @property
    def standby(self) -> DaemonProcess | None:
        """A daemon that is alive and does not lead, while another leads."""
        leader = self.leader
        if leader is None:
            return None
        return next((daemon for daemon in self.daemons if daemon.pid and daemon is not leader), None)

    @property
    def steady(self) -> bool:
        """Whether the store answers, a daemon leads and every daemon runs."""
        return self.seen.up and self.leader is not None and all(daemon.pid for daemon in self.daemons)

    def kill(self, daemon: DaemonProcess) -> None:
        """SIGKILL."""
        daemon.signal(signal.SIGKILL)
