"""Which replica of its expert a token goes to.

``weighted``: replica j gets the share s_j of its expert's tokens. The n-th token that source rank r sends to an expert lands at
frac(n * (sqrt(5) - 1) / 2 + phase_r) of the cumulative shares: a sequence that fills the unit interval evenly at every length, so
that each source honours the shares to within a few tokens; the phases spread the sources of one step.
``hash_row``: vLLM's rule, replica ((row * 2654435769) mod 2**32) mod n with row the token's position in its rank's batch.
``nearest``: SGLang's static rule: the replica on the own rank, else the first on the own node if that narrows the set, else one
replica for each source rank, dealt evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

RULES = ("weighted", "hash_row", "nearest")
_GOLDEN = (5**0.5 - 1) / 2
_KNUTH = np.uint64(2654435769)
_WORD = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a dispatcher stands: its rank and the layout of the group."""

    rank: int
    ranks: int
    nodes: int
    slots_per_rank: int

    def rank_of(self, slot: int) -> int:
        """Rank that owns a slot."""
        return slot // self.slots_per_rank

    def node_of(self, rank: int) -> int:
        """Node of a rank."""
        return rank * self.nodes // self.ranks


@dataclass(slots=True)
class _Table:
    """One layer: ``slots`` int64 [experts, replicas], ``count`` and ``cumulative`` shares [experts, replicas], padded."""

    slots: NDArray[np.int64]
    count: NDArray[np.int64]
    cumulative: NDArray[np.float64]
    sent: NDArray[np.int64]


def replicas_of(row: NDArray[np.integer], experts: int) -> list[list[int]]:
    """Slots of every expert, lowest first: row int [slots], -1 = empty."""
    found: list[list[int]] = [[] for _ in range(experts)]
    for slot, expert in enumerate(row.tolist()):
        if expert >= 0:
            found[expert].append(slot)
    return found


def _nearest(slots: Sequence[int], expert: int, source: Source) -> int:
    for slot in slots:
        if source.rank_of(slot) == source.rank:
            return slot
    node = source.node_of(source.rank)
    local = [slot for slot in slots if source.node_of(source.rank_of(slot)) == node]
    if local and len(local) < len(slots):
        return local[0]
    return slots[(source.rank + expert) % len(slots)]


def _normal_shares(slots: list[int], shares: Sequence[float] | None) -> NDArray[np.float64]:
    wanted = (
        np.ones(len(slots))
        if shares is None
        else np.array([shares[slot] for slot in slots], dtype=np.float64)
    )
    if not np.isfinite(wanted).all() or wanted.min() < 0 or wanted.sum() <= 0:
        wanted = np.ones(len(slots))
    return np.asarray(wanted / wanted.sum())


class Dispatcher:
    """Replica choice of one source rank for all layers; tables follow the live map."""

    def __init__(self, rule: str, source: Source, experts: int, layers: int) -> None:
        self._rule = rule
        self._source = source
        self._experts = experts
        self._phase = np.modf(source.rank * _GOLDEN + 0.5 * np.modf(np.arange(experts) * 2**0.5)[0])[0]
        self._tables: list[_Table | None] = [None] * layers

    def rebuild(self, layer: int, row: NDArray[np.integer], shares: Sequence[float] | None = None) -> None:
        """Take a new map row of one layer: int [slots]; shares float [slots] or None for even ones."""
        replicas = replicas_of(row, self._experts)
        if self._rule == "nearest":
            replicas = [[_nearest(slots, expert, self._source)] for expert, slots in enumerate(replicas)]
        width = max(len(slots) for slots in replicas)
        table = _Table(
            slots=np.zeros((self._experts, width), dtype=np.int64),
            count=np.array([len(slots) for slots in replicas], dtype=np.int64),
            cumulative=np.full((self._experts, width), 2.0),
            sent=np.zeros(self._experts, dtype=np.int64),
        )
        for expert, slots in enumerate(replicas):
            table.slots[expert, : len(slots)] = slots
            table.cumulative[expert, : len(slots) - 1] = np.cumsum(_normal_shares(slots, shares))[:-1]
        self._tables[layer] = table

    def choose(self, layer: int, picks: NDArray[np.integer]) -> NDArray[np.int64]:
        """Slots of a step's tokens: picks [tokens, k] logical -> int64 [tokens, k]."""
        table = self._tables[layer]
        if table is None:
            raise LookupError(f"layer {layer} has no dispatch table; call rebuild first")
        experts = picks.astype(np.int64)
        if self._rule == "hash_row":
            return table.slots[experts, hash_row(len(experts), table.count[experts])]
        return table.slots[experts, self._weighted(table, experts)]

    def _weighted(self, table: _Table, experts: NDArray[np.int64]) -> NDArray[np.int64]:
        flat = experts.ravel()
        number = table.sent[flat] + _occurrence(flat)
        table.sent += np.bincount(flat, minlength=self._experts)
        place = np.modf(number * _GOLDEN + self._phase[flat])[0]
        chosen = (table.cumulative[flat] <= place[:, None]).sum(axis=1)
        return np.asarray(chosen.reshape(experts.shape), dtype=np.int64)


def _occurrence(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value came before in the array: [2, 5, 2] -> [0, 0, 1]."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    runs = np.diff(np.concatenate([starts, [len(values)]]))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - np.repeat(starts, runs)
    return result


def hash_row(rows: int, count: NDArray[np.int64]) -> NDArray[np.int64]:
    """VLLM's replica of every row: count int64 [rows, k], replicas of the picked expert -> int64 [rows, k]."""
    hashed = ((np.arange(rows, dtype=np.uint64) * _KNUTH) & _WORD).astype(np.int64)
    return np.asarray(hashed[:, None] % count, dtype=np.int64)
