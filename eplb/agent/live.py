"""The map that this rank serves: rows, their digests, shares and the number of completed switches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectors.digests import layer_map_digest, layer_map_digests
from collectors.shares import all_shares, even_shares, quantised_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.wire import LayerChange


class LiveMap:
    """What a rank serves now; only the forward thread changes it, and only at a switch.

    ``rows``: int32 [layers, slots]. ``digests``: uint64 [layers], of what really stands in the slots, shares included.
    ``shares``: float64 [layers, slots] in whole steps, or None while dispatch is not weighted.
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
        self.shares = None if shares is None else all_shares(self.rows, shares)
        self.digests = layer_map_digests(facts.model_layers, self.rows, self.shares)
        self.map_version = map_version
        self.refresh_wire_rows()

    def replace(
        self, changes: Sequence[LayerChange], broken: Sequence[tuple[int, int]], map_version: int | None
    ) -> None:
        """Serve the new rows; a layer with a broken slot gets the digest of its row with that slot empty.

        ``broken``: (layer, slot) whose weights are not what the row says, so that no one takes the layer for switched.
        """
        if self.shares is None and any(change.shares is not None for change in changes):
            self.shares = all_shares(self.rows, None)
        for change in changes:
            row = np.array(change.target, dtype=np.int32)
            self.rows[change.layer] = row
            shares = even_shares(row) if change.shares is None else np.array(change.shares, dtype=np.float64)
            if self.shares is not None:
                self.shares[change.layer] = quantised_shares(row, shares)
            self.digests[change.layer] = self._digest(change.layer, row, shares, broken)
        if map_version is not None:
            self.map_version = map_version
        self.refresh_wire_rows()

    def _digest(
        self,
        layer: int,
        row: NDArray[np.int32],
        shares: NDArray[np.float64],
        broken: Sequence[tuple[int, int]],
    ) -> int:
        places = [slot for where, slot in broken if where == layer]
        held = row.copy()
        held[places] = -1
        return layer_map_digest(self._facts.model_layers[layer], held, None if places else shares)

    def refresh_wire_rows(self) -> None:
        """Make the plain tuples that live records carry; done once a switch, not once a record."""
        self.wire_digests = tuple(int(digest) for digest in self.digests)
        self.wire_rows = tuple(tuple(int(x) for x in row) for row in self.rows)
        self.wire_shares = (
            None if self.shares is None else tuple(tuple(float(x) for x in row) for row in self.shares)
        )
