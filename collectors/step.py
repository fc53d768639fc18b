"""One forward of one rank, after its checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectors.checks import Refusal, checked_counts, conservation_refusal, step_refusal
from collectors.facts import Kind, Phase, PoolFacts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Times = tuple[float | None, float | None, float | None, float | None]
"""step_us, moe_wait_us, a2a_us, expert_us; None = not measured."""
NO_TIMES: Times = (None, None, None, None)


@dataclass(frozen=True, slots=True)
class Step:
    """A forward that may be added: counts int64 [layers, width], tokens; idle = this rank routed nothing."""

    group_step: int
    phase: Phase
    tokens: int
    counts: NDArray[np.int64]
    idle: bool = False
    times_us: Times = NO_TIMES


def checked_step(
    facts: PoolFacts, kind: Kind, last_step: int, *, group_step: Any, phase: Any, counts: Any, tokens: Any
) -> Step | Refusal:
    """The step, or why it is refused; where the rank counts what it routed, its totals must be tokens x top_k."""
    refusal = step_refusal(group_step, phase, tokens, last_step)
    if refusal is not None:
        return refusal
    checked = checked_counts(counts, (facts.layers, facts.width(kind)))
    if isinstance(checked, Refusal):
        return checked
    if kind is not Kind.RECEIVED_SLOTS:
        refusal = conservation_refusal(checked, int(tokens), facts.top_k)
        if refusal is not None:
            return refusal
    return Step(int(group_step), Phase(phase), int(tokens), checked)
