"""The engine that moves experts by itself: what the agent asks of it, and what it is told it really routes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from eplb.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """What an engine routes one layer by.

    ``row``: int32 [slots], -1 = empty, or weights that are not sound. ``shares``: float64 [slots], None while dispatch is not weighted.
    """

    row: NDArray[np.int32]
    shares: NDArray[np.float64] | None = None


class Mover(Protocol):
    """An engine that moves and commits layers by itself; called before forwards, by the thread that runs them. Nothing here blocks."""

    @property
    def model_digest(self) -> int:
        """Digest of the weights that are loaded, 0 to 2^63 - 1, the same on all ranks and for every life with these weights."""
        ...

    def begin(self, changes: Sequence[LayerChange]) -> None:
        """Bring these layers to their target rows and shares; all ranks are told between the same two forwards."""
        ...

    def committed(self) -> Sequence[int]:
        """Layers that are done with since ``begin``, well or not; a layer once named stays as it is until the next ``begin``."""
        ...

    def read_back(self, layer: int) -> Routed:
        """What this rank really routes a layer by now: read where the router reads it, never what was asked for."""
        ...


def checked(facts: PoolFacts, routed: Routed) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Row, int32 [slots], and shares, float64 [slots] or None, as copies, if they can be those of a layer of this pool.

    Raises:
        MigrationError: they cannot.
    """
    row = np.asarray(routed.row)
    if row.shape != (facts.slots,) or row.dtype.kind not in "iu":
        raise MigrationError(
            f"read back a row {row.dtype} {row.shape}, this pool needs int32 ({facts.slots},)"
        )
    if row.min() < -1 or row.max() >= facts.experts:
        raise MigrationError(
            f"read back experts {row.min()} to {row.max()}, ids are 0..{facts.experts - 1} or -1"
        )
    if routed.shares is None:
        return row.astype(np.int32), None
    shares = np.array(routed.shares, dtype=np.float64)
    if shares.shape != row.shape or not np.isfinite(shares).all() or shares.min() < 0:
        raise MigrationError(f"read back shares {shares.shape} that are no shares of {facts.slots} slots")
    return row.astype(np.int32), shares
