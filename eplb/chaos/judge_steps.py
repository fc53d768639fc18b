"""What the judge finds in one step: tokens, experts, maps and outputs, each by its own count."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from eplb.chaos.load import drifting_picks, picks_of
from eplb.demo.model import ModelSpec
from eplb.demo.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.chaos.messages import GroupStep, JudgePlan, Served

TOKENS_LOST, EXPERTS_LOST, DIVERGENCES, MISMATCHES, STUCK = (
    "tokens lost",
    "experts lost",
    "map divergences",
    "output mismatches",
    "stuck",
)
COUNTS = (TOKENS_LOST, EXPERTS_LOST, DIVERGENCES, MISMATCHES, STUCK)
TOLERANCE = 1e-4
"""Largest |output - reference| / (1 + |reference|) of a right output: float32 sums in another order stay below 1e-5, another expert's
output differs by more than 1e-2."""
_HALF = 0.5001
"""A half is rounded up even where the noise of floats has made it less."""

Found = tuple[str, int, str]
"""(count, by how much, sentence)."""


def map_name(part: Served) -> str:
    """The judge's own digest of the map that a rank served, shares included."""
    raw = part.rows.astype("<i4").tobytes() + part.shares.astype("<f8").tobytes()
    return blake2b(raw, digest_size=6).hexdigest()


def lost_tokens(step: GroupStep, top_k: int) -> list[Found]:
    """Tokens that were sent and did not come back, or whose contributions did not all arrive and return."""
    found: list[Found] = []
    for rank, due in step.inputs.items():
        part = step.parts.get(rank)
        if part is None:
            found.append((TOKENS_LOST, len(due.sequences), f"rank {rank} gave no outputs"))
            continue
        same = np.array_equal(due.sequences, part.tokens.sequences) and np.array_equal(
            due.positions, part.tokens.positions
        )
        if not same or len(part.outputs) != len(due.sequences):
            found.append(
                (TOKENS_LOST, len(due.sequences), f"rank {rank} served other tokens than it was given")
            )
        if part.sent != part.combined:
            missing = max(1, abs(part.sent - part.combined))
            found.append(
                (
                    TOKENS_LOST,
                    missing,
                    f"rank {rank} sent {part.sent} contributions, {part.combined} came back",
                )
            )
    pairs = top_k * sum(len(due.sequences) for due in step.inputs.values())
    arrived = np.sum([part.received.sum(axis=1) for part in step.parts.values()], axis=0)
    return found + [
        (
            TOKENS_LOST,
            abs(int(arrived[layer]) - pairs),
            f"in row {layer} {arrived[layer]} of {pairs} rows arrived",
        )
        for layer in np.flatnonzero(arrived != pairs).tolist()
    ]


def row_digest(model_layer: int, row: NDArray[np.int32], shares: NDArray[np.float64]) -> int:
    """What a rank must report that it serves, by the judge's own hand: int32 [slots], float64 [slots] -> unsigned 64-bit.

    Shares are named in millionths, halves upwards, and only where they are not even.
    """
    raw = int(model_layer).to_bytes(4, "little") + np.ascontiguousarray(row, dtype="<i4").tobytes()
    millionths, even = np.zeros(len(row), dtype="<i8"), True
    for expert in np.unique(row[row >= 0]).tolist():
        places = np.flatnonzero(row == expert)
        given, alike = _millionths(shares[places]), _millionths(np.full(len(places), 1.0 / len(places)))
        millionths[places] = given
        even = even and np.array_equal(given, alike)
    raw += b"" if even else millionths.tobytes()
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") or 1


