"""The map that this rank serves: rows, their digests, shares and the number of completed switches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digest, layer_map_digests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange


def even_shares(row: NDArray[np.int32]) -> NDArray[np.float64]:
    """Equal shares for the replicas of each expert: int32 [slots] -> float64 [slots], 0 for empty slots."""
    held = row >= 0
    copies = np.bincount(row[held], minlength=1)
    shares = np.zeros(row.size)
    shares[held] = 1.0 / copies[row[held]]
    return shares


class LiveMap:
    """What a rank serves now; only the forward thread changes it, and only at a switch.

    ``rows``: int32 [layers, slots]. ``digests``: uint64 [layers], of what really stands in the slots. ``shares``: float64
    [layers, slots] or None while dispatch is not weighted.
    """

    def __init__(
        self,
        facts: PoolFacts,
        physical_to_logical: NDArray[np.int32],
        shares: NDArray[np.float64] | None,
        map_version: int,
    ) -> None:
        self._facts = facts
        self.rows = np.array(physical_to_logical, dtype=np.int32)
        self.shares = None if shares is None else np.array(shares, dtype=np.float64)
        self.digests = layer_map_digests(facts.model_layers, self.rows)
        self.map_version = map_version
        self.refresh_wire_rows()

    def has_shares(self, layer: int, shares: Sequence[float] | None) -> bool:
        """True when a layer is served with these shares (None = even, or left to the engine)."""
        if self.shares is None:
            return shares is None
        wanted = even_shares(self.rows[layer]) if shares is None else np.array(shares, dtype=np.float64)
        return bool(np.array_equal(self.shares[layer], wanted))

    def replace(
        self, changes: Sequence[LayerChange], broken: Sequence[tuple[int, int]], map_version: int | None
    ) -> None:
        """Serve the new rows; a layer with a broken slot gets the digest of its row with that slot empty.

        ``broken``: (layer, slot) whose weights are not what the row says, so that no one takes the layer for switched.
        """
        if self.shares is None and any(change.shares is not None for change in changes):
            self.shares = np.stack([even_shares(row) for row in self.rows])
        for change in changes:
            row = np.array(change.target, dtype=np.int32)
            self.rows[change.layer] = row
            if self.shares is not None:
                self.shares[change.layer] = even_shares(row) if change.shares is None else change.shares
            held = row.copy()
            held[[slot for layer, slot in broken if layer == change.layer]] = -1
            self.digests[change.layer] = layer_map_digest(self._facts.model_layers[change.layer], held)
        if map_version is not None:
            self.map_version = map_version
        self.refresh_wire_rows()

    def refresh_wire_rows(self) -> None:
        """Make the plain tuples that live records carry; done once a switch, not once a record."""
        self.wire_digests = tuple(int(digest) for digest in self.digests)
        self.wire_rows = tuple(tuple(int(x) for x in row) for row in self.rows)
        self.wire_shares = (
            None if self.shares is None else tuple(tuple(float(x) for x in row) for row in self.shares)
        )
