"""What a slot held: rows of maps by digest, so that counts by slot become counts by logical expert."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collectors.digests import layer_map_digests, live_map_digest
from collectors.shares import even_shares
from eplb.errors import WindowError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts

ROWS_KEPT_PER_LAYER = 256
INDEXES_KEPT = 16
SHARE_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class MapRow:
    """One layer's row: ``slots`` int32 [slots], logical ids, -1 = empty; ``shares`` float64 [slots] or None = even."""

    slots: NDArray[np.int32]
    shares: NDArray[np.float64] | None


class MapRegistry:
    """Rows by (layer, digest) and whole maps by live digest; the oldest are forgotten."""

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self._rows: list[OrderedDict[int, MapRow]] = [OrderedDict() for _ in range(facts.layers)]
        self._whole: OrderedDict[int, NDArray[np.uint64]] = OrderedDict()
        self._index: OrderedDict[bytes, NDArray[np.int64]] = OrderedDict()
        self._tilt: OrderedDict[bytes, NDArray[np.float64]] = OrderedDict()
        self.newest: NDArray[np.uint64] | None = None

    def add(
        self,
        layer_digests: NDArray[np.uint64],
        rows: NDArray[np.int32],
        shares: NDArray[np.float64] | None = None,
    ) -> None:
        """Register a whole map: uint64 [layers], int32 [layers, slots], float64 [layers, slots] or None.

        Raises:
            WindowError: a shape, an id or a share is wrong, or the digests are not those of rows and shares.
        """
        self._check(layer_digests, rows, shares)
        for layer, digest in enumerate(layer_digests.tolist()):
            known = self._rows[layer]
            own_shares = None if shares is None else np.array(shares[layer], dtype=np.float64)
            known[digest] = MapRow(np.array(rows[layer], dtype=np.int32), own_shares)
            known.move_to_end(digest)
            _forget_oldest(known, ROWS_KEPT_PER_LAYER)
        self.note_whole(layer_digests)
        self.newest = layer_digests.copy()

    def note_whole(self, layer_digests: NDArray[np.uint64]) -> None:
        """Remember which rows make up a live map, so that its digest alone can be read."""
        digest = live_map_digest(layer_digests)
        if digest not in self._whole:
            self._whole[digest] = layer_digests.copy()
            _forget_oldest(self._whole, ROWS_KEPT_PER_LAYER)

    def whole(self, live_digest: int) -> NDArray[np.uint64] | None:
        """Layer digests of a live map, uint64 [layers]; None = not known. A stage without MoE layers needs no map."""
        if not self._facts.layers:
            return np.zeros(0, dtype=np.uint64)
        return self._whole.get(live_digest)

    def row(self, layer: int, digest: int) -> MapRow | None:
        """One layer's row; None = not known."""
        return self._rows[layer].get(digest)

    def index(self, layer_digests: NDArray[np.uint64]) -> NDArray[np.int64] | None:
        """Flat place ``layer * experts + expert`` of every slot, int64 [layers, slots]; None = some row is not known.

        Empty slots point at the place ``layers * experts``, which is thrown away.
        """
        key = layer_digests.tobytes()
        index = self._index.get(key)
        if index is None:
            rows = [self.row(layer, digest) for layer, digest in enumerate(layer_digests.tolist())]
            index = np.zeros((self._facts.layers, self._facts.slots), dtype=np.int64)
            for layer, row in enumerate(rows):
                if row is None:
                    return None
                index[layer] = self._flat(layer, row)
            self._index[key] = index
            _forget_oldest(self._index, INDEXES_KEPT)
        return index

    def tilt(self, layer_digests: NDArray[np.uint64]) -> NDArray[np.float64] | None:
        """Share of every slot minus an even part, float64 [layers, slots]; None = some row is not known."""
        key = layer_digests.tobytes()
        tilt = self._tilt.get(key)
        if tilt is None:
            rows = [self.row(layer, digest) for layer, digest in enumerate(layer_digests.tolist())]
            known = [_tilt(row) for row in rows if row is not None]
            if len(known) < len(rows):
                return None
            tilt = np.array(known).reshape(self._facts.layers, self._facts.slots)
            self._tilt[key] = tilt
            _forget_oldest(self._tilt, INDEXES_KEPT)
        return tilt

    def row_to_logical(
        self, row: MapRow, counts: NDArray[np.int64], first_slot: int = 0
    ) -> NDArray[np.int64]:
        """One layer's counts by slot, int64 [width] from ``first_slot`` on, as counts by expert, int64 [experts]."""
        ids = row.slots[first_slot : first_slot + len(counts)]
        logical = np.zeros(self._facts.experts + 1, dtype=np.int64)
        np.add.at(logical, np.where(ids < 0, self._facts.experts, ids), counts)
        return logical[:-1]

    def to_logical(
        self, index: NDArray[np.int64], counts: NDArray[np.int64], first_slot: int = 0
    ) -> NDArray[np.int64]:
        """Counts by slot, int64 [layers, width] from ``first_slot`` on, as counts by expert, int64 [layers, experts]."""
        layers, experts = self._facts.layers, self._facts.experts
        flat = np.zeros(layers * experts + 1, dtype=np.int64)
        np.add.at(flat, index[:, first_slot : first_slot + counts.shape[1]].ravel(), counts.ravel())
        return flat[:-1].reshape(layers, experts)

    def predicted_load(
        self, layer_digests: NDArray[np.uint64], tokens: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        """Tokens that each rank would receive, float64 [layers, ranks], from tokens by expert, int64 [layers, experts].

        An expert's tokens are split over its slots by their shares, or evenly. None = some row is not known.
        """
        facts = self._facts
        load = np.zeros((facts.layers, facts.slots))
        for layer, digest in enumerate(layer_digests.tolist()):
            row = self.row(layer, digest)
            if row is None:
                return None
            load[layer] = _split(row, tokens[layer])
        by_rank: NDArray[np.float64] = load.reshape(facts.layers, facts.ranks, facts.slots_per_rank).sum(
            axis=2
        )
        return by_rank

    def _flat(self, layer: int, row: MapRow) -> NDArray[np.int64]:
        experts = self._facts.experts
        return np.where(
            row.slots < 0, self._facts.layers * experts, layer * experts + row.slots.astype(np.int64)
        )

    def _check(
        self, layer_digests: NDArray[np.uint64], rows: NDArray[np.int32], shares: NDArray[np.float64] | None
    ) -> None:
        facts = self._facts
        shape = (facts.layers, facts.slots)
        if rows.shape != shape or layer_digests.shape != shape[:1]:
            raise WindowError(
                f"map of pool {facts.pool!r}: {rows.shape} rows and {layer_digests.shape} digests, expected {shape}; "
                "give the map of this pool's topology"
            )
        if shares is not None and shares.shape != shape:
            raise WindowError(
                f"map of pool {facts.pool!r}: shares have shape {shares.shape}, expected {shape}"
            )
        if rows.size and (rows.min() < -1 or rows.max() >= facts.experts):
            raise WindowError(
                f"map of pool {facts.pool!r}: ids from {rows.min()} to {rows.max()}, expected -1 to {facts.experts - 1}"
            )
        if shares is not None and not np.all((shares >= 0) & (shares <= 1 + SHARE_SLACK)):
            raise WindowError(
                f"map of pool {facts.pool!r}: a share is not between 0 and 1; send the map anew"
            )
        if not np.array_equal(layer_map_digests(facts.model_layers, rows, shares), layer_digests):
            raise WindowError(
                f"map of pool {facts.pool!r}: the digests are not those of rows and shares; send all anew"
            )


def _split(row: MapRow, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    used = row.slots >= 0
    ids = np.where(used, row.slots, 0)
    if row.shares is not None:
        return np.where(used, tokens[ids] * row.shares, 0.0)
    replicas = np.bincount(ids[used], minlength=len(tokens))
    return np.where(used, tokens[ids] / np.maximum(replicas[ids], 1), 0.0)


def _tilt(row: MapRow) -> NDArray[np.float64]:
    if row.shares is None:
        return np.zeros(len(row.slots))
    return np.where(row.slots >= 0, row.shares - even_shares(row.slots), 0.0)


def _forget_oldest(known: OrderedDict[Any, Any], keep: int) -> None:
    while len(known) > keep:
        known.popitem(last=False)
