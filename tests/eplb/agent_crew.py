"""A whole EP group in one process: real agents on threads, with weights that say which expert they are."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digest
from collectors.facts import PoolFacts
from eplb.agent import Agent, LayerChange, LocalLink, Offer, Switched, ThreadGroup, ThreadTransport
from eplb.agent.digests import DigestTable, expert_digest
from eplb.agent.memory import own_slots
from eplb.agent.offers import asked_of
from eplb.agent.wire import encode_offer
from eplb.protocol import ALL_GUARDS, Event, Known, RankState, decide_rank

if TYPE_CHECKING:
    from eplb.agent.live import LiveMap

GATE_STEPS = 20
RUN_ID = 77
NAMES = ("w13", "w2", "w13_scale")
SIZES = {"w13": 96, "w2": 41, "w13_scale": 3}
FACTS = PoolFacts("p", ranks=4, nodes=2, slots_per_rank=3, experts=8, top_k=2, model_layers=(3, 4, 7))


def start_map(facts: PoolFacts = FACTS) -> np.ndarray:
    return np.tile(np.arange(facts.slots, dtype=np.int32) % facts.experts, (facts.layers, 1))


def expert_bytes(layer: int, expert: int, name: str) -> np.ndarray:
    rng = np.random.default_rng([layer, expert, NAMES.index(name)])
    return rng.integers(0, 256, SIZES[name], dtype=np.uint8)


class CrewMemory:
    """Weights of one rank in one storage by name; a slot can be made to reject writes, as broken memory would."""

    def __init__(self, facts: PoolFacts, rank: int, rows: np.ndarray) -> None:
        self._first = own_slots(facts, rank)[0]
        self.storage = {
            name: np.zeros((facts.layers, facts.slots_per_rank, size), dtype=np.uint8)
            for name, size in SIZES.items()
        }
        for layer in range(facts.layers):
            for slot in own_slots(facts, rank):
                if rows[layer, slot] >= 0:
                    for name in NAMES:
                        self.tensors(layer, slot)[name][:] = expert_bytes(layer, int(rows[layer, slot]), name)

    def names(self) -> tuple[str, ...]:
        return NAMES

    def tensors(self, layer: int, slot: int) -> dict[str, np.ndarray]:
        return {name: self.storage[name][layer, slot - self._first] for name in NAMES}


class ProbedMemory(CrewMemory):
    """The same with a probe: the mean byte of each tensor."""

    def probe(self, layer: int, tensors) -> np.ndarray:
        return np.array([float(np.mean(tensors[name])) for name in NAMES])


class RecorderLog:
    """What a recorder of counts is told, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def begin_flight(self, layers) -> None:
        self.calls.append(("begin", tuple(layers)))

    def end_flight(self, layers) -> None:
        self.calls.append(("end", tuple(layers)))

    def switch(self, layer_digests) -> None:
        self.calls.append(("switch", dict(layer_digests)))


class Clock:
    """The rank's own clock, which a test can push forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class CrewLink(LocalLink):
    """A link whose store can go away: the cache then keeps what it had and grows old."""

    away = False

    def wanted(self):
        known = super().wanted()
        return replace(known, read_s=known.read_s - 60.0) if known is not None and self.away else known


def change(facts: PoolFacts, layer: int, base: np.ndarray, target: np.ndarray, shares=None) -> LayerChange:
    model_layer = facts.model_layers[layer]
    return LayerChange(
        layer,
        layer_map_digest(model_layer, base),
        layer_map_digest(model_layer, target, None if shares is None else np.array(shares)),
        tuple(int(x) for x in target),
        shares,
    )


@cache
def model_digest() -> int:
    """Digest of the weights that every crew of ``FACTS`` loads."""
    facts = FACTS
    digests = [
        [
            expert_digest(NAMES, {name: expert_bytes(layer, expert, name) for name in NAMES})
            for expert in range(facts.experts)
        ]
        for layer in range(facts.layers)
    ]
    return DigestTable(np.array(digests, dtype=np.uint64), None).model_digest


def refused(facts: PoolFacts, live: LiveMap, asked: Offer, term_seen: int = 1):
    """What the protocol has against taking an offer on a rank of its run and model, or None."""
    known = Known(
        pool=facts.pool, run_id=RUN_ID, named_run=RUN_ID, model_digest=model_digest(), term_seen=term_seen,
        served=tuple(int(live.digests[c.layer]) for c in asked.changes if c.layer in range(facts.layers)),
    )  # fmt: skip
    given = asked_of(facts, asked, 1)
    return decide_rank(RankState.SERVING, Event.ASKED, given, known, guards=ALL_GUARDS).refusal


def rotated(row: np.ndarray, facts: PoolFacts = FACTS) -> np.ndarray:
    """The row with every rank's experts handed to the next rank: every slot changes, nothing twins."""
    return np.roll(row, facts.slots_per_rank)


