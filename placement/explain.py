"""Say what a solve fixed, skipped or could not do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.placement import violations
from placement.result import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placement.bounds import Bound
    from placement.limits import Limits
    from placement.placement import Placement, Violation
    from placement.policy import Policy
    from placement.result import Point
    from placement.topology import Topology
    from placement.trace import LoadTrace

MUCH = 0.05
"""Part above the mean from which a layer is said to need replicas."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the reasons are drawn from."""

    trace: LoadTrace
    topology: Topology
    current: Placement | None
    limits: Limits
    repair_moves: int
    chosen: Point
    start: float | None
    layer_bounds: tuple[Bound, ...]
    truncated: bool
    most_slices: int
    policy: Policy
    counts_tokens: bool


def reasons(facts: Facts) -> tuple[Reason, ...]:
    """List every reason, repairs first."""
    return (*_repairs(facts), *_load(facts), *_limits(facts))


def _repairs(facts: Facts) -> Iterator[Reason]:
    if facts.current is None:
        return
    found = violations(facts.current, facts.topology, facts.trace.experts)
    for code in dict.fromkeys(violation.code for violation in found):
        same = [violation for violation in found if violation.code == code]
        text = f"repaired {len(same)} of kind {code}, the first: {same[0].sentence}"
        yield Reason(f"repaired_{code}", text, tuple(_place(violation) for violation in same))
    lost = tuple((v.layer, v.expert) for v in found if v.code == "missing_expert")
    if lost:
        text = f"layer {lost[0][0]}, expert {lost[0][1]}" + (
            f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        )
        yield Reason("reload", f"no live rank holds the weights of {text}: they must be loaded again", lost)
    if facts.start is not None and facts.chosen.objective > facts.start:
        text = f"the repairs raise the objective from {facts.start:.4f} to {facts.chosen.objective:.4f}"
        yield Reason("repair_costs", text)


def _place(violation: Violation) -> tuple[int, int]:
    return violation.layer, violation.slot if violation.slot >= 0 else violation.expert


def _load(facts: Facts) -> Iterator[Reason]:
    loaded = facts.trace.tokens.any(axis=(0, 2))
    empty = np.flatnonzero(~loaded).tolist()
    if empty:
        text = f"{len(empty)} of {facts.trace.layers} layers have no load: " + _named(empty)
        yield Reason("no_data", f"{text}; no move is made there for balance", tuple((at, -1) for at in empty))
    hot = [at for at, bound in enumerate(facts.layer_bounds) if bound.replica_granularity > MUCH]
    if hot and facts.counts_tokens:
        text = f"in {len(hot)} layers ({_named(hot)}) an expert's copies are each above a rank's fair share"
        yield Reason(
            "needs_replicas",
            f"{text}: only more redundant slots lower the bound there",
            tuple((at, -1) for at in hot),
        )
    if facts.trace.slices > facts.most_slices:
        text = f"the search weighed {facts.most_slices} evenly spaced slices of {facts.trace.slices}"
        yield Reason("slices_chosen", f"{text}; the objective counts them all")


def _named(layers: list[int]) -> str:
    shown = ", ".join(str(at) for at in layers[:8])
    return f"layers {shown}" + (", ..." if len(layers) > 8 else "")


def _limits(facts: Facts) -> Iterator[Reason]:
    limit = facts.limits.moves
    if limit is not None and facts.current is not None and facts.repair_moves > limit:
        text = f"the repairs alone need {facts.repair_moves} moves, more than the limit of {limit}"
        yield Reason("repairs_exceed_moves", text)
    if facts.policy.reason is not None:
        yield facts.policy.reason
    if facts.truncated:
        yield Reason("truncated", "the search was stopped early: a longer one may find a better map")
