"""Faults of a rank and of its ways to other ranks and to the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.chaos.faults import Fault
from eplb.chaos.rank_faults import CORRUPT, EXCHANGE_DELAY, GATHER_DELAY, RECORD_DELAY

if TYPE_CHECKING:
    from eplb.chaos.world import World

SLOW_S, SLOW_EXCHANGE_S, SLOW_GATHER_S = 2.5, 0.25, 1.5
RECORDS_LATE_S = 0.7
TRANSFER_WAIT_S, FRAME_WAIT_S = 12.0, 6.0


@dataclass(slots=True)
class RankFault(Fault):
    """A fault of one rank."""

    rank: int = 0

    def ready(self, world: World) -> bool:
        """The group is whole."""
        return world.ranks.whole

    def at_rest(self, world: World) -> bool:
        """All ranks serve together."""
        return world.ranks.whole


@dataclass(slots=True)
class RankKill(RankFault):
    """A rank dies in the middle of a step; the group goes on without it and takes it back after ``away_s`` seconds."""

    delay_s: float = 0.0
    away_s: float = 0.0

    def begin(self, world: World) -> None:
        """Kill it in a moment, while a step is under way."""
        world.ranks.kill(self.rank, self.delay_s)

    def heal(self, world: World) -> bool:
        """Start it again; the group forms anew before the next step."""
        if world.now_s - self.begun_s < self.away_s or world.ranks.alive(self.rank):
            return False
        world.ranks.revive(self.rank)
        return True


@dataclass(slots=True)
class Corrupt(RankFault):
    """One parcel of weights is damaged between two ranks."""

    _before: int = 0

    def begin(self, world: World) -> None:
        """Order it for the rank's next parcel."""
        self._before = world.happened[self.rank, CORRUPT]
        world.ranks.order(self.rank, CORRUPT, 1.0)

    def heal(self, world: World) -> bool:
        """Wait until a parcel was damaged."""
        if world.happened[self.rank, CORRUPT] > self._before:
            return True
        if world.now_s - self.begun_s > TRANSFER_WAIT_S:
            world.ranks.order(self.rank, CORRUPT, 0.0)
            self.missed = True
            return True
        return False


@dataclass(slots=True)
class SlowLink(RankFault):
    """A rank's parcels, its knowledge of the others' results, and its records are late."""

    def begin(self, world: World) -> None:
        """Slow it down."""
        for name, seconds in (
            (EXCHANGE_DELAY, SLOW_EXCHANGE_S),
            (GATHER_DELAY, SLOW_GATHER_S),
            (RECORD_DELAY, RECORDS_LATE_S),
        ):
            world.ranks.order(self.rank, name, seconds)

    def heal(self, world: World) -> bool:
        """Give it its speed back."""
        if world.now_s - self.begun_s < SLOW_S:
            return False
        for name in (EXCHANGE_DELAY, GATHER_DELAY, RECORD_DELAY):
            world.ranks.order(self.rank, name, 0.0)
        return True


@dataclass(slots=True)
class FrameFault(RankFault):
    """A rank's next frame is dropped, repeated, sent after the one that follows, or damaged."""

    _before: int = 0

    def ready(self, world: World) -> bool:
        """The rank sends frames to a store that answers."""
        return world.seen.up and world.ranks.whole

    def begin(self, world: World) -> None:
        """Order it for the rank's next frame."""
        self._before = world.happened[self.rank, self.kind]
        world.ranks.order(self.rank, self.kind, 1.0)

    def heal(self, world: World) -> bool:
        """Wait until it has happened."""
        if world.happened[self.rank, self.kind] > self._before:
            return True
        if world.now_s - self.begun_s > FRAME_WAIT_S:
            world.ranks.order(self.rank, self.kind, 0.0)
            self.missed = True
            return True
        return False

    def at_rest(self, world: World) -> bool:
        """Frames are never waited for."""
        return world.seen.up
