"""How long a wave and a plan take, from bytes, links and steps alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from eplb.agent.rounds import contention_free_rounds, node_of_rank, wave_copies
from eplb.errors import OfferError
from eplb.migration.waves import waves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.rounds import Copy
    from eplb.agent.wire import LayerChange
    from eplb.migration.plan import Plan


class MigrationSettings(Protocol):
    """The settings of migration that durations depend on."""

    @property
    def gate_steps(self) -> int:
        """Group forwards between two gates."""

    @property
    def link_bytes_per_s(self) -> float:
        """One rank's link to another node."""

    @property
    def node_link_bytes_per_s(self) -> float:
        """One rank's link inside its node."""


@dataclass(frozen=True, slots=True)
class Links:
    """What moving costs: bytes per second of one rank's link inside a node and between nodes, and of a copy within a rank;
    ``round_s`` latency of one round (two ends, a thread each); ``gate_s`` time between two gates, in which a switch waits for its vote.
    """

    node_bytes_per_s: float
    bytes_per_s: float
    copy_bytes_per_s: float = 2e9
    round_s: float = 1e-3
    gate_s: float = 0.0

    @classmethod
    def of(cls, settings: MigrationSettings, step_us: float | None) -> Links:
        """From a pool's settings and its mean step time in microseconds; None = not measured, then gates cost nothing."""
        return cls(
            node_bytes_per_s=settings.node_link_bytes_per_s,
            bytes_per_s=settings.link_bytes_per_s,
            gate_s=settings.gate_steps * (step_us or 0.0) / 1e6,
        )


def wave_seconds(facts: PoolFacts, links: Links, copies: Sequence[Copy]) -> float:
    """Predicted seconds from the offer of a wave to its switch; 0 bytes an expert give the waiting alone.

    Rounds follow one another, and in one every rank sends and receives one expert at most, so a round lasts as long as its
    slowest link; after them the rank with the most arrivals writes and reads back each of them. A switch waits for two
    gates, one to stage and one to vote. Derived from the protocol, with links as in the model of Hockney (1994): latency +
    bytes / bandwidth.
    """
    each, width = facts.bytes_per_expert, facts.slots_per_rank
    moving = 0.0
    for part in contention_free_rounds(facts, copies):
        crosses = any(
            node_of_rank(facts, copy.source // width) != node_of_rank(facts, copy.destination // width)
            for copy in part
        )
        moving += links.round_s + each / (links.bytes_per_s if crosses else links.node_bytes_per_s)
    arrivals = np.bincount([copy.destination // width for copy in copies], minlength=1)
    staged = int(arrivals.max(initial=0)) * each * 2 / links.copy_bytes_per_s
    return moving + staged + 2 * links.gate_s


def plan_seconds(
    facts: PoolFacts, links: Links, live: NDArray[np.int32], parts: Sequence[Sequence[LayerChange]]
) -> float:
    """Predicted seconds of all waves, one after the other: ``live`` int32 [layers, slots], the map before the first.

    Raises:
        OfferError: an expert that is to arrive has no holder.
    """
    rows, total = live.copy(), 0.0
    for part in parts:
        total += wave_seconds(facts, links, wave_copies(facts, rows, part))
        for change in part:
            rows[change.layer] = change.target
    return total


def predicted_seconds(
    facts: PoolFacts, links: Links, plan: Plan, live: NDArray[np.int32], wave_slots: int
) -> float | None:
    """Predicted seconds of a whole plan from its base, int32 [layers, slots]; None = some expert has no holder to copy from."""
    try:
        return plan_seconds(
            facts, links, live, waves(facts, plan, live, plan.base_digests, staging_slots=wave_slots)
        )
    except OfferError:
        return None


def layers_in_budget(layer_bytes: int, *, link_bytes_per_s: float, budget_s: float) -> int:
    """Whole layers that a rank can receive in one stall of ``budget_s`` seconds, at least one: a layer is never cut."""
    if layer_bytes <= 0:
        raise ValueError(f"layer_bytes is {layer_bytes}, must be positive")
    return max(1, math.floor(budget_s * link_bytes_per_s / layer_bytes))
