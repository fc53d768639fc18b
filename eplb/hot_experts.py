"""The experts that carry the most: whether they are still the ones a map was made for, and whether any map could spread them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts


@dataclass(frozen=True, slots=True)
class HotExpert:
    """The expert that binds a layer most: model layer, expert, and its load over a rank's fair share."""

    layer: int
    expert: int
    load_ratio: float


def least_ratio(tokens: NDArray[np.int64], facts: PoolFacts, ranks: int | None = None) -> NDArray[np.float64]:
    """Imbalance ratio that no map with these slots can go below: float64 [slices, layers], 1 where nothing binds, NaN = no load.

    ``tokens``: int64 [slices, layers, experts]; ``ranks`` that serve, None = all of the pool. The busiest rank carries at least the largest load over as many copies as there can be, and
    without redundant slots also the ``slots_per_rank - 1`` smallest others, because every slot is taken.
    """
    living = facts.ranks if ranks is None else ranks
    spare = living * facts.slots_per_rank - facts.experts
    top = tokens.max(axis=2).astype(np.float64)
    if spare > 0:
        top /= min(living, 1 + spare)
    elif facts.slots_per_rank > 1:
        others = facts.slots_per_rank - 1
        top += np.partition(tokens, others - 1, axis=2)[:, :, :others].sum(axis=2)
    total = tokens.sum(axis=2)
    share = np.where(total > 0, total, 1) / living
    return np.where(total > 0, np.maximum(1.0, top / share), np.nan)


def hottest(tokens: NDArray[np.int64], facts: PoolFacts, ranks: int | None = None) -> HotExpert | None:
    """The expert with the highest load over a rank's fair share in any layer, of the sum over slices; None without load.

    ``ranks`` that serve, None = all of the pool.
    """
    summed = tokens.sum(axis=0)
    total = summed.sum(axis=1)
    if not total.any():
        return None
    ratio = summed.max(axis=1) * (facts.ranks if ranks is None else ranks) / np.where(total > 0, total, 1)
    layer = int(ratio.argmax())
    return HotExpert(facts.model_layers[layer], int(summed[layer].argmax()), float(ratio[layer]))


def hot_set_drift(then: NDArray[np.int64], now: NDArray[np.int64], size: int) -> float:
    """Share of the load of the hottest experts now that those hottest then do not carry: 0 = the same, 1 = none of it; NaN = no load.

    ``then``, ``now``: int64 [layers, experts], summed tokens; mean over layers with load in both. ``size``: experts of the hot set. Weighing by load keeps
    experts that are nearly equal, whose order is chance, from counting as drift.
    """
    size = min(size, now.shape[1])
    drifts = []
    for before, after in zip(then, now, strict=True):
        if before.any() and after.any():
            old = np.argsort(-before, kind="stable")[:size]
            new = np.argsort(-after, kind="stable")[:size]
            drifts.append(1.0 - int(after[old].sum()) / int(after[new].sum()))
    return math.fsum(drifts) / len(drifts) if drifts else math.nan
