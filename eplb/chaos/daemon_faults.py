"""Faults of the store and of the daemons, on real processes."""

from __future__ import annotations

import resource
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.chaos.faults import Fault
from eplb.chaos.setup import LEASE_S
from eplb.chaos.world import RESTING

if TYPE_CHECKING:
    from eplb.chaos.processes import DaemonProcess
    from eplb.chaos.world import World

RESTART_AFTER_S = 0.4
STORE_AWAY_S, STORE_PAUSE_S = 0.5, 5.0
STOP_S = LEASE_S + 1.2
WRITE_WAIT_S = 12.0
FILE_LIMIT_S, FILE_WAIT_S = 2.0, 15.0
NOT_SAVED = "last_good_not_saved"
CLOCK_S = 2.0


@dataclass(slots=True)
class KillDaemon(Fault):
    """``kill -9`` of the standby, or of the leader while nothing is under way."""

    _victim: DaemonProcess | None = None

    def ready(self, world: World) -> bool:
        """A daemon of this role runs, and the leader is at rest."""
        return world.steady and world.standby is not None and world.seen.phase in RESTING

    def begin(self, world: World) -> None:
        """Kill it."""
        self._victim = world.leader if self.detail == "leader at rest" else world.standby
        if self._victim is not None:
            world.kill(self._victim)

    def heal(self, world: World) -> bool:
        """Start it again."""
        return _start_again(self, self._victim, world)


@dataclass(slots=True)
class KillLeader(Fault):
    """``kill -9`` of the leader in one state of the protocol, which is ``state``, with a wave of shares alone on offer if ``shares_alone``."""

    state: str = ""
    shares_alone: bool = False
    _victim: DaemonProcess | None = None

    def ready(self, world: World) -> bool:
        """The leader is in that state."""
        seen = world.seen
        return world.steady and seen.phase == self.state and seen.shares_alone >= self.shares_alone

    def begin(self, world: World) -> None:
        """Kill it."""
        self._victim = world.leader
        if self._victim is not None:
            world.kill(self._victim)

    def heal(self, world: World) -> bool:
        """Start it again."""
        return _start_again(self, self._victim, world)


def _start_again(fault: KillDaemon | KillLeader, victim: DaemonProcess | None, world: World) -> bool:
    if victim is None:
        fault.missed = True
        return True
    if world.now_s - fault.begun_s < RESTART_AFTER_S or victim.pid:
        return False
    victim.start()
    return True


@dataclass(slots=True)
class StoreRestart(Fault):
    """The store is killed and comes back empty."""

    def begin(self, world: World) -> None:
        """Kill it."""
        world.store.kill()

    def heal(self, world: World) -> bool:
        """Start it again, on the same socket, without its data."""
        if world.now_s - self.begun_s < STORE_AWAY_S:
            return False
        world.store.start()
        return True


@dataclass(slots=True)
class StorePause(Fault):
    """The store answers nobody for 5 s."""

    def begin(self, world: World) -> None:
        """Stop it."""
        world.store.signal(signal.SIGSTOP)

    def heal(self, world: World) -> bool:
        """Let it go on."""
        if world.now_s - self.begun_s < STORE_PAUSE_S:
            return False
        world.store.signal(signal.SIGCONT)
        return True


@dataclass(slots=True)
class DaemonStop(Fault):
    """The leader is stopped past its lease and goes on; "before a write": just there, where only the store's fence can refuse it."""

    _victim: DaemonProcess | None = None
    _stopped_s: float = 0.0

    def begin(self, world: World) -> None:
        """Stop it, now or at its next write."""
        self._victim, self._stopped_s = world.leader, 0.0
        if self._victim is None:
            return
        if self.detail == "before a write":
            self._victim.order("stop_at_write")
            return
        self._victim.signal(signal.SIGSTOP)
        self._stopped_s = world.now_s

    def heal(self, world: World) -> bool:
        """Let it go on once its lease is over."""
        victim = self._victim
        if victim is None or not victim.pid:
            self.missed = True
            return True
        if not self._stopped_s:
            if victim.stopped:
                self._stopped_s = world.now_s
            elif world.now_s - self.begun_s > WRITE_WAIT_S:
                victim.order("stop_at_write", -1.0)
                self.missed = True
                return True
            return False
        if world.now_s - self._stopped_s < STOP_S:
            return False
        victim.signal(signal.SIGCONT)
        return True


@dataclass(slots=True)
class FileLimit(Fault):
    """The leader may write no file, so that its last good map cannot be kept; healed once it has said so."""

    _victim: DaemonProcess | None = None
    _pid: int = 0
    _said: int = 0

    def begin(self, world: World) -> None:
        """Set RLIMIT_FSIZE of the running process to 0."""
        self._victim = world.leader
        if self._victim is not None:
            self._pid, self._said = self._victim.pid, self._victim.said(NOT_SAVED)
            hard = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (0, hard))

    def heal(self, world: World) -> bool:
        """Lift the limit."""
        victim, waited_s = self._victim, world.now_s - self.begun_s
        if victim is None or victim.pid != self._pid:
            self.missed = True
            return True
        refused = victim.said(NOT_SAVED) > self._said
        if waited_s < FILE_LIMIT_S or not (refused or waited_s > FILE_WAIT_S):
            return False
        self.missed = not refused
        if victim.pid == self._pid:
            hard = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (hard, hard))
        return True


@dataclass(slots=True)
class ClockJump(Fault):
    """A clock of one daemon jumps; ``clock`` wall or monotonic, ``seconds`` by how much."""

    clock: str = "wall"
    seconds: float = 0.0
    _victim: DaemonProcess | None = None

    def begin(self, world: World) -> None:
        """Let it jump."""
        self._victim = world.leader
        if self._victim is not None:
            self._victim.order(self.clock, self.seconds)

    def heal(self, world: World) -> bool:
        """A wall clock is set right again; a monotonic one stays where it is."""
        if world.now_s - self.begun_s < CLOCK_S:
            return False
        self.missed = self._victim is None
        if self._victim is not None and self.clock == "wall":
            self._victim.order(self.clock, -self.seconds)
        return True
