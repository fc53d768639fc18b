"""Score a map on a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.errors import InfeasibleError, MapError
from placement.layer import ordered_sum
from placement.models import check_models

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.placement import Placement
    from placement.topology import Topology
    from placement.trace import LoadTrace


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How a map would have served a trace.

    ``ratio``: float64 [slices, layers], largest over mean rank cost of live ranks, >= 1; NaN where a layer has no load.
    ``rank_load``: float64 [slices, layers, ranks], tokens.
    ``weights``: float64 [slices], weight of every slice.
    """

    ratio: NDArray[np.float64]
    rank_load: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def mean_ratio(self) -> float:
        """Weighted mean over slices and layers with load: the objective; NaN without any load."""
        weight = self._weight()
        total = ordered_sum(weight.ravel())
        summed = ordered_sum((np.where(weight > 0, self.ratio, 0.0) * weight).ravel())
        return summed / total if total > 0 else float("nan")

    def layer_ratio(self) -> NDArray[np.float64]:
        """Weighted mean ratio of every layer, float64 [layers]; NaN where a layer has no load."""
        weight = self._weight()
        total = np.cumsum(weight, axis=0)[-1]
        summed = np.cumsum(np.where(weight > 0, self.ratio, 0.0) * weight, axis=0)[-1]
        result = np.full(total.shape, np.nan)
        np.divide(summed, total, out=result, where=total > 0)
        return result

    def _weight(self) -> NDArray[np.float64]:
        return np.where(np.isnan(self.ratio), 0.0, self.weights[:, None])


def evaluate(
    placement: Placement, trace: LoadTrace, topology: Topology, dispatch: str = "even", cost: str = "tokens"
) -> Score:
    """Score any map that serves every loaded expert, twins and gaps included.

    ``dispatch``: ``even`` = the live copies of an expert share its tokens evenly; ``weighted`` = by ``placement.shares``
    (scaled to 1 over the live copies; an expert without shares is shared evenly). ``cost``: ``tokens`` = tokens / speed.

    Raises:
        MapError: the map's shape or an id does not fit, or an expert with load has no slot on a live rank.
        UnsupportedError: the dispatch or the cost is unknown or not built.
        InfeasibleError: every rank is dead.
    """
    check_models(dispatch, cost)
    _check_shapes(placement, trace, topology)
    shares = slot_shares(placement, topology, trace.experts, weighted=dispatch == "weighted")
    speed = topology.speed_of_rank()
    live = np.flatnonzero(speed)
    if not len(live):
        raise InfeasibleError(f"all {topology.ranks} ranks are dead: at least 1 must live")
    loads = np.empty((trace.slices, trace.layers, topology.ranks))
    first = np.searchsorted(topology.rank_of_slot(), np.arange(topology.ranks))
    for layer, row in enumerate(placement.physical_to_logical):
        slot_tokens = trace.tokens[:, layer, np.maximum(row, 0)] * shares[layer]
        loads[:, layer] = np.add.reduceat(slot_tokens, first, axis=1)
        _check_served(trace, layer, row, shares[layer])
    mean = trace.tokens.sum(axis=2) / speed.sum()
    worst = (loads[:, :, live] / speed[live]).max(axis=2)
    ratio = np.divide(worst, mean, out=np.full(mean.shape, np.nan), where=mean > 0)
    return Score(ratio, loads, trace.slice_weights())


def slot_shares(
    placement: Placement, topology: Topology, experts: int, *, weighted: bool
) -> NDArray[np.float64]:
    """Part of its expert's tokens that every slot gets, float64 [layers, slots]; empty, unknown and dead ones get 0."""
    rows = placement.physical_to_logical
    alive = ~np.isin(topology.rank_of_slot(), list(topology.dead))
    used = (rows >= 0) & (rows < experts) & alive
    expert = np.where(used, rows, 0)
    each = np.broadcast_to(np.arange(len(rows))[:, None], rows.shape)
    copies = np.zeros((len(rows), experts))
    np.add.at(copies, (each[used], rows[used]), 1.0)
    even = np.where(used, 1.0 / np.maximum(copies[each, expert], 1.0), 0.0)
    if not weighted or placement.shares is None:
        return even
    given = np.where(used, placement.shares, 0.0)
    total = np.zeros((len(rows), experts))
    np.add.at(total, (each[used], rows[used]), given[used])
    of_slot = total[each, expert]
    scaled = np.divide(given, of_slot, out=np.zeros_like(given), where=of_slot > 0)
    return np.where(of_slot > 0, scaled, even)


def _check_shapes(placement: Placement, trace: LoadTrace, topology: Topology) -> None:
    if placement.slots != topology.slots:
        raise MapError(f"the map has {placement.slots} slots a layer, the topology {topology.slots}")
    if placement.layers != trace.layers:
        raise MapError(f"the map has {placement.layers} layers, the trace {trace.layers}")
    rows = placement.physical_to_logical
    if int(rows.max()) >= trace.experts or int(rows.min()) < -1:
        raise MapError(
            f"the map holds ids from {rows.min()} to {rows.max()}, the trace has experts 0..{trace.experts - 1}"
        )


def _check_served(trace: LoadTrace, layer: int, row: NDArray[np.int32], shares: NDArray[np.float64]) -> None:
    served = np.zeros(trace.experts, dtype=bool)
    served[row[shares > 0]] = True
    lost = trace.tokens[:, layer].any(axis=0) & ~served
    if lost.any():
        raise MapError(f"layer {layer}: expert {int(lost.argmax())} has load but no slot on a live rank")
