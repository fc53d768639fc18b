"""Which ranks took part in each life of the group: a step is whole when its members have told it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LIVES_REMEMBERED = 16


class Members:
    """Members by ``run_id``; a life of which nobody has said anything has all ranks. ``present`` bool [ranks], of the newest life."""

    def __init__(self, ranks: int) -> None:
        self._all = np.ones(ranks, dtype=np.bool_)
        self._lives: OrderedDict[int, NDArray[np.bool_]] = OrderedDict()
        self.present = self._all

    def name(self, run_id: int, members: Sequence[int]) -> bool:
        """Say who the members of the life that serves now are; true when that is news."""
        mask = np.zeros(len(self._all), dtype=np.bool_)
        mask[list(members)] = True
        news = not np.array_equal(self.of(run_id), mask)
        self.present = self._lives[run_id] = mask
        self._lives.move_to_end(run_id)
        while len(self._lives) > LIVES_REMEMBERED:
            self._lives.popitem(last=False)
        return news

    def of(self, run_id: int) -> NDArray[np.bool_]:
        """Members of a life: bool [ranks]."""
        return self._lives.get(run_id, self._all)

    def counts(self, run_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Members of the life of each slice: uint64 [slices] -> int64 [slices]; 0 stands for an interval, of the present ones."""
        return np.array([self._mask(run_id).sum() for run_id in run_ids.tolist()], dtype=np.int64)

    def same(self, run_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each slice was served by the ranks that serve now: uint64 [slices] -> bool [slices]."""
        equal = [np.array_equal(self._mask(run_id), self.present) for run_id in run_ids.tolist()]
        return np.array(equal, dtype=np.bool_)

    def _mask(self, run_id: int) -> NDArray[np.bool_]:
        return self.of(run_id) if run_id else self.present
