"""The forward of one rank: dispatch, expert compute and combine, dropless, over a torch process group.

Rows travel in the order (destination rank, slot), so that the counts alone tell the receiver which expert every row is for; results
come back in the same order. Every receiver takes whatever arrives: there is no capacity and nothing is dropped.

The picks come from a trace, so the counts of all layers are known when a step begins and travel in one exchange; a router of a served
model would need one a layer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from eplb.demo.combine import Combine, combine_all
from eplb.demo.facts import StepTimes
from eplb.demo.model import Floats, ModelSpec, embed, gate_weights, norm, router_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.demo.batch import BatchTokens
    from eplb.demo.dispatch import Dispatcher
    from eplb.demo.memory import SlotMemory
    from eplb.demo.routing import Routing


@dataclass(frozen=True, slots=True)
class Group:
    """The EP group as the forward sees it: ``rank`` in the pool, ``ranks`` of the pool, ``members`` pool ranks in group order, None = all."""

    rank: int
    ranks: int
    slots_per_rank: int
    process_group: dist.ProcessGroup
    members: tuple[int, ...] | None = None


@dataclass(slots=True)
class _Clock:
    """Microseconds of one step by part."""

    dispatch_us: float = 0.0
    expert_us: float = 0.0
    combine_us: float = 0.0
    wait_us: float = 0.0


@dataclass(frozen=True, slots=True)
class _Route:
    """Where one layer's rows go and what comes.

    ``picks``: uint8 [tokens, k]. ``order``: int64 [tokens * k], the pairs in sending order. ``arriving``: int64 [sources,
    slots_per_rank], rows that come. ``out_sizes``, ``in_sizes``: rows by rank.
    """

    picks: NDArray[np.uint8]
    order: NDArray[np.int64]
    arriving: NDArray[np.int64]
    out_sizes: list[int]
    in_sizes: list[int]


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """Hidden states, the counters of both ends and the times of one step; see ``RankStep``."""

    states: NDArray[np.float32]
    received: NDArray[np.int64]
    sent: int
    combined: int
    times: StepTimes


@dataclass(slots=True)
class Forward:
    """One rank's MoE layers; ``combine`` and ``dispatcher`` may be replaced between steps."""

    spec: ModelSpec
    routing: Routing
    group: Group
    memory: SlotMemory
    dispatcher: Dispatcher
    combine: Combine = combine_all
    _routers: list[Floats] = field(init=False)
    _shortest_combine_us: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._routers = [router_weights(self.spec, layer) for layer in range(self.spec.layers)]
        self._shortest_combine_us = [np.inf] * self.spec.layers

    def step(self, tokens: BatchTokens) -> ForwardResult:
        """Serve one token of each of the rank's requests; a collective, every rank of the group calls it."""
        started_s = time.perf_counter()
        clock, spec = _Clock(), self.spec
        picks = self.routing.picks_of(tokens.sequences, tokens.positions)
        routes = self._routes(picks)
        clock.dispatch_us += (time.perf_counter() - started_s) * 1e6
        x = embed(spec, tokens.sequences, tokens.positions)
        states = np.empty((spec.layers, len(x), spec.hidden), dtype=np.float32)
        received = np.zeros((spec.layers, self.group.slots_per_rank), dtype=np.int64)
        combined = 0
        for layer, route in enumerate(routes):
            update, added = self._layer(layer, norm(x), route, received[layer], clock)
            combined += added
            x = x + update
            states[layer] = x
        step_us = (time.perf_counter() - started_s) * 1e6
        times = StepTimes(step_us, clock.dispatch_us, clock.expert_us, clock.combine_us, clock.wait_us)
        return ForwardResult(states, received, picks.size, combined, times)

    def _layer(
        self, layer: int, y: Floats, route: _Route, received: NDArray[np.int64], clock: _Clock
    ) -> tuple[Floats, int]:
        begun_s = time.perf_counter()
        token_of = route.order // route.picks.shape[1]
        weights = gate_weights(self._routers[layer], y, route.picks).ravel()[route.order]
        rows = self._exchange(y[token_of], route.out_sizes, route.in_sizes)
        sent_s = time.perf_counter()
        results = self._experts(layer, rows, route.arriving, received)
        computed_s = time.perf_counter()
        back = self._exchange(results, route.in_sizes, route.out_sizes)
        back_s = time.perf_counter()
        update = np.zeros_like(y)
        added = self.combine(update, token_of, back * weights[:, None])
        clock.dispatch_us += (sent_s - begun_s) * 1e6
        clock.expert_us += (computed_s - sent_s) * 1e6
        clock.combine_us += (back_s - computed_s) * 1e6
        clock.wait_us += self._waited(layer, (back_s - computed_s) * 1e6)
        return update, added

    def _waited(self, layer: int, combine_us: float) -> float:
        """The part of a combine beyond the shortest one seen: time spent on slower ranks, not on the transfer."""
        self._shortest_combine_us[layer] = min(self._shortest_combine_us[layer], combine_us)
        return combine_us - self._shortest_combine_us[layer]

    def _routes(self, picks: NDArray[np.uint8]) -> list[_Route]:
        """Choose replicas in all layers and tell every rank how many rows go to each of its slots."""
        ranks, width, layers = self.group.ranks, self.group.slots_per_rank, self.spec.layers
        slots = [self.dispatcher.choose(layer, picks[:, layer, :]).ravel() for layer in range(layers)]
        counts = np.stack([np.bincount(chosen, minlength=ranks * width) for chosen in slots]).astype(np.int64)
        by_rank = counts.reshape(layers, ranks, width).swapaxes(0, 1)
        leaving = np.ascontiguousarray(
            by_rank if self.group.members is None else by_rank[list(self.group.members)]
        )
        arriving = np.empty_like(leaving)
        group = self.group.process_group
        dist.all_to_all_single(torch.from_numpy(arriving), torch.from_numpy(leaving), group=group)
        return [
            _Route(
                picks=picks[:, layer, :],
                order=np.argsort(slots[layer], kind="stable"),
                arriving=arriving[:, layer, :],
                out_sizes=leaving[:, layer, :].sum(axis=1).tolist(),
                in_sizes=arriving[:, layer, :].sum(axis=1).tolist(),
            )
            for layer in range(layers)
        ]

    def _exchange(self, rows: Floats, out_sizes: list[int], in_sizes: list[int]) -> Floats:
        """Send rows to every rank and take what comes: float32 [sum(out), hidden] -> [sum(in), hidden]."""
        taken = np.empty((sum(in_sizes), rows.shape[1]), dtype=np.float32)
        dist.all_to_all_single(
            torch.from_numpy(taken),
            torch.from_numpy(np.ascontiguousarray(rows)),
            output_split_sizes=in_sizes,
            input_split_sizes=out_sizes,
            group=self.group.process_group,
        )
        return taken

    def _experts(
        self, layer: int, rows: Floats, arriving: NDArray[np.int64], received: NDArray[np.int64]
    ) -> Floats:
        """Run every slot on the rows that came for it, and count them: arriving int64 [sources, slots_per_rank]."""
        slot_of = np.repeat(np.tile(np.arange(arriving.shape[1]), arriving.shape[0]), arriving.ravel())
        results = np.empty_like(rows)
        first_slot = self.group.rank * self.group.slots_per_rank
        for slot in range(arriving.shape[1]):
            mine = np.flatnonzero(slot_of == slot)
            received[slot] = len(mine)
            if len(mine):
                results[mine] = self.memory.run(layer, first_slot + slot, rows[mine])
        return results
