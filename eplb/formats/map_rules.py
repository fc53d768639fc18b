"""What map files of engines have in common: the pool that rows imply, and the rules of engines without empty slots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Note
from eplb.formats.model_rows import listed
from eplb.formats.neutral import SHARE_ERROR, NeutralMap
from placement import EMPTY, Placement, violations
from placement.topology import MOST_SLOTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.formats.facts import MapFacts


def map_of(table: NDArray[Any], facts: MapFacts, name: str) -> NeutralMap:
    """The map that rows of an engine's file stand for, whole numbers [layers, slots] in the order of ``facts.layers``.

    ``facts.experts``: None = the highest id + 1. Twins and experts without a slot are left for the caller to judge.

    Raises:
        FileError: ranks are not known or do not divide the slots, an id is out of range, or there are more experts than slots;
            ``name`` is the table's.
    """
    slots = table.shape[1]
    if facts.ranks is None:
        raise FileError("does not say on how many ranks its slots stand: give --ranks")
    if facts.ranks < 1 or slots % facts.ranks:
        raise FileError(
            f"{slots} slots a layer cannot be shared evenly by {facts.ranks} ranks: correct --ranks"
        )
    nodes = 1 if facts.nodes is None else facts.nodes
    if not 1 <= nodes <= facts.ranks:
        raise FileError(f"{nodes} nodes for {facts.ranks} ranks: correct --nodes")
    if slots > MOST_SLOTS:
        raise FileError(f"{slots} slots a layer are more than any pool has, expected at most {MOST_SLOTS}")
    _check_ids(table, facts, name)
    return NeutralMap(
        ranks=facts.ranks,
        nodes=nodes,
        slots_per_rank=slots // facts.ranks,
        experts=int(table.max()) + 1 if facts.experts is None else facts.experts,
        model_layer=facts.layers.model_layer,
        hidden_layers=facts.layers.hidden_layers,
        draft_layers=facts.layers.draft_layers,
        placement=Placement(table),
    )


def _check_ids(table: NDArray[Any], facts: MapFacts, name: str) -> None:
    """Before experts are counted: one wild id would make billions of them."""
    slots = table.shape[1]
    if facts.experts is not None and not 1 <= facts.experts <= slots:
        raise FileError(
            f"{facts.experts} experts (highest id {int(table.max())}) do not fit into {slots} slots a layer: every expert needs "
            "one; correct --experts"
        )
    most = slots if facts.experts is None else facts.experts
    bad = (table < 0) | (table >= most)
    if bad.any():
        row, slot = (int(at) for at in np.unravel_index(int(bad.argmax()), bad.shape))
        number = row if facts.layers.model_layer is None else facts.layers.model_layer[row]
        raise FileError(
            f"{name} of layer {number}, slot {slot} is {table[row, slot]}, expected an expert, 0..{most - 1}"
        )


def check_moe_rows(neutral: NeutralMap) -> None:
    """Refuse a map whose rows may be those of dense layers too, where rows count by their position among the MoE layers.

    Raises:
        FileError: there is a row for every layer of the model, and nobody says which are MoE layers.
    """
    if neutral.model_layer is None and neutral.hidden_layers == neutral.placement.layers:
        raise FileError(
            f"has a row for each of the {neutral.hidden_layers} layers of the model, and which of them are MoE layers is not "
            f"known: give --moe-layers (0-{neutral.hidden_layers - 1} if all are), or dense rows would shift the others in silence"
        )


def check_sound(neutral: NeutralMap) -> None:
    """Refuse a map that an engine without empty slots would stop on, or serve wrongly.

    Raises:
        FileError: a slot is empty, an expert has none or stands twice on a rank, an id is out of range, or the width is wrong.
    """
    rows = neutral.placement.physical_to_logical
    if neutral.experts > rows.shape[1]:
        raise FileError(
            f"{neutral.experts} experts (highest id {int(rows.max())}) do not fit into {rows.shape[1]} slots a layer: "
            "every expert needs one"
        )
    if (rows == EMPTY).any():
        row, slot = (int(at) for at in np.argwhere(rows == EMPTY)[0])
        raise FileError(
            f"slot {slot} of {_layer(neutral, row)} is empty, and this engine has no empty slots: place with at most as many "
            "slots as the experts can fill"
        )
    found = violations(neutral.placement, neutral.topology(), neutral.experts)
    if found:
        where = "" if found[0].layer < 0 else f" ({_layer(neutral, found[0].layer)})"
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise FileError(f"not a valid map: {found[0].sentence}{where}{more}")


def _layer(neutral: NeutralMap, row: int) -> str:
    return f"row {row}" if neutral.model_layer is None else f"model layer {neutral.model_layer[row]}"


def in_model_order(neutral: NeutralMap) -> NeutralMap:
    """The same map with its rows in the order of the model's layers, as far as they are known."""
    numbers = neutral.model_layer
    if numbers is None or list(numbers) == sorted(numbers):
        return neutral
    order = np.argsort(numbers)
    old = neutral.placement
    shares = None if old.shares is None else old.shares[order]
    placement = Placement(old.physical_to_logical[order], shares)
    return replace(neutral, model_layer=tuple(sorted(numbers)), placement=placement)


def beside(neutral: NeutralMap, *, ranks: bool, layers: bool) -> Note | None:
    """What a file does not say of a map and a reader must be told, None = nothing.

    ``ranks``, ``layers``: whether the file says on how many ranks its slots are, and which layers of the model its rows are.
    """
    lost = [] if ranks else [f"--ranks {neutral.ranks}"]
    lost += [f"--nodes {neutral.nodes}"] if neutral.nodes > 1 else []
    if neutral.model_layer is not None and not layers:
        lost.append(f"--moe-layers {listed(neutral.model_layer).replace(', ', ',')}")
    lost += [] if neutral.hidden_layers is None else [f"--hidden-layers {neutral.hidden_layers}"]
    if neutral.draft_layers:
        lost.append(f"--draft-layers {listed(neutral.draft_layers).replace(', ', ',')}")
    if not lost:
        return None
    return Note(
        "not_in_file",
        f"the file does not say {', '.join(part.split()[0][2:].replace('-', ' ') for part in lost)}",
        f"read it back with {' '.join(lost)}",
    )


def uneven_shares(neutral: NeutralMap) -> bool:
    """Whether some replica is to get another share than 1 / copies, which no file of these engines can say."""
    shares, rows = neutral.placement.shares, neutral.placement.physical_to_logical
    copies = neutral.placement.replicas(neutral.experts)
    even = 1 / np.maximum(copies, 1)[np.arange(len(rows))[:, None], np.maximum(rows, 0)]
    return shares is not None and bool((np.abs(shares - even) > SHARE_ERROR)[rows >= 0].any())
