"""What the readers and writers of engine maps share: whole numbers, the pool that rows imply, and rules of every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Layers
from eplb.formats.layers import layers_of
from eplb.formats.neutral import NeutralMap
from placement import Placement, violations
from placement.layer import make_layer
from placement.relabel import keep_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.formats.facts import MapFacts


def listed(value: Any, where: str, of: str) -> list[Any]:
    """A list of a document with at least one member.

    Raises:
        FileError: names the place, what was found and what was expected.
    """
    if not isinstance(value, list):
        raise FileError(f"{where} is a {type(value).__name__}, expected a list of {of}")
    if not value:
        raise FileError(f"{where} is an empty list, expected {of}")
    return value


def neutral_map(rows: NDArray[Any], ranks: int, facts: MapFacts) -> NeutralMap:
    """The neutral map of rows as a file holds them, valid for every engine.

    ``rows``: whole numbers [layers, slots], slots rank by rank. ``facts.experts``: None = the highest id + 1.

    Raises:
        FileError: the rows and the facts do not fit, or the map breaks a rule.
    """
    layers, slots = rows.shape
    if facts.ranks is not None and facts.ranks != ranks:
        raise FileError(f"the map is for {ranks} ranks, asked for {facts.ranks}: leave --ranks away")
    if ranks < 1 or slots % ranks:
        raise FileError(f"{slots} slots a layer cannot be shared evenly by {ranks} ranks: correct --ranks")
    nodes = 1 if facts.nodes is None else facts.nodes
    if not 1 <= nodes <= ranks:
        raise FileError(f"{nodes} nodes for {ranks} ranks: correct --nodes")
    _check_ids(rows)
    known = layers_of(Layers(), facts.layers, layers)
    experts = int(rows.max()) + 1 if facts.experts is None else facts.experts
    neutral = NeutralMap(
        ranks=ranks,
        nodes=nodes,
        slots_per_rank=slots // ranks,
        experts=experts,
        model_layer=known.model_layer,
        hidden_layers=known.hidden_layers,
        placement=Placement(rows),
    )
    check_valid(neutral)
    return neutral


def _check_ids(rows: NDArray[Any]) -> None:
    """Before experts are counted: one wild id would make billions of them."""
    slots = rows.shape[1]
    bad = (rows < 0) | (rows >= slots)
    if bad.any():
        layer, slot = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
        raise FileError(
            f"layer {layer}, slot {slot} holds {rows[layer, slot]}, expected an expert: {slots} slots a layer hold at "
            f"most 0..{slots - 1}"
        )


def check_valid(neutral: NeutralMap) -> None:
    """Refuse what no engine can serve: an empty slot, an expert without a slot, one twice on a rank, an unknown one.

    Raises:
        FileError: names the first violation and how many there are.
    """
    rows = neutral.placement.physical_to_logical
    if neutral.experts > rows.shape[1]:
        high = int(rows.max())
        raise FileError(
            f"{neutral.experts} experts (highest id {high}) do not fit into {rows.shape[1]} slots a layer: "
            "every expert needs one"
        )
    empty = np.argwhere(rows < 0)
    if len(empty):
        layer, slot = (int(i) for i in empty[0])
        raise FileError(
            f"layer {layer}, slot {slot} holds {rows[layer, slot]}, expected an expert: engines have no empty slots; "
            "solve for slots that are all filled"
        )
    found = violations(neutral.placement, neutral.topology(), neutral.experts)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise FileError(f"not a valid map: {found[0].sentence}{more}")


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
