"""The facts of one demo run, the same for the parent and every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectors.facts import PoolFacts
from eplb.demo.batch import Batch
from eplb.demo.model import ModelSpec
from eplb.errors import ConfigError
from eplb.start_map import start_map

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eplb.demo.routing import Routing

POOL = "demo"
REQUESTS = 64
REDUNDANT_SLOTS = 8
GATE_STEPS = 20
PUBLISH_INTERVAL_S = 0.5
EASED_PAUSE_S = 0.15
"""Pause before each step while the solver works."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Shape of the group and of the model, the routing that is served, and the seed of everything; ``requests`` in the batch."""

    facts: PoolFacts
    spec: ModelSpec
    routing: Routing
    seed: int
    dispatch: str
    run_id: int
    requests: int = REQUESTS

    def start_map(self) -> NDArray[np.int32]:
        """The map that serving begins with, arange(slots) % experts in every layer: int32 [layers, slots]."""
        return start_map(self.facts.layers, self.facts.experts, self.facts.slots)

    def batch(self) -> Batch:
        """A fresh copy of the continuous batch."""
        return Batch(self.routing, self.requests, self.seed)


def run_facts(routing: Routing, *, ranks: int, seed: int, dispatch: str, run_id: int) -> RunFacts:
    """Facts of a run on ``ranks`` ranks: two nodes where the number is even, at least 8 redundant slots.

    Raises:
        ConfigError: fewer than 2 ranks, more than there are requests, or so few that a rank would hold an expert twice.
    """
    if not 2 <= ranks <= REQUESTS:
        raise ConfigError(f"--ranks {ranks}: the demo runs on 2 to {REQUESTS} ranks")
    slots_per_rank = -(-(routing.experts + REDUNDANT_SLOTS) // ranks)
    spec = ModelSpec(len(routing.model_layers), routing.experts, routing.top_k, seed)
    facts = PoolFacts(
        pool=POOL,
        ranks=ranks,
        nodes=2 if ranks % 2 == 0 else 1,
        slots_per_rank=slots_per_rank,
        experts=routing.experts,
        top_k=routing.top_k,
        model_layers=routing.model_layers,
        bytes_per_expert=spec.bytes_per_expert,
    )
    if slots_per_rank > routing.experts:
        raise ConfigError(
            f"--ranks {ranks}: {slots_per_rank} slots a rank for {routing.experts} experts; use more ranks"
        )
    return RunFacts(facts, spec, routing, seed, dispatch, run_id)


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank process is started with; ``rendezvous`` a file path, ``fault`` a word of ``eplb.demo.faults`` or ""."""

    rank: int
    run: RunFacts
    store_url: str
    rendezvous: str
    fault: str


def pool_shape(facts: PoolFacts) -> dict[str, Any]:
    """What a daemon's configuration says of a pool's shape; how it is to be balanced is each run's own."""
    return {
        "name": facts.pool,
        "topology": {
            "ranks": facts.ranks,
            "nodes": facts.nodes,
            "slots_per_rank": facts.slots_per_rank,
        },
        "model": {
            "experts": facts.experts,
            "top_k": facts.top_k,
            "moe_layers": list(facts.model_layers),
            "bytes_per_expert": facts.bytes_per_expert,
        },
        "kind": "received_slots",
        "phases": ["decode"],
    }
