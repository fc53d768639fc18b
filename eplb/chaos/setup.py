"""Shape and settings of a chaos run: small enough for two cores, with every wait of production cut to seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.facts import PoolFacts
from eplb.chaos.load import DRIFTS, TOKENS_PER_DRIFT, drifting_picks
from eplb.demo.model import ModelSpec
from eplb.demo.routing import Routing
from eplb.demo.setup import pool_shape

if TYPE_CHECKING:
    from pathlib import Path


POOL = "chaos"
RANKS, NODES, SLOTS_PER_RANK, EXPERTS, TOP_K, LAYERS = 4, 2, 12, 32, 2, 4
"""Three ranks hold 36 slots, so that a pool that lost one still has a place for each of the 32 experts."""
HIDDEN, INTER = 32, 48
TOKENS_PER_STEP = 96
STEP_S = 0.015
GATE_STEPS = 20
EVEN, WEIGHTED = "even", "weighted"
DISPATCHES = (EVEN, WEIGHTED)
"""How the ranks split an expert's tokens over its replicas: evenly, or by the shares of the live map, which the daemon then plans for."""
STAGING_SLOTS = 9
"""Three quarters of what a rank holds of a layer, so that a plan takes several waves and yet ends in seconds."""
PUBLISH_S, HEARTBEAT_S = 0.3, 1.0
CYCLE_S, STORE_TIMEOUT_S, LEASE_S = 0.2, 0.6, 2.5
COOLDOWN_S, OFFER_EXPIRES_S = 1.0, 5.0
PRICE_US_PER_TOKEN = 50.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The pool, the model and the load of one run, and how often ranks tell of themselves."""

    facts: PoolFacts
    spec: ModelSpec
    routing: Routing
    seed: int
    publish_s: float = PUBLISH_S
    heartbeat_s: float = HEARTBEAT_S


def run_facts(seed: int) -> RunFacts:
    """Everything that follows from the seed."""
    spec = ModelSpec(LAYERS, EXPERTS, TOP_K, seed, hidden=HIDDEN, inter=INTER)
    model_layers = tuple(range(3, 3 + LAYERS))
    facts = PoolFacts(
        pool=POOL,
        ranks=RANKS,
        nodes=NODES,
        slots_per_rank=SLOTS_PER_RANK,
        experts=EXPERTS,
        top_k=TOP_K,
        model_layers=model_layers,
        bytes_per_expert=spec.bytes_per_expert,
    )
    routing = Routing(
        name="drifting",
        picks=drifting_picks(seed=seed, layers=LAYERS, experts=EXPERTS, top_k=TOP_K),
        offsets=np.arange(DRIFTS + 1, dtype=np.int64) * TOKENS_PER_DRIFT,
        domain_of=np.zeros(DRIFTS, dtype=np.int8),
        domains=("drifting", "none"),
        model_layers=model_layers,
        experts=EXPERTS,
    )
    return RunFacts(facts, spec, routing, seed)


def daemon_config(facts: PoolFacts, store_url: str, dispatch: str, folder: Path) -> dict[str, Any]:
    """Settings of one daemon; ``folder`` holds what it keeps on disk, ``dispatch`` is one of ``DISPATCHES``."""
    return {
        "store": {"url": store_url, "timeout_s": STORE_TIMEOUT_S, "lease_ttl_s": LEASE_S},
        "cycle_s": CYCLE_S,
        "http": {"port": 0},
        "advice_folder": str(folder / "plans"),
        "state_folder": str(folder / "state"),
        "pools": [
            {
                **pool_shape(facts),
                "dispatch": dispatch,
                "window": {"window_s": 6.0, "max_slices": 60},
                "gate": {
                    "mode": "auto",
                    "cooldown_s": COOLDOWN_S,
                    "min_interval_s": COOLDOWN_S,
                    # Hot experts come back by turns here, and every move is wanted.
                    "thrash_intervals": 0,
                    "price_us_per_token": PRICE_US_PER_TOKEN,
                    "coverage": 0.7,
                    "min_slices": 8,
                    "min_tokens": 500,
                    "trigger_slices": 2,
                    "min_gain": 0.01,
                    # So that new shares alone, where dispatch is weighted, are often enough.
                    "target_excess": 0.08,
                },
                "solver": {"effort": "fast", "deadline_s": 15.0},
                "migration": {
                    "gate_steps": GATE_STEPS,
                    "offer_expires_s": OFFER_EXPIRES_S,
                    "staging_slots": STAGING_SLOTS,
                },
            }
        ],
    }
