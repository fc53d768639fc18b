"""Which faults come, in which order, and which of them may overlap.

Three lanes run side by side, one fault at a time in each: the store and the daemons; the ranks and their links; frames. They overlap because they
hit different processes: a leader may die while a rank is away. Within a lane the next fault waits until the pool is at rest again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from eplb.chaos.daemon_faults import (
    ClockJump,
    DaemonStop,
    FileLimit,
    KillDaemon,
    KillLeader,
    StorePause,
    StoreRestart,
)
from eplb.chaos.faults import (
    CLOCK_JUMP,
    DAEMON_STOP,
    FILE_LIMIT,
    FRAME_KINDS,
    KILL_DAEMON,
    KILL_LEADER,
    KINDS,
    LINK_SLOW,
    RANK_KILL,
    STORE_PAUSE,
    STORE_RESTART,
    Fault,
)
from eplb.chaos.link_faults import Corrupt, FrameFault, RankKill, SlowLink
from eplb.chaos.rank_faults import CORRUPT
from eplb.chaos.setup import RANKS, WEIGHTED
from eplb.chaos.watch import PROTOCOL_STATES, SHARES_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL, RANK_SIDE, FRAMES = "store and daemons", "ranks and links", "frames"
LANES = (CONTROL, RANK_SIDE, FRAMES)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a run must do: ``counts`` faults by kind, of which ``least`` must have been healed, ``kills`` of the leader in each state, and the least of the results.

    ``shares_only`` waves of shares alone; ``shares_kills`` of the leader with one on offer, in each state in which that can be told. ``patience_s`` how long the first lane waits for a state in which the leader is to be killed before it takes another fault.
    """

    counts: Mapping[str, int]
    least: Mapping[str, int]
    kills: int
    faults: int
    waves: int
    shares_only: int
    refused: int
    pause_s: Mapping[str, float]
    patience_s: float = 3.0
    shares_kills: int = 0

    def of(self, dispatch: str) -> Scale:
        """The same without what only shares can bring, where dispatch is even."""
        return self if dispatch == WEIGHTED else replace(self, shares_only=0, shares_kills=0)


def _control(counts: Mapping[str, int], lane: str, shares_only: int = 0) -> Scale:
    pauses = {**dict.fromkeys(LANES, 0.0), lane: 0.3}
    return Scale(counts, {}, kills=0, faults=0, waves=0, shares_only=shares_only, refused=0, pause_s=pauses)


FULL = Scale(
    counts={
        KILL_DAEMON: 6,
        STORE_RESTART: 5,
        STORE_PAUSE: 5,
        DAEMON_STOP: 6,
        FILE_LIMIT: 6,
        CLOCK_JUMP: 8,
        RANK_KILL: 5,
        CORRUPT: 22,
        LINK_SLOW: 20,
        **dict.fromkeys(FRAME_KINDS, 8),
    },
    least=dict.fromkeys(KINDS, 5),
    kills=3,
    faults=100,
    waves=20,
    shares_only=5,
    refused=5,
    pause_s={CONTROL: 0.5, RANK_SIDE: 1.5, FRAMES: 5.0},
    shares_kills=2,
)
SHORT = Scale(
    counts={
        KILL_DAEMON: 1,
        STORE_RESTART: 1,
        STORE_PAUSE: 1,
        DAEMON_STOP: 1,
        FILE_LIMIT: 1,
        CLOCK_JUMP: 1,
        RANK_KILL: 1,
        CORRUPT: 1,
        LINK_SLOW: 1,
        **dict.fromkeys(FRAME_KINDS, 1),
    },
    least=dict.fromkeys(KINDS, 1),
    kills=1,
    faults=16,
    waves=2,
    shares_only=1,
    refused=1,
    pause_s={CONTROL: 0.3, RANK_SIDE: 1.0, FRAMES: 1.0},
    patience_s=1.0,
)

