"""A small EP group whose true loads are known: real recorders, real frames, and the answers by plain counting."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collectors.digests import layer_map_digests
from collectors.facts import Kind, Phase, PoolFacts
from collectors.frame import decode_frame, encode_frame
from collectors.recorder import Recorder

OLD_S = 1000.0
"""Age of a group that was born long before the window."""


def facts_of(ranks=4, experts=6, slots_per_rank=2, layers=2):
    return PoolFacts("p", ranks, 1, slots_per_rank, experts, 2, tuple(range(3, 3 + layers)))


@dataclass
class Sent:
    """One frame on its way: when, whose, the bytes, and the true totals [phase][layers, experts] that it tells."""

    time_ms: int
    rank: int
    life: int
    seq: int
    payload: bytes
    truth: dict[Phase, np.ndarray]
    sampled: tuple[int, ...]


@dataclass
class World:
    """Serve steps, publish frames, restart ranks and switch maps; everything follows from the seed."""

    facts: PoolFacts
    kind: Kind
    seed: int = 0
    old: bool = False
    copies: int = 1
    stride: int = 1
    time_ms: int = 1_000_000
    run_id: int = 77
    step: int = -1
    sent: list[Sent] = field(default_factory=list)
    step_tokens: dict[int, np.ndarray] = field(default_factory=dict)
    step_loads: dict[int, np.ndarray] = field(default_factory=dict)
    step_phases: dict[int, Phase] = field(default_factory=dict)

    def __post_init__(self):
        facts = self.facts
        self.rng = np.random.default_rng(self.seed)
        self.pool_of_rows = [self.new_row() for _ in range(3)]
        self.rows = np.array([self.new_row() for _ in range(facts.layers)], dtype=np.int32).reshape(
            facts.layers, facts.slots
        )
        self.maps = [self.rows.copy()]
        self.lives = [0] * facts.ranks
        self.born_ms = [self.time_ms - (int(OLD_S * 1000) if self.old else 0)] * facts.ranks
        self.recorders = [self._recorder(rank) for rank in range(facts.ranks)]
        self.truth = [self._zeros() for _ in range(facts.ranks)]

    @property
    def digests(self):
        return layer_map_digests(self.facts.model_layers, self.rows)

    def new_row(self):
        """A random row that holds every expert."""
        extra = self.rng.integers(0, self.facts.experts, self.facts.slots - self.facts.experts)
        return self.rng.permutation(np.concatenate([np.arange(self.facts.experts), extra])).astype(np.int32)

    def _zeros(self):
        return {phase: np.zeros((self.facts.layers, self.facts.experts), dtype=np.int64) for phase in Phase}

    def _recorder(self, rank):
        recorder = Recorder(
            self.facts,
            rank,
            self.kind,
            scope_copies=self.copies,
            stride=self.stride,
            incarnation=1000 * (rank + 1) + self.lives[rank],
            clock=lambda: (self.time_ms - self._born(rank)) / 1000,
        )
        recorder._born_s = 0.0
        assert recorder.register(self.run_id, self.step, self.digests)
        return recorder

    def _born(self, rank):
        return self.born_ms[rank]

    # --- what happens ---------------------------------------------------------------------------------------------

    def serve(self, phase=Phase.DECODE, tokens=None, **times):
        """One forward: every rank routes its tokens, each token's pairs go to a random replica of their experts."""
        facts = self.facts
        self.step += 1
        self.time_ms += 10
        tokens = self.rng.integers(0, 6, facts.ranks) if tokens is None else np.asarray(tokens)
        routed = np.zeros((facts.ranks, facts.layers, facts.experts), dtype=np.int64)
        slots = np.zeros((facts.ranks, facts.layers, facts.slots), dtype=np.int64)
        for rank in range(facts.ranks):
            source = 0 if self.copies > 1 else rank
            rng = np.random.default_rng([self.seed, self.step, source])
            for _ in range(int(tokens[source])):
                for layer in range(facts.layers):
                    for expert in rng.choice(facts.experts, facts.top_k, replace=False):
                        replicas = np.flatnonzero(self.rows[layer] == expert)
                        routed[rank, layer, expert] += 1
                        slots[rank, layer, rng.choice(replicas)] += 1
        self._record(
            routed, slots, np.full_like(tokens, tokens[0]) if self.copies > 1 else tokens, phase, times
        )

    def _record(self, routed, slots, tokens, phase, times):
        facts = self.facts
        sources = slice(0, 1) if self.copies > 1 else slice(None)
        all_slots = slots[sources].sum(axis=0)
        for rank, recorder in enumerate(self.recorders):
            own = slice(rank * facts.slots_per_rank, (rank + 1) * facts.slots_per_rank)
            counts = {
                Kind.ROUTED: routed[rank],
                Kind.ROUTED_SLOTS: slots[rank],
                Kind.RECEIVED_SLOTS: all_slots[:, own],
            }[self.kind]
            recorder.record_step(self.step, phase, counts, int(tokens[rank]), **times)
            self.truth[rank][phase] += self._logical(rank, routed[rank], all_slots)
            assert not recorder.refused, recorder.last_refusal
        self.step_tokens[self.step] = routed[sources].sum(axis=0)
        self.step_loads[self.step] = all_slots.reshape(facts.layers, facts.ranks, facts.slots_per_rank).sum(
            axis=2
        )
        self.step_phases[self.step] = phase

    def _logical(self, rank, routed, all_slots):
        """What this rank's counter holds, by logical expert."""
        if self.kind is not Kind.RECEIVED_SLOTS:
            return routed
        facts, logical = self.facts, np.zeros((self.facts.layers, self.facts.experts), dtype=np.int64)
        for layer in range(facts.layers):
            for slot in range(rank * facts.slots_per_rank, (rank + 1) * facts.slots_per_rank):
                logical[layer, self.rows[layer, slot]] += all_slots[layer, slot]
        return logical

    def publish(self, rank):
        """One frame of one rank leaves."""
        frame = self.recorders[rank].snapshot(0)
        truth = {phase: counts.copy() for phase, counts in self.truth[rank].items()}
        sampled = tuple(sample.group_step for sample in frame.samples)
        self.time_ms += 1
        self.sent.append(
            Sent(self.time_ms, rank, self.lives[rank], frame.header.seq, encode_frame(frame), truth, sampled)
        )
        return self.sent[-1]

    def publish_all(self):
        return [self.publish(rank) for rank in range(self.facts.ranks)]

    def restart(self, rank):
        """The rank's process dies after its last frame and comes back as a new incarnation of the same run."""
        self.publish(rank)
        self.lives[rank] += 1
        self.born_ms[rank] = self.time_ms
        self.recorders[rank] = self._recorder(rank)
        self.truth[rank] = self._zeros()

    def switch(self, layer, row=None):
        """The group begins to serve another row in one layer; few different rows, so that layers return to old ones."""
        self.rows[layer] = (
            self.pool_of_rows[self.rng.integers(len(self.pool_of_rows))] if row is None else row
        )
        self.maps.append(self.rows.copy())
        digest = int(self.digests[layer])
        for recorder in self.recorders:
            recorder.switch({layer: digest})

    # --- the answers ----------------------------------------------------------------------------------------------

    def add_maps(self, window):
        for rows in self.maps:
            window.add_map(layer_map_digests(self.facts.model_layers, rows), rows)

    def expected_sums(self, delivered, window_ms, phase=None):
        """Newest minus first delivered totals of every incarnation; minus 0 if it was born within a window."""
        total = np.zeros((self.facts.layers, self.facts.experts), dtype=np.int64)
        lives = {}
        for sent in delivered:
            lives.setdefault((sent.rank, sent.life), []).append(sent)
        for frames in lives.values():
            frames.sort(key=lambda sent: sent.seq)
            first, last = frames[0], frames[-1]
            young = decode_frame(first.payload).header.age_ms <= window_ms
            for of in Phase if phase is None else [phase]:
                total += last.truth[of] - (0 if young else first.truth[of])
        return (total + self.copies // 2) // self.copies

    def complete_steps(self, delivered):
        """Steps whose samples of every rank were delivered, in order."""
        ranks = {}
        for sent in delivered:
            for step in sent.sampled:
                ranks.setdefault(step, set()).add(sent.rank)
        return sorted(step for step, seen in ranks.items() if len(seen) == self.facts.ranks)


def deliver(window, sent):
    for frame in sent:
        window.ingest(frame.time_ms, 0, frame.payload)
