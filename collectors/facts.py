"""The facts that travel from a rank to the daemon.

Everything here is frozen; arrays are documented with shape, dtype and unit and are never written to after creation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from collectors.errors import FactsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_MAP_DIGEST = 0
"""Digest of rows that are counted in logical ids, which no map can change."""


class Kind(IntEnum):
    """What an engine's counter holds; there is no default."""

    ROUTED = 1
    """This rank's tokens by logical expert, [layers, experts]."""
    ROUTED_SLOTS = 2
    """This rank's tokens over all slots of the group, [layers, slots]."""
    RECEIVED_SLOTS = 3
    """Tokens that this rank's own slots received, [layers, slots_per_rank]."""


class Phase(IntEnum):
    """What a step did; a property of the step, not of the pool."""

    MIXED = 0
    PREFILL = 1
    DECODE = 2


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The shape of one pool: one EP group, one model state, one pipeline stage.

    ``model_layers`` holds the model's layer number of every row (its position is the MoE index).
    ``bytes_per_expert`` counts all tensors of one expert of one layer, in bytes; 0 = unknown.

    Raises:
        FactsError: the slots cannot hold every expert, or a number is not positive.
    """

    pool: str
    ranks: int
    nodes: int
    slots_per_rank: int
    experts: int
    top_k: int
    model_layers: tuple[int, ...]
    bytes_per_expert: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "nodes", "slots_per_rank", "experts", "top_k"):
            if getattr(self, name) < 1:
                raise FactsError(f"pool {self.pool!r}: {name} is {getattr(self, name)}, must be at least 1")
        if self.slots < self.experts:
            need = -(-self.experts // self.ranks)
            raise FactsError(
                f"pool {self.pool!r}: {self.ranks} ranks x {self.slots_per_rank} slots = {self.slots} slots cannot hold "
                f"{self.experts} experts; use at least {need} slots per rank"
            )
        if len(set(self.model_layers)) != len(self.model_layers):
            raise FactsError(f"pool {self.pool!r}: model_layers names a layer twice: {self.model_layers}")

    @property
    def slots(self) -> int:
        """Slots of the whole group in one layer."""
        return self.ranks * self.slots_per_rank

    @property
    def layers(self) -> int:
        """Number of MoE layers, which is the number of rows in every array."""
        return len(self.model_layers)

    def width(self, kind: Kind) -> int:
        """Columns of a count array of this kind."""
        return {
            Kind.ROUTED: self.experts,
            Kind.ROUTED_SLOTS: self.slots,
            Kind.RECEIVED_SLOTS: self.slots_per_rank,
        }[kind]


@dataclass(frozen=True, slots=True)
class StepSample:
    """The full count vector of one group step on one rank.

    ``counts``: int64 [layers, width], tokens, in the ids of the frame's kind.
    ``tokens``: tokens that this rank routed in the step (idle ranks: 0), so that over the group
    ``sum(tokens) * top_k == sum(counts)`` in every layer proves the alignment of the samples.
    ``live_digest``: digest of the whole live map the step was served with (NO_MAP_DIGEST for ROUTED).
    Times are in microseconds; None = not measured, never 0.
    """

    group_step: int
    phase: Phase
    tokens: int
    live_digest: int
    counts: NDArray[np.int64]
    step_us: float | None = None
    moe_wait_us: float | None = None
    a2a_us: float | None = None
    expert_us: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseTotals:
    """Running totals of one phase since the incarnation began, or since each layer's last switch of map.

    ``counts``: int64 [layers, width], tokens. ``tokens``: tokens that this rank routed. ``steps``: forwards counted.
    ``tokens`` and ``steps`` never restart within an incarnation; a row of ``counts`` restarts at 0 when its layer switches,
    or at its closed row if it returns to a map whose closed row is still repeated: by (layer, phase, map digest) it never
    falls while frames speak of it. A phase that is absent has counted nothing.
    """

    phase: Phase
    steps: int
    tokens: int
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClosedRow:
    """The final totals of one layer under a map that it no longer serves: int64 [width], tokens."""

    layer: int
    phase: Phase
    digest: int
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Who speaks, for which life of which group, and under which map.

    ``incarnation`` one life of the rank's process; ``run_id`` one life of the group, given by its rank 0.
    ``term_seen`` the newest leadership term the rank knows. ``seq`` grows by one a frame within an incarnation.
    ``group_step`` the last step that the totals include. ``age_ms`` milliseconds since the incarnation began, by the
    rank's own monotonic clock. ``scope_copies`` 1 = distinct tokens, n = n ranks report the same tokens.
    ``stride`` steps between step samples. ``live_digest`` digest of the whole live map.
    ``layers_in_flight`` positions of layers between two maps.
    """

    pool: str
    rank: int
    ranks: int
    kind: Kind
    scope_copies: int
    incarnation: int
    run_id: int
    term_seen: int
    seq: int
    group_step: int
    age_ms: int
    stride: int
    live_digest: int
    layers_in_flight: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of one rank: totals, rows closed by a switch, and step samples.

    ``layer_digests``: uint64 [layers], the map that each row of the totals is counted under
    (NO_MAP_DIGEST for ROUTED). ``closed`` rows are repeated for some frames after a switch, so that a lost frame loses
    nothing.
    """

    header: FrameHeader
    layer_digests: NDArray[np.uint64]
    totals: tuple[PhaseTotals, ...]
    closed: tuple[ClosedRow, ...] = ()
    samples: tuple[StepSample, ...] = ()