CONTROLS: dict[str, tuple[frozenset[str], Scale]] = {
    "vote": (frozenset({LINK_SLOW}), _control({LINK_SLOW: 20}, RANK_SIDE)),
    "digests": (frozenset({CORRUPT}), _control({CORRUPT: 20}, RANK_SIDE)),
    "terms": (frozenset({DAEMON_STOP}), _control({DAEMON_STOP: 20}, CONTROL)),
    "shares": (frozenset(), _control({}, CONTROL, shares_only=1)),
}
"""What a negative control injects: the faults that the protection stands against, until the judge finds something; shares need none but a wave of them."""


@dataclass(slots=True)
class Lane:
    """Faults that must not overlap: ``states`` kills that wait for a state, ``others`` in order."""

    states: list[KillLeader] = field(default_factory=list)
    others: list[Fault] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing is left to do."""
        return not self.states and not self.others


def lanes(scale: Scale, kinds: frozenset[str], seed: int) -> dict[str, Lane]:
    """All faults of these kinds, shuffled by the seed."""
    random = np.random.default_rng([seed, 8])
    control = Lane()
    if KILL_LEADER in kinds:
        control.states = [
            KillLeader(KILL_LEADER, state, state=state)
            for state in PROTOCOL_STATES
            for _ in range(scale.kills)
        ]
        control.states += [
            KillLeader(KILL_LEADER, shares_alone(state), state=state, shares_alone=True)
            for state in SHARES_STATES
            for _ in range(scale.shares_kills)
        ]
    found = {CONTROL: control, RANK_SIDE: Lane(), FRAMES: Lane()}
    for kind, count in scale.counts.items():
        if kind in kinds:
            for number in range(count):
                found[_lane(kind)].others.append(_fault(kind, number, random))
    for lane in found.values():
        order = random.permutation(len(lane.others))
        lane.others = [lane.others[place] for place in order.tolist()]
    return found


def shares_alone(state: str) -> str:
    """How a kill in this state is called, if a wave of shares alone was on offer."""
    return f"{state} (shares alone)"


def _lane(kind: str) -> str:
    if kind in FRAME_KINDS:
        return FRAMES
    return RANK_SIDE if kind in (RANK_KILL, CORRUPT, LINK_SLOW) else CONTROL


_JUMPS = (("wall", 3600.0), ("monotonic", 40.0), ("wall", -3600.0), ("monotonic", 3600.0))
_AWAY_S = (3.0, 9.0)
"""Back before its experts have found other places, and after."""
_ROLES = ("standby", "leader at rest")
_STOPS = ("before a write", "at any point")


def _fault(kind: str, number: int, random: np.random.Generator) -> Fault:
    rank = int(random.integers(RANKS))
    victim = number % RANKS  # rank 0 too: another rank then reads the store
    delay_s = float(random.uniform(0.0, 0.02))
    clock, seconds = _JUMPS[number % len(_JUMPS)]
    made: dict[str, Fault] = {
        **{frame: FrameFault(frame, f"rank {rank}", rank=rank) for frame in FRAME_KINDS},
        RANK_KILL: RankKill(
            kind, f"rank {victim}", rank=victim, delay_s=delay_s, away_s=_AWAY_S[number % len(_AWAY_S)]
        ),
        CORRUPT: Corrupt(kind, f"from rank {rank}", rank=rank),
        LINK_SLOW: SlowLink(kind, f"rank {rank}", rank=rank),
        CLOCK_JUMP: ClockJump(kind, f"{clock} {seconds:+.0f} s", clock=clock, seconds=seconds),
        KILL_DAEMON: KillDaemon(kind, _ROLES[number % len(_ROLES)]),
        DAEMON_STOP: DaemonStop(kind, _STOPS[number % len(_STOPS)]),
        STORE_RESTART: StoreRestart(kind),
        STORE_PAUSE: StorePause(kind),
        FILE_LIMIT: FileLimit(kind),
    }
    return made[kind]
