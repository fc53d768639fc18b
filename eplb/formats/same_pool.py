"""Two maps of one pool: what differs, and the same map with everything that stays in its present slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from placement import Placement
from placement.layer import make_layer
from placement.relabel import keep_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.formats.neutral import NeutralMap


def in_place(neutral: NeutralMap, current: NeutralMap) -> NeutralMap:
    """The same map with every expert that stays on its rank in the slot that it has in ``current``; shares move along.

    Raises:
        FileError: the two are not maps of one pool.
    """
    check_same_pool(neutral, current)
    old = neutral.placement
    layer = make_layer(np.zeros((1, neutral.experts), dtype=np.int64), np.ones(1), neutral.topology())
    rows = np.array(
        [
            keep_slots(layer, _filled(row, neutral.experts), _filled(live, neutral.experts))
            for row, live in zip(old.physical_to_logical, current.placement.physical_to_logical, strict=True)
        ]
    )
    rows[rows == neutral.experts] = -1
    shares = None if old.shares is None else _moved_shares(neutral, old.shares, rows)
    return replace(neutral, placement=Placement(rows, shares))


def _filled(row: NDArray[np.int32], experts: int) -> NDArray[np.int64]:
    return np.where(row < 0, experts, row).astype(np.int64)


def _moved_shares(
    neutral: NeutralMap, shares: NDArray[np.float64], rows: NDArray[Any]
) -> NDArray[np.float64]:
    """Shares of the slots of ``rows``, which holds on each rank what the map holds there, in another order."""
    old = neutral.placement.physical_to_logical
    shape = (len(rows), neutral.ranks, neutral.slots_per_rank)
    was, now = np.argsort(old.reshape(shape), axis=2), np.argsort(rows.reshape(shape), axis=2)
    moved = np.empty(shape)
    np.put_along_axis(moved, now, np.take_along_axis(shares.reshape(shape), was, axis=2), axis=2)
    return moved.reshape(rows.shape)


def check_same_pool(one: NeutralMap, other: NeutralMap) -> None:
    """Refuse to compare maps of different pools.

    Raises:
        FileError: names the facts that differ.
    """
    for name in ("ranks", "slots_per_rank", "experts"):
        first, second = getattr(one, name), getattr(other, name)
        if first != second:
            raise FileError(
                f"the maps are of different pools: {name} is {first} in one, {second} in the other"
            )
    layers = one.placement.layers, other.placement.layers
    if layers[0] != layers[1]:
        raise FileError(
            f"the maps are of different models: {layers[0]} layers in one, {layers[1]} in the other"
        )


def differing_slots(one: NeutralMap, other: NeutralMap) -> NDArray[np.int64]:
    """Slots that hold something else in the other map, int64 [differences, 2]: layer and slot.

    Raises:
        FileError: see ``check_same_pool``.
    """
    check_same_pool(one, other)
    unequal = one.placement.physical_to_logical != other.placement.physical_to_logical
    return np.argwhere(unequal).astype(np.int64)
