"""Compares every output of every token with the reference, checks conservation and agreement, and names a fault by its symptoms.

| symptom | word |
|---|---|
| ranks serve one step under different maps | ``split-switch`` |
| contributions sent, received and combined differ, or a token is absent | ``lost-token`` |
| everything is conserved, yet an output is wrong | ``wrong-expert`` |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.demo.batch import Batch, BatchTokens
    from eplb.demo.facts import GroupStep
    from eplb.demo.model import Floats
    from eplb.demo.reference import Reference
    from eplb.demo.routing import Routing

SPLIT_SWITCH, LOST_TOKEN, WRONG_EXPERT = "split-switch", "lost-token", "wrong-expert"
TOLERANCE = 1e-4
"""Largest |output - reference| / (1 + |reference|) of a right output: float32 sums in another order stay below 1e-5, another expert's
output differs by more than 1e-2."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: its word and where it was seen."""

    word: str
    sentence: str


@dataclass(slots=True)
class Totals:
    """What was checked so far; ``worst_error`` by the measure of ``TOLERANCE``."""

    steps: int = 0
    tokens: int = 0
    sent: int = 0
    combined: int = 0
    outputs: int = 0
    mismatches: int = 0
    worst_error: float = 0.0


@dataclass(slots=True)
class Checker:
    """Follows the run with its own copy of the batch; give it every step once, in order."""

    routing: Routing
    reference: Reference
    batch: Batch
    totals: Totals = field(default_factory=Totals)
    _next_step: int = 0

    def check(self, steps: list[GroupStep]) -> list[Finding]:
        """Check some consecutive steps; the findings of the first bad step, the most telling first."""
        expected = [self._expected(step) for step in steps]
        errors = self._errors(steps)
        found: list[Finding] = []
        for step, tokens, error in zip(steps, expected, errors, strict=True):
            self._count(step, error)
            if not found:
                found = [
                    *disagreement(step),
                    *lost(step, tokens, self.routing.top_k),
                    *self._wrong(step, error),
                ]
        return found

    def _expected(self, step: GroupStep) -> BatchTokens:
        if step.step != self._next_step:
            raise ValueError(f"step {step.step} came, step {self._next_step} was expected")
        self._next_step += 1
        if step.step > 0:
            self.batch.advance()
        if step.ranks[0].shift_step == step.step:
            self.batch.shift()
        return self.batch.tokens()

    def _errors(self, steps: list[GroupStep]) -> list[NDArray[np.float32]]:
        """Error of every output: float32 [layers, tokens] a step, tokens in rank order, by the measure of ``TOLERANCE``."""
        parts = [rank for step in steps for rank in step.ranks]
        sequences = np.concatenate([part.sequences for part in parts])
        positions = np.concatenate([part.positions for part in parts])
        states: Floats = np.concatenate([part.states for part in parts], axis=1)
        truth = self.reference.states(sequences, positions, self.routing.picks_of(sequences, positions))
        error = (np.abs(states - truth) / (1 + np.abs(truth))).max(axis=2)
        error = np.where(np.isfinite(error), error, np.inf)
        sizes = [sum(len(rank.sequences) for rank in step.ranks) for step in steps]
        return np.split(error, np.cumsum(sizes)[:-1], axis=1)

    def _count(self, step: GroupStep, error: NDArray[np.float32]) -> None:
        totals = self.totals
        totals.steps += 1
        totals.tokens += error.shape[1]
        totals.sent += sum(rank.sent for rank in step.ranks)
        totals.combined += sum(rank.combined for rank in step.ranks)
        totals.outputs += error.size
        totals.mismatches += int((error > TOLERANCE).sum())
        totals.worst_error = max(totals.worst_error, float(error.max(initial=0.0)))

    def _wrong(self, step: GroupStep, error: NDArray[np.float32]) -> list[Finding]:
        bad_layers = np.flatnonzero((error > TOLERANCE).any(axis=1))
        if not len(bad_layers):
            return []
        layer = int(bad_layers[0])  # later layers are wrong because their input is
        bad = np.flatnonzero(error[layer] > TOLERANCE)
        sequences = np.concatenate([rank.sequences for rank in step.ranks])[bad]
        positions = np.concatenate([rank.positions for rank in step.ranks])[bad]
        picks = self.routing.picks_of(sequences, positions)[:, layer, :]
        shared = sorted(set.intersection(*(set(row) for row in picks.tolist())))
        common = f"; all of them picked expert {', '.join(map(str, shared))}" if shared else ""
        return [
            Finding(
                WRONG_EXPERT,
                f"step {step.step}: {len(bad)} of {error.shape[1]} outputs differ from the reference first after model layer "
                f"{self.routing.model_layers[layer]} (token {positions[0]} of sequence {sequences[0]}: error "
                f"{error[layer, bad[0]]:.2g}, tolerance {TOLERANCE:g}), although nothing was lost{common}",
            )
        ]


def disagreement(step: GroupStep) -> list[Finding]:
    """Ranks that served the step under different maps."""
    digests = [rank.live_digest for rank in step.ranks]
    usual = max(set(digests), key=lambda digest: (digests.count(digest), digest))
    odd = [rank.rank for rank in step.ranks if rank.live_digest != usual]
    if not odd:
        return []
    names = ", ".join(f"rank {rank} ({digests[rank]:016x})" for rank in odd)
    return [
        Finding(
            SPLIT_SWITCH, f"step {step.step}: {names} served another map than the other ranks ({usual:016x})"
        ),
    ]


def lost(step: GroupStep, expected: BatchTokens, top_k: int) -> list[Finding]:
    """Tokens that were not served, or contributions that did not arrive at their slot or back at their token."""
    found: list[str] = []
    ranks, layers = len(step.ranks), step.ranks[0].states.shape[0]
    for rank in step.ranks:
        due = expected.of_rank(rank.rank, ranks)
        same = np.array_equal(due.sequences, rank.sequences) and np.array_equal(due.positions, rank.positions)
        if not same:
            found.append(f"rank {rank.rank} served other tokens than the batch holds")
        if rank.sent != rank.combined:
            found.append(f"rank {rank.rank} sent {rank.sent} contributions and combined {rank.combined}")
    pairs = len(expected.sequences) * top_k
    arrived = step.received().sum(axis=1)
    found += [
        f"in row {layer} the slots received {arrived[layer]} rows of {pairs} sent"
        for layer in range(layers)
        if arrived[layer] != pairs
    ]
    return [Finding(LOST_TOKEN, f"step {step.step}: {'; '.join(found)}")] if found else []
