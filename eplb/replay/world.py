"""The world of the daemon's loop on a virtual clock: ranks that report and switch, and a store, a lead and a solver without a process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import live_map_digest
from collectors.facts import NO_MAP_DIGEST, Frame, FrameHeader, Kind, PhaseTotals, StepSample
from eplb.agent.live import LiveMap
from eplb.agent.wire import LiveRecord, encode_live
from eplb.errors import StoreFenced
from eplb.migration import read_desired
from eplb.planner import PlanFailure, make_plan
from eplb.store.health import StoreHealth
from placement import LoadTrace, Placement, Topology, evaluate
from placement.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from collectors.facts import Phase, PoolFacts
    from eplb.agent.wire import Offer
    from eplb.planner import PlanRequest, PlanResult
    from eplb.replay.schedule import Steps
    from placement import Roofline

RUN_ID = 1
ORIGIN_MS = 3_600_000
"""Store time at the beginning: a store never shows 0."""


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now_ms = ORIGIN_MS

    def seconds(self) -> float:
        """Seconds that only grow."""
        return self.now_ms / 1000.0


class MemoryStore:
    """What a pool's store holds, by the virtual clock; the same fence as the store's script."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.key_losses = 0
        self.frames: list[tuple[int, int, Frame | bytes | None]] = []
        self.live: dict[int, bytes] = {}
        self._desired: dict[str, bytes] = {}
        self._control: dict[str, bytes] = {}
        self._term = 0

    def time_ms(self) -> int:
        """Virtual time."""
        return self._clock.now_ms

    def tail_load(self, nodes: Iterable[int]) -> list[tuple[int, int, Frame | bytes | None]]:
        """What came since the last call."""
        del nodes
        entries, self.frames = self.frames, []
        return entries

    def backlog_ms(self, nodes: Iterable[int]) -> int:
        """0: the reader is as fast as the virtual clock."""
        del nodes
        return 0

    def read_live(self) -> dict[int, bytes]:
        """Live records by rank."""
        return dict(self.live)

    def read_desired(self) -> dict[str, bytes]:
        """Fields of the desired map, the term among them."""
        return {**self._desired, "term": str(self._term).encode()}

    def write_desired(self, term: int, fields: Mapping[str, bytes]) -> None:
        """Set fields under a term.

        Raises:
            StoreFenced: a newer term exists.
        """
        if term < self._term:
            raise StoreFenced(f"desired: term {self._term} exists, this writes under {term}; stop leading")
        self._term = term
        self._desired.update(fields)

    def read_control(self) -> dict[str, bytes]:
        """Operator switches."""
        return dict(self._control)

    def write_control(self, fields: Mapping[str, bytes], term: int | None = None) -> None:
        """Set operator switches; there is no rival whose term could be newer."""
        del term
        self._control.update(fields)

    def append_log(self, record_json: bytes) -> None:
        """Nobody reads the log of a replay: its decisions are taken from the loop's snapshots."""

    def read_log(self, count: int) -> list[bytes]:
        """Nothing: no leader came before."""
        del count
        return []

    def health(self) -> StoreHealth:
        """Memory of this process, of which nothing is evicted."""
        return StoreHealth("noeviction")

    def close(self) -> None:
        """Nothing is held."""


class SoleLead:
    """The lead of a daemon that has no rival."""

    def __init__(self) -> None:
        self.term: int | None = None

    def acquire(self, floor: int = 0) -> int | None:
        """Lead under the next term."""
        self.term = floor + 1
        return self.term

    def renew(self) -> bool:
        """Go on while it leads."""
        return self.term is not None

    def step_down(self) -> None:
        """Stop leading."""
        self.term = None

    def release(self) -> None:
        """Stop leading."""
        self.term = None


