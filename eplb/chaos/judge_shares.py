"""What the judge finds of shares: whether those of each expert add up, and whether its tokens went where they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.chaos.judge_steps import DIVERGENCES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.chaos.judge_steps import Found
    from eplb.chaos.messages import GroupStep

SUM_SLACK = 1e-6
SLACK_TOKENS = 5.0
"""Tokens of one source by which a slot may be off at any time: the sequence by which a source deals an expert's tokens stays within 5 of any share
for the first 200,000 of them (measured)."""


def unsound_shares(step: GroupStep, experts: int, slots_per_rank: int) -> list[Found]:
    """Rows of a rank in which the shares of an expert do not add up to one over its copies on members."""
    mine = [
        slot for rank in step.members for slot in range(rank * slots_per_rank, (rank + 1) * slots_per_rank)
    ]
    found: list[Found] = []
    for rank, part in step.parts.items():
        for layer, (row, given) in enumerate(zip(part.rows[:, mine], part.shares[:, mine], strict=True)):
            held = row >= 0
            shares = np.where(given >= 0, given, np.nan)
            total = np.bincount(row[held], weights=shares[held], minlength=experts)
            wrong = np.flatnonzero(~(np.abs(total - 1.0) <= SUM_SLACK))
            wrong = wrong[np.isin(wrong, row)]
            if len(wrong):
                named = ", ".join(f"{expert} {total[expert]:.6f}" for expert in wrong[:4].tolist())
                sentence = f"rank {rank}, row {layer}: shares of experts do not add up to one: {named}"
                found.append((DIVERGENCES, 1, sentence))
    return found


class Arrivals:
    """Counts what arrives at each slot for as long as a group serves one map, and compares it with the shares."""

    def __init__(self) -> None:
        self._run_id = 0
        self._map = b""
        self._counts: NDArray[np.int64] | None = None
        self._told = False

    def check(self, step: GroupStep) -> list[Found]:
        """The slot that is furthest from its share, once a map, if it is further than chance and rounding allow."""
        first = step.parts[step.members[0]]
        arrived = _by_slot(step, first.rows.shape)
        served = first.rows.tobytes() + first.shares.tobytes()
        switched = any(part.switched for part in step.parts.values())
        if self._counts is None or switched or (self._run_id, self._map) != (step.run_id, served):
            self._run_id, self._map, self._told = step.run_id, served, False
            self._counts = np.zeros(first.rows.shape, dtype=np.int64)
        self._counts += arrived
        off = np.abs(self._counts - _due(self._counts, first.rows, first.shares))
        if self._told or off.max(initial=0.0) <= SLACK_TOKENS * len(step.members):
            return []
        self._told = True
        layer, slot = np.unravel_index(int(off.argmax()), off.shape)
        expert = int(first.rows[layer, slot])
        total = int(self._counts[layer][first.rows[layer] == expert].sum())
        sentence = (
            f"row {layer}: slot {slot} got {self._counts[layer, slot]} of {total} tokens of expert {expert}, "
            f"its share is {first.shares[layer, slot]:.3f}"
        )
        return [(DIVERGENCES, 1, sentence)]


def _by_slot(step: GroupStep, shape: Sequence[int]) -> NDArray[np.int64]:
    """What arrived at every slot: int64 [layers, slots]."""
    arrived = np.zeros(shape, dtype=np.int64)
    for rank, part in step.parts.items():
        width = part.received.shape[1]
        arrived[:, rank * width : (rank + 1) * width] = part.received
    return arrived


def _due(
    counts: NDArray[np.int64], rows: NDArray[np.int32], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What each slot should have got of all that came for its expert: float64 [layers, slots], 0 where it is empty."""
    due = np.zeros(rows.shape)
    for layer, row in enumerate(rows):
        held = row >= 0
        total = np.bincount(row[held], weights=counts[layer, held])
        due[layer, held] = total[row[held]] * shares[layer, held]
    return due
