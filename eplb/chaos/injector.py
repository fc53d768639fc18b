"""Begins and heals the scheduled faults, tells the judge, and keeps what each of them led to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eplb.chaos.faults import FRAME_KINDS
from eplb.chaos.link_faults import RECORDS_LATE_S, Corrupt
from eplb.chaos.messages import FaultNote
from eplb.chaos.rank_faults import CORRUPT, RECORD_DELAY
from eplb.chaos.schedule import CONTROL, RANK_SIDE, Lane, Scale, lanes
from eplb.chaos.setup import RANKS
from eplb.chaos.watch import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.chaos.faults import Fault
    from eplb.chaos.world import World

FRESH_S = 0.1
"""The look at the store after a healing must have begun after it."""
WIDEN_AGAIN_S = 2.0
REST_S = 45.0
"""A pool that is not at rest this long after a healing has not recovered."""
ROUTINE = frozenset(
    {
        "balanced",
        "planning",
        "cooldown",
        "in_flight",
        "wave_live",
        "applied",
        "offered",
        "settling",
        "settled",
        "",
    }
)


@dataclass(slots=True)
class KindRecord:
    """What came of one kind of fault: seconds from the healing until the pool was at rest and until the next wave was committed;
    ``codes`` of decisions and refusals seen from its beginning until the pool was at rest.
    """

    injected: int = 0
    healed: int = 0
    rest_s: list[float] = field(default_factory=list)
    wave_s: list[float] = field(default_factory=list)
    details: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Current:
    number: int
    fault: Fault
    healed_s: float = 0.0
    codes: set[str] = field(default_factory=set)


class Injector:
    """One fault at a time in each lane."""

    def __init__(
        self, scale: Scale, kinds: frozenset[str], seed: int, tell: Callable[[FaultNote], None]
    ) -> None:
        self._scale, self._tell = scale, tell
        self._lanes = lanes(scale, kinds, seed)
        self._now: dict[str, _Current] = {}
        self._free_s: dict[str, float] = dict.fromkeys(self._lanes, 0.0)
        self._number = 0
        self._widened_s = 0.0
        self.records: dict[str, KindRecord] = {kind: KindRecord() for kind in sorted(kinds)}
        self.unrecovered: list[str] = []
        self._stopped = False
        self._waves = 0
        self._unmoved: list[tuple[str, float]] = []

    @property
    def counted(self) -> int:
        """Faults begun so far, those of frames left out."""
        return sum(record.injected for kind, record in self.records.items() if kind not in FRAME_KINDS)

    @property
    def done(self) -> bool:
        """Whether all faults were begun and healed, and the pool was at rest after each."""
        return not self._now and all(lane.empty for lane in self._lanes.values())

    @property
    def can_refuse(self) -> bool:
        """Whether damaged parcels are among the faults."""
        return CORRUPT in self.records

    def stop(self) -> None:
        """Begin no more."""
        self._stopped = True
        for lane in self._lanes.values():
            lane.states, lane.others = [], []

    def refuse_more(self, world: World) -> None:
        """Damage one more parcel, so that one more wave is refused; done when too few were, because a leader died under a damaged one."""
        if self.done and not self._stopped and self.can_refuse:
            rank = self._number % RANKS
            self._lanes[RANK_SIDE].others.append(Corrupt(CORRUPT, f"from rank {rank}", rank=rank))
            self.tick(world)

    def committed(self, waves: int, now_s: float) -> None:
        """So many waves were committed by now."""
        if waves > self._waves:
            self._waves = waves
            for kind, healed_s in self._unmoved:
                self.records[kind].wave_s.append(now_s - healed_s)
            self._unmoved = []

    def waiting(self) -> str:
        """What is under way or comes next, in a few words."""
        return ", ".join(
            f"{current.fault.kind} {current.fault.detail}".strip() for current in self._now.values()
        )

    def tick(self, world: World) -> None:
        """Begin, heal, and let go, as the time has come."""
        self._widen(world)
        for name, lane in self._lanes.items():
            current = self._now.get(name)
            if current is not None:
                self._follow(name, current, world)
            elif world.now_s - self._free_s[name] >= self._scale.pause_s[name]:
                fault = self._choose(name, lane, world)
                if fault is not None:
                    self._begin(name, fault, world)

    def _choose(self, name: str, lane: Lane, world: World) -> Fault | None:
        waited_s = world.now_s - self._free_s[name] - self._scale.pause_s[name]
        for kill in lane.states:
            if kill.ready(world):
                lane.states.remove(kill)
                return kill
        if lane.others and (not lane.states or waited_s >= self._scale.patience_s):
            fault = lane.others[0]
            if fault.ready(world):
                return lane.others.pop(0)
        return None

    def _begin(self, name: str, fault: Fault, world: World) -> None:
        self._number += 1
        fault.begun_s = world.now_s
        self._now[name] = _Current(self._number, fault)
        record = self.records[fault.kind]
        record.injected += 1
        self._tell(FaultNote(self._number, fault.kind, fault.detail, fault.begun_s, healed=False))
        fault.begin(world)

    def _follow(self, name: str, current: _Current, world: World) -> None:
        fault = current.fault
        current.codes.update({world.seen.code, world.seen.refused} - ROUTINE)
        if not current.healed_s:
            if fault.heal(world):
                current.healed_s = world.now_s
                self._tell(FaultNote(current.number, fault.kind, fault.detail, world.now_s, healed=True))
                self._count(name, fault, world.now_s)
            return
        waited_s = world.now_s - current.healed_s
        rested = world.seen.at_s > current.healed_s + FRESH_S and fault.at_rest(world)
        if rested or waited_s > REST_S:
            if not rested:
                self.unrecovered.append(
                    f"{fault.kind} {fault.detail}: not at rest {REST_S:g} s after it was healed"
                )
            record = self.records[fault.kind]
            record.rest_s.append(waited_s)
            record.codes.update(current.codes)
            del self._now[name]
            self._free_s[name] = world.now_s

    def _count(self, name: str, fault: Fault, now_s: float) -> None:
        record = self.records[fault.kind]
        if fault.missed:
            fault.missed = False
            record.injected -= 1
            if not self._stopped:
                self._lanes[name].others.append(fault)
            return
        record.healed += 1
        record.details[fault.detail] += 1
        self._unmoved.append((fault.kind, now_s))

    def _widen(self, world: World) -> None:
        """Let one rank's records come late while a leader is still to be killed in doubt: else that state is over in milliseconds.

        Ordered again and again, because the rank may have died meanwhile, or a slow link may have been healed.
        """
        wanted = any(fault.state == IN_DOUBT for fault in self._lanes[CONTROL].states)
        if wanted and world.now_s - self._widened_s >= WIDEN_AGAIN_S:
            self._widened_s = world.now_s
            world.ranks.order(RANKS - 1, RECORD_DELAY, RECORDS_LATE_S)
        elif not wanted and self._widened_s:
            self._widened_s = 0.0
            world.ranks.order(RANKS - 1, RECORD_DELAY, 0.0)