class InlineSolver:
    """The planner's own solve without its process: the answer is there at the next cycle, whatever it took."""

    def __init__(self) -> None:
        self._answer: PlanResult | PlanFailure | None = None

    @property
    def busy(self) -> bool:
        """An answer waits."""
        return self._answer is not None

    def warm(self) -> None:
        """Nothing to start."""

    def start(self, request: PlanRequest) -> None:
        """Solve now."""
        try:
            self._answer = make_plan(request)
        except (PlacementError, ValueError) as error:
            self._answer = PlanFailure(
                "planning_failed", f"the solver refused: {type(error).__name__}: {error}"
            )

    def poll(self) -> PlanResult | PlanFailure | None:
        """The answer, once."""
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Drop the answer."""
        self._answer = None


class Group:
    """The ranks: they count what they route, report what they serve, and switch an offer that they find, all together.

    ``live``: the map that they serve.
    """

    def __init__(
        self, facts: PoolFacts, phase: Phase, rows: NDArray[np.int32], store: MemoryStore, kernels: Roofline
    ) -> None:
        self._facts, self._phase, self._store, self._kernels = facts, phase, store, kernels
        self._topology = Topology.uniform(
            ranks=facts.ranks, nodes=facts.nodes, slots_per_rank=facts.slots_per_rank
        )
        self.live = LiveMap(facts, rows, None, 0)
        self._totals = np.zeros((facts.ranks, facts.layers, facts.experts), dtype=np.int64)
        self._tokens = np.zeros(facts.ranks, dtype=np.int64)
        self._steps = self._frames = 0
        self._switched: Offer | None = None
        self._term = 0
        self._report()

    def take_offer(self) -> None:
        """Switch the wave that is on offer, unless it is the one switched last."""
        offer = read_desired(self._store.read_desired()).offer
        if offer is None or (self._switched is not None and offer.key == self._switched.key):
            return
        wanted = [c for c in offer.changes if int(self.live.digests[c.layer]) == c.base_digest]
        self.live.replace(wanted, (), offer.map_version if offer.wave == offer.waves - 1 else None)
        self._switched, self._term = offer, offer.term
        self._report()

    def publish(self, steps: Steps, now_ms: int) -> None:
        """One frame of every rank, with every step of a window as a sample and its time by the kernels; kind ``routed``."""
        self._steps += len(steps.batch)
        self._frames += 1
        live, step_us = live_map_digest(self.live.digests), self._step_us(steps)
        for rank in range(self._facts.ranks):
            self._totals[rank] += steps.tokens[:, rank].sum(axis=0)
            self._tokens[rank] += steps.batch[:, rank].sum()
            node = rank * self._facts.nodes // self._facts.ranks
            self._store.frames.append((now_ms, node, self._frame(rank, steps, step_us, live, now_ms)))

    def _step_us(self, steps: Steps) -> NDArray[np.float64]:
        """Time of the expert layers of each step, float64 [steps]: layer after layer, each as long as its costliest rank."""
        routed = steps.routed()
        trace = LoadTrace(routed, steps_per_slice=np.ones(len(routed), dtype=np.int64))
        score = evaluate(Placement(self.live.rows), trace, self._topology, cost=self._kernels)
        return np.asarray(np.cumsum(score.rank_cost.max(axis=2), axis=1)[:, -1], dtype=np.float64)

    def _frame(
        self, rank: int, steps: Steps, step_us: NDArray[np.float64], live_digest: int, now_ms: int
    ) -> Frame:
        header = FrameHeader(
            pool=self._facts.pool,
            rank=rank,
            ranks=self._facts.ranks,
            kind=Kind.ROUTED,
            scope_copies=1,
            incarnation=1 + rank,
            run_id=RUN_ID,
            term_seen=self._term,
            seq=self._frames,
            group_step=self._steps,
            age_ms=now_ms - ORIGIN_MS,
            stride=1,
            live_digest=live_digest,
        )
        samples = tuple(
            StepSample(
                group_step=steps.first_step + at + 1,
                phase=self._phase,
                tokens=int(steps.batch[at, rank]),
                live_digest=NO_MAP_DIGEST,
                counts=steps.tokens[at, rank],
                step_us=float(step_us[at]),
            )
            for at in range(len(steps.batch))
        )
        totals = PhaseTotals(self._phase, self._steps, int(self._tokens[rank]), self._totals[rank].copy())
        none = np.full(self._facts.layers, NO_MAP_DIGEST, dtype=np.uint64)
        return Frame(header, none, (totals,), samples=samples)

    def _report(self) -> None:
        offer, live = self._switched, self.live
        record = LiveRecord(
            pool=self._facts.pool,
            rank=0,
            incarnation=1,
            run_id=RUN_ID,
            term_seen=self._term,
            map_version=live.map_version,
            group_step=self._steps,
            state="serving" if offer is None else "switched",
            offer="" if offer is None else offer.key,
            digests=live.wire_digests,
        )
        first = replace(record, facts=self._facts, map_rows=live.wire_rows, shares_rows=live.wire_shares)
        self._store.live[0] = encode_live(first)
        for rank in range(1, self._facts.ranks):
            self._store.live[rank] = encode_live(replace(record, rank=rank, incarnation=1 + rank))
