"""What a map is judged by: a dispatch rule and a cost model over one trace, layer by layer.

``evaluate`` scores whole maps with it and a solve values single rows, so that both always mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.cost import Activation, Clock, as_cost
from placement.dispatch import Dispatcher, as_dispatch, assumptions
from placement.layer import Prices, kept_slices, ordered_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.cost import Roofline
    from placement.dispatch import Dispatch
    from placement.layer import Layer
    from placement.result import Reason
    from placement.topology import Topology
    from placement.trace import LoadTrace

MOST_LISTED = 32
"""Copies of an expert that the search has prices for; it prices more like that many."""


class Objective:
    """A dispatch rule and a cost model, ready for the layers of one trace.

    ``dealt``: see ``Dispatcher``; off where rows are valued alone. ``reasons``: what was assumed and what activation rests on.

    Raises:
        TraceError: a roofline is asked for, and neither are slices one step nor is the batch recorded; or the trace has counts of
            another number of source ranks.
        UnsupportedError: the dispatch or the cost is unknown.
    """

    def __init__(
        self,
        dispatch: str | Dispatch,
        cost: str | Roofline,
        trace: LoadTrace,
        topology: Topology,
        *,
        dealt: bool = True,
    ) -> None:
        self.rule, model = as_dispatch(dispatch), as_cost(cost)
        self.reasons: tuple[Reason, ...] = assumptions(self.rule, trace)
        self.clock: Clock | None = None
        if model is not None:
            self.clock = Clock(model, Activation.of(trace))
            self.reasons += (self.clock.activation.reason,)
        self.dispatcher = Dispatcher(self.rule, trace, topology, dealt=dealt)
        self.trace = trace
        self.ranks, self.slots = topology.ranks, topology.slots
        self.live = np.array(topology.live_ranks)
        self.speed = topology.speed_of_rank()[self.live]
        self.first_slot = np.searchsorted(topology.rank_of_slot(), np.arange(topology.ranks))

    @property
    def plain(self) -> bool:
        """Whether copies share evenly and tokens are what counts, which the search itself computes."""
        return self.rule.name == "even" and self.clock is None

    @property
    def split(self) -> bool:
        """Whether tokens count and every slice is split by load, for which there is a search of its own."""
        return self.rule.name == "optimal" and self.clock is None

    @property
    def dealt(self) -> bool:
        """Whether a layer's value depends on the layers before it: ``nearest`` deals far source ranks from one sequence."""
        return self.rule.name == "nearest"

    def layer(self, at: int) -> LayerObjective:
        """The objective of layer ``at``."""
        tokens = self.trace.tokens[:, at]
        if self.clock is None:
            balanced = tokens.sum(axis=1) / self.speed.sum()
        else:
            balanced = self.clock.least_us(tokens, self.speed)
        loaded: NDArray[np.bool_] = tokens.sum(axis=1) > 0
        weights = np.where(loaded, self.trace.slice_weights(), 0.0)
        total = ordered_sum(weights)
        return LayerObjective(self, at, balanced, loaded, weights / total if total > 0 else weights)

    def prices(self, layer: Layer, at: int, most_slices: int) -> Prices | None:
        """What copies cost the search in the slices of ``layer``, made with ``most_slices``; None for tokens.

        Copies are taken to share evenly whatever the rule.
        """
        if self.clock is None:
            return None
        tokens, most = (
            self.trace.tokens[:, at],
            min(layer.ranks, MOST_LISTED, max(1, layer.slots - layer.experts + 1)),
        )
        table = np.zeros((layer.experts + 1, most, len(layer.weights)))
        kept = kept_slices(tokens, self.trace.slice_weights(), most_slices)
        if not len(kept):
            return Prices(table, np.zeros(1))
        clock = Clock(self.clock.model, self.clock.activation.only(kept))
        unit = 1.0 / self.clock.least_us(tokens, self.speed)[kept]
        for copies in range(most):
            table[:-1, copies] = (clock.copy_us(tokens[kept], np.array(copies + 1)) * unit[:, None]).T
        return Prices(table, clock.model.base_us * unit)


@dataclass(frozen=True, slots=True, eq=False)
class LayerObjective:
    """The objective in one layer.

    ``balanced``: float64 [slices], cost of perfect balance; ``loaded``: bool [slices]; ``weights``: float64 [slices], summing to 1
    over the slices with load (all 0 without any).
    """

    whole: Objective
    at: int
    balanced: NDArray[np.float64]
    loaded: NDArray[np.bool_]
    weights: NDArray[np.float64]

    def served(
        self, row: NDArray[np.int32], shares: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Tokens and cost of every rank, both float64 [slices, ranks]; dead ranks have 0.

        ``row``: int [slots], -1 = empty; ``shares``: float64 [slots], for ``weighted``.
        """
        whole = self.whole
        tokens, live, clock = whole.trace.tokens[:, self.at], whole.live, whole.clock
        parts = whole.dispatcher.parts(self.at, row, shares)
        of_slot = tokens[:, np.maximum(row, 0)]
        loads: NDArray[np.float64] = np.add.reduceat(of_slot * parts, whole.first_slot, axis=1)
        costs = np.zeros(loads.shape)
        cost = loads[:, live]
        if clock is not None:
            chance = clock.activation.chance(of_slot, parts, whole=whole.dispatcher.whole)
            activated = np.add.reduceat(chance, whole.first_slot, axis=1)[:, live]
            held = np.add.reduceat((row >= 0).astype(np.float64), whole.first_slot)[live]
            cost = clock.model.us(held, activated, cost / clock.activation.steps[:, None])
        costs[:, live] = cost / whole.speed
        return loads, costs

    def ratio(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Costliest rank over perfect balance, float64 [slices], from ``costs`` as served; NaN without load."""
        worst = costs[:, self.whole.live].max(axis=1)
        result: NDArray[np.float64] = np.divide(
            worst, self.balanced, out=np.full(len(worst), np.nan), where=self.loaded
        )
        return result

    def value(self, row: NDArray[np.int32], shares: NDArray[np.float64] | None = None) -> float:
        """Weighted mean ratio of a row, as a score has it; 0 without load."""
        _, costs = self.served(row, shares)
        return ordered_sum(np.where(self.loaded, self.ratio(costs), 0.0) * self.weights)