def offer(facts: PoolFacts, base: np.ndarray, target: np.ndarray, layers=None, **fields) -> Offer:
    layers = range(facts.layers) if layers is None else layers
    changes = tuple(change(facts, layer, base[layer], target[layer]) for layer in layers)
    given = {
        "pool": facts.pool, "run_id": RUN_ID, "model_digest": model_digest(), "term": 1, "plan_id": "p1", "wave": 0, "waves": 1, "map_version": 1,
        "expires_after_s": 30.0, "changes": changes,
    }  # fmt: skip
    return Offer(**{**given, **fields})


@dataclass
class Crew:
    """Agents of all ranks on threads, driven in step; ``timeout_s`` bounds the wait for a parcel of weights."""

    facts: PoolFacts = FACTS
    rows: np.ndarray = field(default_factory=start_map)
    memory_type: type = CrewMemory
    timeout_s: float = 10.0
    staging_bytes_max: dict[int, int] = field(default_factory=dict)
    transports: dict[int, object] = field(default_factory=dict)
    step_offset: dict[int, int] = field(default_factory=dict)
    guards: frozenset[str] = ALL_GUARDS

    def __post_init__(self) -> None:
        size = self.facts.ranks
        self.clocks = [Clock() for _ in range(size)]
        self.link = CrewLink(self.clocks[0])
        self.memories = [self.memory_type(self.facts, rank, self.rows) for rank in range(size)]
        self.recorders = [RecorderLog() for _ in range(size)]
        self.groups = ThreadGroup.create(size, 30.0)
        self._pace = ThreadGroup.create(size, 60.0)
        made = ThreadTransport.create(size, self.timeout_s)
        self.routes = [self.transports[r](made[r]) if r in self.transports else made[r] for r in range(size)]
        self.agents: list[Agent] = [None] * size
        self.switched: list[list[tuple[int, Switched]]] = [[] for _ in range(size)]
        self.step = 0
        self._everywhere(self._make)

    def _make(self, rank: int) -> None:
        self.agents[rank] = Agent(
            self.facts, self.groups[rank], self.routes[rank], self.memories[rank], self.rows,
            run_id=RUN_ID if rank == 0 else 0, incarnation=rank, gate_steps=GATE_STEPS, link=self.link,
            recorder=self.recorders[rank], staging_bytes_max=self.staging_bytes_max.get(rank), clock=self.clocks[rank],
            guards=self.guards,
        )  # fmt: skip

    def _everywhere(self, action) -> None:
        errors: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                action(rank)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.facts.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def offer(self, asked: Offer | None, term: int | None = None) -> None:
        raw = None if asked is None else encode_offer(asked)
        self.link.offer(raw, (asked.term if asked else 0) if term is None else term)

    def gates(self, count: int = 1) -> None:
        """Run all ranks through so many gates."""
        self.until(lambda agent: False, count)

    def until(self, holds, gates: int = 400) -> None:
        """Run all ranks until ``holds(agent)`` is true on each at the same forward, or for so many gates."""
        first = self.step

        def drive(rank: int) -> None:
            agent = self.agents[rank]
            for step in range(first, first + gates * GATE_STEPS):
                self.forward(rank, step)
                if step % GATE_STEPS == GATE_STEPS - 1:
                    if self._pace[rank].min(int(bool(holds(agent)))):
                        break
                    time.sleep(0.001)

        self._everywhere(drive)
        self.step = self.step + gates * GATE_STEPS  # group steps only grow; the gates count calls

    def forward(self, rank: int, step: int) -> None:
        """One forward of one rank."""
        switched = self.agents[rank].before_forward(step + self.step_offset.get(rank, 0))
        if switched is not None:
            self.switched[rank].append((step, switched))

    def stage(self, asked: Offer) -> None:
        """Bring all ranks to ``prepared`` and keep rank 0 from calling the vote, as a store that is away does."""
        self.offer(asked)
        self.gates(1)
        self.link.away = True
        self.until(lambda agent: agent.state == "prepared")

    def settle(self) -> None:
        """Run until no rank holds an offer and rank 0 has answered the one asked for."""
        self.until(lambda agent: agent.state in {"switched", "refused", "stuck"})

    def states(self) -> list[str]:
        return [agent.state for agent in self.agents]

    def maps(self) -> list[bytes]:
        return [agent.live.tobytes() for agent in self.agents]

    def weights_are_right(self) -> bool:
        """Every slot of every rank holds, in all tensors, the expert that the live map says."""
        for rank, (agent, memory) in enumerate(zip(self.agents, self.memories, strict=True)):
            for layer in range(self.facts.layers):
                for slot in own_slots(self.facts, rank):
                    expert = int(agent.live[layer, slot])
                    for name in NAMES:
                        if expert >= 0 and not np.array_equal(
                            memory.tensors(layer, slot)[name], expert_bytes(layer, expert, name)
                        ):
                            return False
        return True

    def close(self) -> None:
        for agent in self.agents:
            agent.close()
