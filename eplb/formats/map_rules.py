"""Rules that map files of engines without empty slots have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.neutral import NeutralMap
from placement import EMPTY, Placement, violations
from placement.routes import MOST_EXPERTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.formats.facts import MapFacts


def map_of(table: NDArray[Any], facts: MapFacts, name: str) -> NeutralMap:
    """The map that rows of an engine's file stand for, whole numbers [layers, slots] in the order of ``facts.layers``.

    ``facts.experts``: None = the highest id + 1. Twins and experts without a slot are left for the caller to judge.

    Raises:
        FileError: ranks are not known or do not divide the slots, or an id is out of range; ``name`` is the table's.
    """
    slots = table.shape[1]
    if facts.ranks is None:
        raise FileError("does not say on how many ranks its slots stand: give --ranks")
    if facts.ranks < 1 or slots % facts.ranks:
        raise FileError(
            f"has {slots} slots a layer, which {facts.ranks} ranks cannot share evenly: give --ranks"
        )
    nodes = facts.nodes or 1
    if not 1 <= nodes <= facts.ranks:
        raise FileError(f"cannot stand on {nodes} nodes: there are {facts.ranks} ranks; give --nodes")
    most = MOST_EXPERTS if facts.experts is None else facts.experts
    bad = (table < 0) | (table >= most)
    if bad.any():
        row, slot = (int(at) for at in np.unravel_index(int(bad.argmax()), bad.shape))
        number = row if facts.layers.model_layer is None else facts.layers.model_layer[row]
        raise FileError(
            f"{name} of layer {number}, slot {slot} is {table[row, slot]}, expected an expert, 0..{most - 1}"
        )
    return NeutralMap(
        ranks=facts.ranks,
        nodes=nodes,
        slots_per_rank=slots // facts.ranks,
        experts=facts.experts or int(table.max()) + 1,
        model_layer=facts.layers.model_layer,
        hidden_layers=facts.layers.hidden_layers,
        draft_layers=facts.layers.draft_layers,
        placement=Placement(table),
    )


def check_sound(neutral: NeutralMap) -> None:
    """Refuse a map that an engine without empty slots would stop on, or serve wrongly.

    Raises:
        FileError: a slot is empty, an expert has none or stands twice on a rank, an id is out of range, or the width is wrong.
    """
    rows = neutral.placement.physical_to_logical
    numbers = neutral.model_layer or tuple(range(len(rows)))
    if (rows == EMPTY).any():
        row, slot = (int(at) for at in np.argwhere(rows == EMPTY)[0])
        raise FileError(
            f"slot {slot} of model layer {numbers[row]} is empty, and this engine has no empty slots: place with at most as many "
            "slots as the experts can fill"
        )
    found = violations(neutral.placement, neutral.topology(), neutral.experts)
    if found:
        where = "" if found[0].layer < 0 else f" (model layer {numbers[found[0].layer]})"
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise FileError(f"not a valid map: {found[0].sentence}{where}{more}")


def identity_row(slots: int, experts: int) -> list[int]:
    """The row that engines start with: every expert in turn, and again in the redundant slots."""
    return [slot % experts for slot in range(slots)]
