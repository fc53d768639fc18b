"""Which part of an expert's tokens each of its copies gets, by the rule of the serving engine.

Copies of an expert are numbered by rising slot; n = their number. Facts that a rule needs and the trace lacks are assumed,
and ``assumptions`` says so. Sources: the engines' own code, read for the engine notes; the version stands at each rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from placement.batches import Blocks, copies_by_row, copies_by_turn
from placement.errors import TraceError
from placement.flow import hosting, least_worst, whole_speeds
from placement.models import check_dispatch
from placement.result import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.topology import Topology
    from placement.trace import LoadTrace

BY_SOURCE = ("nearest", "per_source")
SGLANG_SEED = 42

MOST_CELLS = 2**20
"""Numbers by slice, rank, expert and copy that are worked on at a time, so that a large pool needs no more memory."""

Known = dict[tuple[int, int], np.ndarray[Any, np.dtype[np.float64]]]
"""Parts by expert and number of copies, float64 [slices, copies]."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A dispatch rule and what it depends on.

    ``even``: every copy 1 / n. Random or round-robin choice for each token (SGLang dynamic, LMDeploy).
    ``weighted``: by the shares of the map, scaled to 1 over the live copies; an expert without shares evenly.
    ``hash_row``: copy (row x 2654435769 mod 2^32) mod n, row = place in the source rank's batch (vLLM 0.20 to 0.33).
    ``nearest``: each source rank has one copy: on its own rank, else the first on its node if the node holds some but not
    all copies, else a fair deal of the remaining source ranks over all copies (SGLang 0.5.23 static).
    ``per_source``: each source rank r has copy r mod n (vllm-ascend of 2026-08), or
    (r mod tp + r div tp + expert) mod n with ``tensor_parallel`` = tp > 1.
    ``block_round_robin``: the k-th choice of an expert in block b of 1024 choices goes to copy (k + b + r) mod n
    (TensorRT-LLM of 2026); without r where ``offset_by_rank`` is off (no attention data parallelism).
    ``optimal``: the exact split of every slice, as engines do that solve for each batch (``placement.flow``).

    Raises:
        UnsupportedError: the name is unknown, or ``tensor_parallel`` is below 1.
    """

    name: str
    tensor_parallel: int = 1
    offset_by_rank: bool = True

    def __post_init__(self) -> None:
        check_dispatch(self.name, self.tensor_parallel)


def as_dispatch(dispatch: str | Dispatch) -> Dispatch:
    """Take a rule by its name, with its usual settings.

    Raises:
        UnsupportedError: the name is unknown.
    """
    return dispatch if isinstance(dispatch, Dispatch) else Dispatch(dispatch)


def assumptions(dispatch: Dispatch, trace: LoadTrace) -> tuple[Reason, ...]:
    """What a rule would need to know and the trace does not say: a code and a sentence each."""
    found = []
    needs_sources = (*BY_SOURCE, "hash_row", "block_round_robin")
    if dispatch.name in needs_sources and trace.source_tokens is None:
        text = "the trace has no counts by source rank: every live rank is taken to send alike"
        found.append(Reason("sources_assumed_even", text))
    if dispatch.name == "hash_row" and trace.batch_tokens is None:
        text = "the trace has no batch_tokens: batches are taken as large, so that copies share evenly"
        found.append(Reason("batch_assumed_large", text))
    if dispatch.name == "block_round_robin" and trace.steps_per_slice is None:
        text = "the trace has no steps_per_slice: blocks are taken as large, so that copies share evenly"
        found.append(Reason("batch_assumed_large", text))
    return tuple(found)


class Dispatcher:
    """A dispatch rule applied to the rows of a map, one layer after the other.

    ``dealt``: for ``nearest``, deal far source ranks as the engine does, which depends on all rows before (rows must then
    come in the order of layers); off = the mean over deals, for a search that tries rows alone. The deal is that of a model
    whose dense layers, which stand in the engine's map, have no replicas.

    Raises:
        TraceError: the trace has counts of another number of source ranks.
    """

    def __init__(
        self, dispatch: Dispatch, trace: LoadTrace, topology: Topology, *, dealt: bool = True
    ) -> None:
        self._dispatch = dispatch
        self._trace = trace
        sources = trace.source_tokens
        if sources is not None and len(sources) != topology.ranks:
            raise TraceError(f"source_tokens name {len(sources)} ranks, the topology has {topology.ranks}")
        self._alive = ~np.isin(topology.rank_of_slot(), list(topology.dead))
        self._rank_of_slot = topology.rank_of_slot()
        self._node_of_rank = np.array(topology.node_of_rank)
        self._speed = topology.speed_of_rank()
        self._live = np.flatnonzero(self._speed)
        self._deal = Random(SGLANG_SEED) if dealt else None

    @property
    def whole(self) -> bool:
        """Whether a copy's tokens are counted, not a chance for each token: its share of n tokens is then certain."""
        exact = self._dispatch.name in BY_SOURCE and self._trace.source_tokens is not None
        return exact or self._dispatch.name == "optimal"

    def parts(
        self,
        layer: int,
        row: NDArray[np.int32],
        shares: NDArray[np.float64] | None = None,
        known: Known | None = None,
    ) -> NDArray[np.float64]:
        """Part of its expert's tokens that every slot gets, float64 [slices, slots], or [1, slots] where slices are alike.

        ``row``: int [slots], -1 = empty. ``shares``: float64 [slots], for ``weighted``. Slots that are empty, unknown or on
        a dead rank get 0. ``known``: what was found for other rows of this layer and can be used again; is added to.
        """
        copies = Copies.of(row, self._alive, self._trace.experts)
        name, trace = self._dispatch.name, self._trace
        if name == "weighted" and shares is not None:
            return copies.weighted(shares)[None]
        by_row = name == "hash_row" and trace.batch_tokens is not None
        if by_row or (name == "block_round_robin" and trace.steps_per_slice is not None):
            return self._by_place(copies, layer, {} if known is None else known)
        if name in BY_SOURCE:
            return self._by_source(copies, layer)[None]
        if name == "optimal":
            return self._optimal(copies, layer)
        return copies.even()[None]

    def _sources(self, layer: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Part of the tokens that starts on each live rank: of all, float64 [live ranks], and of every expert, [live ranks, experts].

        An expert without counts by source is taken like all tokens; without any counts every rank sends alike.
        """
        tokens = np.zeros((len(self._live), self._trace.experts))
        if self._trace.source_tokens is not None:
            tokens += self._trace.source_tokens[self._live, layer]
        rank, expert = tokens.sum(axis=1), tokens.sum(axis=0)
        of_all = rank / rank.sum() if rank.any() else np.full(len(rank), 1.0 / len(rank))
        of_expert = np.broadcast_to(of_all[:, None], tokens.shape).copy()
        np.divide(tokens, expert, out=of_expert, where=expert > 0)
        return of_all, of_expert

    def _by_place(self, copies: Copies, layer: int, known: Known) -> NDArray[np.float64]:
        """Parts by a token's place in its batch, which depend on nothing but the number of copies: found once for each expert."""
        part = self._by_row if self._dispatch.name == "hash_row" else self._by_turn
        result = np.where(copies.slot_expert >= 0, np.ones((self._trace.slices, 1)), 0.0)
        for slots, expert, count in copies.by_count():
            if count == 1:
                continue
            new = [one for one in np.unique(expert).tolist() if (one, count) not in known]
            room = max(1, MOST_CELLS // (self._trace.slices * len(self._live) * count))
            for first in range(0, len(new), room):
                some = new[first : first + room]
                found = part(layer, np.array(some), count)
                known.update({(one, count): found[:, place].copy() for place, one in enumerate(some)})
            for slot, one, number in zip(slots.tolist(), expert.tolist(), copies.number[slots], strict=True):
                result[:, slot] = known[one, count][:, number]
        return result

    def _by_row(self, layer: int, some: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """Part of each copy of the experts ``some`` by hash of the row, float64 [slices, some, count]."""
        of_all, of_expert = self._sources(layer)
        batch = np.ones(self._trace.slices) if self._trace.batch_tokens is None else self._trace.batch_tokens
        part = copies_by_row(batch[:, None] * of_all, count)
        result = np.zeros((self._trace.slices, len(some), count))
        for rank, sent in enumerate(of_expert[:, some]):
            result += part[:, rank, None] * sent[:, None]
        return result

    def _by_source(self, copies: Copies, layer: int) -> NDArray[np.float64]:
        _, of_expert = self._sources(layer)
        result = copies.even()
        for expert, slots in copies.replicated():
            sent = self._table(expert, slots, self._live) * of_expert[:, expert]
            result[slots] = np.cumsum(sent, axis=1)[:, -1]
        return result

    def _table(self, expert: int, slots: NDArray[np.int64], live: NDArray[np.int64]) -> NDArray[np.float64]:
        """Which copy serves which live source rank, float64 [copies, live ranks]."""
        count = len(slots)
        if self._dispatch.name == "per_source":
            tp = self._dispatch.tensor_parallel
            number = live % count if tp == 1 else (live % tp + live // tp + expert) % count
            return np.equal.outer(np.arange(count), number).astype(np.float64)
        own = self._rank_of_slot[slots][:, None] == live
        near = self._node_of_rank[self._rank_of_slot[slots]][:, None] == self._node_of_rank[live]
        near &= ~near.all(axis=0)
        eligible = np.where(own.any(axis=0), own, near)
        first: NDArray[np.float64] = np.equal.outer(np.arange(count), eligible.argmax(axis=0)).astype(
            np.float64
        )
        far = ~eligible.any(axis=0)
        if self._deal is None:
            first[:, far] = 1.0 / count
            return first
        first[:, far] = np.equal.outer(np.arange(count), _fair_deal(count, int(far.sum()), self._deal))
        return first

    def _by_turn(self, layer: int, some: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """Part of each copy of the experts ``some`` by turns, float64 [slices, some, count]."""
        of_all, of_expert = self._sources(layer)
        tokens, steps = self._trace.tokens[:, layer], self._trace.steps_per_slice
        steps = np.ones(self._trace.slices, dtype=np.int64) if steps is None else steps
        choices = tokens.sum(axis=1)[:, None] * of_all / steps[:, None]
        turn = self._live % count * self._dispatch.offset_by_rank
        return copies_by_turn(tokens[:, some], Blocks(steps, choices, of_expert[:, some], turn), count)

    def _optimal(self, copies: Copies, layer: int) -> NDArray[np.float64]:
        tokens = self._trace.tokens[:, layer]
        rows = np.broadcast_to(copies.slot_expert, (len(tokens), len(copies.slot_expert)))
        held = hosting(rows, self._rank_of_slot, self._trace.experts, len(self._speed))
        return held.of_slots(least_worst(held, tokens, whole_speeds(self._speed)).part)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The copies of one row of a map.

    ``slot_expert``: int64 [slots], -1 = serves nothing. ``number``: int64 [slots], place among the copies of its expert, by
    rising slot. ``count``: int64 [slots], copies of the slot's expert, at least 1.
    """

    slot_expert: NDArray[np.int64]
    number: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, row: NDArray[np.int32], alive: NDArray[np.bool_], experts: int) -> Copies:
        """Count the copies on slots that live and hold a known expert."""
        expert = np.where((row >= 0) & (row < experts) & alive, row, -1).astype(np.int64)
        order = np.argsort(expert, kind="stable")
        ordered = expert[order]
        number = np.empty(len(row), dtype=np.int64)
        number[order] = np.arange(len(row)) - np.searchsorted(ordered, ordered)
        count = np.searchsorted(ordered, expert, "right") - np.searchsorted(ordered, expert)
        return cls(expert, number, count)

    def even(self) -> NDArray[np.float64]:
        """1 / copies for every serving slot, float64 [slots]."""
        return np.where(self.slot_expert >= 0, 1.0 / self.count, 0.0)

    def weighted(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shares scaled to 1 over the copies, even where an expert has none, float64 [slots]."""
        used = self.slot_expert >= 0
        given = np.where(used, shares, 0.0)
        total = np.zeros(int(self.slot_expert.max(initial=0)) + 1)
        np.add.at(total, self.slot_expert[used], given[used])
        of_slot = total[self.slot_expert]
        scaled = np.divide(given, of_slot, out=np.zeros_like(given), where=of_slot > 0)
        return np.where(used & (of_slot <= 0), self.even(), scaled)

    def by_count(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64], int]]:
        """Serving slots, their experts and the number of copies, for each number of copies."""
        serving = self.slot_expert >= 0
        counts = np.unique(self.count[serving]).tolist()
        slots = [np.flatnonzero(serving & (self.count == count)) for count in counts]
        return [(at, self.slot_expert[at], count) for at, count in zip(slots, counts, strict=True)]

    def replicated(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Every expert with several copies, by rising id, and their slots by rising slot."""
        several = np.flatnonzero((self.slot_expert >= 0) & (self.count > 1))
        if not len(several):
            return []
        order = several[np.argsort(self.slot_expert[several], kind="stable")]
        experts, first = np.unique(self.slot_expert[order], return_index=True)
        return list(zip(experts.tolist(), np.split(order, first[1:]), strict=True))


def _fair_deal(copies: int, ranks: int, deal: Random) -> list[int]:
    """Deal source ranks over copies: every copy as often as the others, the rest drawn, then shuffled (the engine's order)."""
    rounds, rest = divmod(ranks, copies)
    dealt = list(range(copies)) * rounds + deal.sample(range(copies), k=rest)
    deal.shuffle(dealt)
    return dealt
