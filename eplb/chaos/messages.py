"""What driver, ranks and judge tell each other; plain facts, so that the judge needs nothing of the agent to read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from eplb.chaos.load import Tokens


# --- driver to rank ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """Build a group of these pool ranks; ``rendezvous`` a file path that no group has used before; ``after_step`` the last step
    that was served; ``first`` all hold the start map.
    """

    run_id: int
    members: tuple[int, ...]
    rendezvous: str
    after_step: int
    first: bool = False


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve one step; ``orders`` faults to begin or end before it: (name, value)."""

    step: int
    tokens: Tokens
    orders: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave in good order."""


# --- rank to driver, and on to the judge ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank has started and waits for orders."""

    rank: int


@dataclass(frozen=True, slots=True)
class Formed:
    """A rank is in the new group, or says why not; ``reloaded`` (layer, expert) that came from the checkpoint, ``seconds`` it took."""

    rank: int
    run_id: int
    error: str = ""
    reloaded: tuple[tuple[int, int], ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Broken:
    """A rank's group failed in the middle of a step."""

    rank: int
    step: int
    error: str


@dataclass(frozen=True, slots=True)
class Served:
    """One step of one rank.

    ``tokens`` those that it served. ``outputs``: float32 [tokens, hidden] after the last layer. ``received``: int64 [layers, slots_per_rank], rows
    that arrived at its slots. ``sent``, ``combined`` contributions. ``rows``: int32 [layers, slots] and ``shares``: float64 [layers, slots], the map that its
    dispatch tables were built from; ``digests`` of that map by layer as its agent reports them. ``switched`` key of the offer that it switched to before this step, "" = none, at
    ``switched_s`` of the host's monotonic clock. ``happened`` faults that took effect since its last step. ``note`` why its agent is stuck.
    """

    rank: int
    run_id: int
    step: int
    tokens: Tokens
    outputs: NDArray[np.float32]
    received: NDArray[np.int64]
    sent: int
    combined: int
    rows: NDArray[np.int32]
    shares: NDArray[np.float64]
    digests: tuple[int, ...]
    term_seen: int
    map_version: int
    agent_state: str
    switched: str = ""
    switched_s: float = 0.0
    happened: tuple[str, ...] = ()
    note: str = ""


# --- driver to judge --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One step as it was sent and as it came back; ``inputs`` and ``parts`` by pool rank, ``done_s`` on the host's monotonic clock."""

    step: int
    run_id: int
    members: tuple[int, ...]
    inputs: dict[int, Tokens]
    parts: dict[int, Served]
    done_s: float


@dataclass(frozen=True, slots=True)
class FaultNote:
    """A fault began or (``healed``) is over; ``number`` tells faults apart."""

    number: int
    kind: str
    detail: str
    at_s: float
    healed: bool


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """What the judge is started with: the seed of model and load, their shape, and where the store is."""

    seed: int
    socket: str
    pool: str
    ranks: int
    slots_per_rank: int
    experts: int
    top_k: int
    model_layers: tuple[int, ...]
    hidden: int
    inter: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be: ``word`` which count it belongs to, ``weight`` by how much."""

    word: str
    weight: int
    sentence: str
    at_s: float
    step: int
    faults: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """What the judge has counted so far; ``waves`` offers that were committed, ``shares_only`` those of them that moved no expert, ``shares_faulted`` those of these that were switched to while a fault was under way, ``refused`` by a rank, ``aborted``: withdrawn, expired, offered again or lost with the store."""

    steps: int = 0
    tokens: int = 0
    outputs: int = 0
    worst_error: float = 0.0
    waves: int = 0
    shares_only: int = 0
    shares_faulted: int = 0
    refused: int = 0
    aborted: int = 0
    offers: int = 0
    terms: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    longest_gap_s: float = 0.0
    longest_plan_s: float = 0.0
    loaded: tuple[str, ...] = ()
