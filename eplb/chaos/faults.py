"""What a fault is: when it may begin, what it does, when it is healed, and when the pool is at rest again; and the kinds that there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.chaos.rank_faults import CORRUPT, DAMAGE, DROP, REORDER, REPEAT

if TYPE_CHECKING:
    from eplb.chaos.world import World

(
    KILL_DAEMON,
    KILL_LEADER,
    STORE_RESTART,
    STORE_PAUSE,
    DAEMON_STOP,
    RANK_KILL,
    LINK_SLOW,
    FILE_LIMIT,
    CLOCK_JUMP,
) = (
    "kill_daemon",
    "kill_leader",
    "store_restart",
    "store_pause",
    "daemon_stop",
    "rank_kill",
    "link_slow",
    "file_limit",
    "clock_jump",
)
FRAME_KINDS = (DROP, REPEAT, REORDER, DAMAGE)
KINDS = (
    KILL_DAEMON,
    KILL_LEADER,
    STORE_RESTART,
    STORE_PAUSE,
    DAEMON_STOP,
    RANK_KILL,
    *FRAME_KINDS,
    CORRUPT,
    LINK_SLOW,
    FILE_LIMIT,
    CLOCK_JUMP,
)
"""The fourteen kinds, four of them of frames."""


@dataclass(slots=True)
class Fault:
    """One fault of one kind; ``detail`` says which variant, ``missed`` that there was nothing to break while it waited."""

    kind: str
    detail: str = ""
    begun_s: float = 0.0
    missed: bool = False

    def ready(self, world: World) -> bool:
        """Whether it may begin now."""
        return world.steady

    def begin(self, world: World) -> None:
        """Do it."""
        raise NotImplementedError

    def heal(self, world: World) -> bool:
        """Called again and again after the beginning: heal it when it is time; True once it is healed."""
        raise NotImplementedError

    def at_rest(self, world: World) -> bool:
        """Whether the pool is at rest again after the healing."""
        return world.steady and world.ranks.whole