def _millionths(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole millionths that add up as the shares do: float64 [copies] -> int64 [copies]."""
    ends = np.floor(np.cumsum(np.nan_to_num(shares)) * 1e6 + _HALF).astype(np.int64)
    return np.diff(ends, prepend=0)


def untrue_digests(step: GroupStep, model_layers: Sequence[int]) -> list[Found]:
    """Ranks whose agent reports another map than the one that the engine dispatched by."""
    known: dict[tuple[int, bytes, bytes], int] = {}
    found: list[Found] = []
    for rank, part in step.parts.items():
        for place, (layer, row, shares) in enumerate(zip(model_layers, part.rows, part.shares, strict=True)):
            name = (layer, row.tobytes(), shares.tobytes())
            if name not in known:
                known[name] = row_digest(layer, row, shares)
            if place >= len(part.digests) or part.digests[place] != known[name]:
                sentence = f"rank {rank} served map {map_name(part)}, but reports another one of row {place}"
                found.append((DIVERGENCES, 1, sentence))
                break
    return found


def divergences(step: GroupStep) -> list[Found]:
    """Ranks that served the step under another map than the group's first one, by rows and shares that they served with and by the digests that they report."""
    first = step.parts[step.members[0]]
    found: list[Found] = []
    for rank, part in step.parts.items():
        if not np.array_equal(part.rows, first.rows):
            sentence = f"rank {rank} served map {map_name(part)}, rank {first.rank} {map_name(first)}"
            found.append((DIVERGENCES, 1, sentence))
        elif not np.array_equal(part.shares, first.shares):
            layers = np.flatnonzero((part.shares != first.shares).any(axis=1)).tolist()
            sentence = f"ranks {rank} and {first.rank} served one map with other shares in rows {layers}"
            found.append((DIVERGENCES, 1, sentence))
        elif part.digests != first.digests:
            found.append((DIVERGENCES, 1, f"ranks {rank} and {first.rank} report other live digests"))
        elif part.run_id != step.run_id:
            found.append((DIVERGENCES, 1, f"rank {rank} served in run {part.run_id}, not {step.run_id}"))
    return found


def lost_experts(step: GroupStep, experts: int, slots_per_rank: int) -> list[Found]:
    """Experts of a layer without a slot on a member, in the map that each rank served."""
    mine = [
        slot for rank in step.members for slot in range(rank * slots_per_rank, (rank + 1) * slots_per_rank)
    ]
    found: list[Found] = []
    for rank, part in step.parts.items():
        for layer, row in enumerate(part.rows[:, mine]):
            missing = sorted(set(range(experts)).difference(row.tolist()))
            if missing:
                found.append(
                    (
                        EXPERTS_LOST,
                        len(missing),
                        f"rank {rank}, row {layer}: no living copy of experts {missing[:8]}",
                    )
                )
    return found


class Outputs:
    """Compares outputs with the same model in one process, without placement, replicas or exchange."""

    def __init__(self, plan: JudgePlan) -> None:
        spec = ModelSpec(
            len(plan.model_layers), plan.experts, plan.top_k, plan.seed, hidden=plan.hidden, inter=plan.inter
        )
        self._picks = drifting_picks(
            seed=plan.seed, layers=len(plan.model_layers), experts=plan.experts, top_k=plan.top_k
        )
        self._reference = Reference(spec)
        self.outputs, self.worst_error = 0, 0.0

    def check(self, steps: Sequence[GroupStep]) -> list[list[Found]]:
        """Wrong outputs of some steps, one list a step; together, because it is faster."""
        parts = [(place, part) for place, step in enumerate(steps) for part in step.parts.values()]
        sequences = np.concatenate([part.tokens.sequences for _, part in parts])
        positions = np.concatenate([part.tokens.positions for _, part in parts])
        given = np.concatenate([part.outputs for _, part in parts])
        picks = picks_of(self._picks, sequences, positions)
        truth = self._reference.states(sequences, positions, picks)[-1]
        error = (np.abs(given - truth) / (1 + np.abs(truth))).max(axis=1)
        error = np.where(np.isfinite(error), error, np.inf)
        self.outputs += len(error)
        self.worst_error = max(self.worst_error, float(error.max(initial=0.0)))
        found: list[list[Found]] = [[] for _ in steps]
        begun = 0
        for place, part in parts:
            mine = error[begun : begun + len(part.outputs)]
            begun += len(part.outputs)
            wrong = int((mine > TOLERANCE).sum())
            if wrong:
                sentence = f"rank {part.rank}: {wrong} of {len(mine)} outputs are wrong, the worst by {mine.max():.2g}"
                found[place].append((MISMATCHES, wrong, sentence))
        return found
