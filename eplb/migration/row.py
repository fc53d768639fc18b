"""One layer on its way from one row to another: what it serves and what it costs when some of its slots have changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import even_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True)
class RowChange:
    """Where one layer comes from and goes to, the slots of each rank in an order that moves least.

    ``layer``: its position. ``base``, ``target``: int32 [slots]; ``base_shares``, ``target_shares``: float64 [slots] or None = even. ``load``: float64
    [experts], tokens that each expert is expected to get, or None: then every row is as good as another.
    """

    layer: int
    base: NDArray[np.int32]
    target: NDArray[np.int32]
    base_shares: NDArray[np.float64] | None
    target_shares: NDArray[np.float64] | None
    slots_per_rank: int
    experts: int
    load: NDArray[np.float64] | None = None

    @cached_property
    def changed(self) -> list[int]:
        """Slots that get another expert or none."""
        return [int(slot) for slot in np.flatnonzero(self.base != self.target)]

    @cached_property
    def start(self) -> float:
        """Tokens of the busiest rank under the base, as ``peak``."""
        return self._peak(self.base, self.base_shares)

    @cached_property
    def ceiling(self) -> float:
        """Tokens of the busiest rank that no boundary may exceed: those at the start, or at the end if they are more."""
        return max(self.start, self._peak(self.target, self.target_shares))

    def row(self, applied: Sequence[int]) -> NDArray[np.int32]:
        """The row once these slots have changed: int32 [slots]."""
        row = self.base.copy()
        places = list(applied)
        row[places] = self.target[places]
        return row

    def shares(self, applied: Sequence[int]) -> NDArray[np.float64] | None:
        """The shares that go with :meth:`row`: float64 [slots], or None = even.

        An expert whose slots are all the target's has the target's shares, one whose slots are all the base's has the
        base's, and one in between has even ones.
        """
        if self.base_shares is None and self.target_shares is None:
            return None
        row = self.row(applied)
        done = np.zeros(len(row), dtype=np.bool_)
        done[list(applied)] = True
        changed = self.base != self.target
        begun, left = self._involved(changed & done), self._involved(changed & ~done)
        shares = even_shares(row)
        before = even_shares(self.base) if self.base_shares is None else self.base_shares
        after = even_shares(self.target) if self.target_shares is None else self.target_shares
        shares = np.where(~begun[row], before, shares)
        shares = np.where(~left[row], after, shares)
        return np.where(row >= 0, shares, 0.0)

    def arrivals(self, slots: Sequence[int]) -> int:
        """The most experts that these slots bring to one rank."""
        ranks = [slot // self.slots_per_rank for slot in slots if self.target[slot] >= 0]
        return max((ranks.count(rank) for rank in set(ranks)), default=0)

    def peak(self, applied: Sequence[int]) -> float:
        """Tokens of the busiest rank once these slots have changed; 0 without loads."""
        return self._peak(self.row(applied), self.shares(applied))

    def hot_slots(self, applied: Sequence[int]) -> NDArray[np.bool_]:
        """Slots whose change can relieve the busiest rank: its own, and those that get an expert of its own: bool [slots]."""
        row = self.row(applied)
        load = self._by_rank(row, self.shares(applied))
        first = int(load.argmax()) * self.slots_per_rank
        own = np.zeros(len(row), dtype=np.bool_)
        own[first : first + self.slots_per_rank] = True
        return np.asarray(own | np.isin(self.target, row[own & (row >= 0)]), dtype=np.bool_)

    def _involved(self, slots: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Experts that these slots give up or get: bool [experts + 1], the last for empty slots."""
        involved = np.zeros(self.experts + 1, dtype=np.bool_)
        involved[self.base[slots]] = True
        involved[self.target[slots]] = True
        return involved

    def _peak(self, row: NDArray[np.int32], shares: NDArray[np.float64] | None) -> float:
        return 0.0 if self.load is None else float(self._by_rank(row, shares).max())

    def _by_rank(self, row: NDArray[np.int32], shares: NDArray[np.float64] | None) -> NDArray[np.float64]:
        load = np.zeros(self.experts) if self.load is None else self.load
        parts = even_shares(row) if shares is None else shares
        tokens = np.where(row >= 0, load[row] * parts, 0.0).reshape(-1, self.slots_per_rank)
        # Running sums have one order on every machine; np.sum has not.
        return np.asarray(np.cumsum(tokens, axis=1)[:, -1], dtype=np.float64)
