"""Maps: which expert sits in which slot, and what is wrong with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.checks import instance, raw_array, real_array, whole
from placement.errors import MapError
from placement.groups import main_nodes
from placement.policy import resolve
from placement.topology import MOST_SLOTS, Topology

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

EMPTY = -1
"""Value of a slot that holds no expert."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Placement:
    """Which logical expert every slot holds; any map that is seen in the field, valid or not.

    ``physical_to_logical``: int32 [layers, slots], -1 = empty slot (read-only copy).
    ``shares``: float64 [layers, slots] or None, part of its expert's tokens that a slot is to get.

    Raises:
        MapError: the ids are not whole numbers, not two-dimensional, or the shares have another shape.
    """

    physical_to_logical: NDArray[np.int32]
    shares: NDArray[np.float64] | None

    def __init__(self, physical_to_logical: ArrayLike, shares: ArrayLike | None = None) -> None:
        ids = raw_array("the ids of a map", physical_to_logical, MapError)
        if ids.ndim != 2 or 0 in ids.shape:
            raise MapError(f"a map has shape {list(ids.shape)}, expected [layers, slots]")
        if ids.dtype.kind not in "iu":
            raise MapError(f"a map holds {ids.dtype}, expected whole numbers: cast it where it is read")
        if ids.size and (int(ids.max()) > 2**31 - 1 or int(ids.min()) < -(2**31)):
            raise MapError(f"a map holds ids from {ids.min()} to {ids.max()}, outside int32")
        rows = np.array(ids, dtype=np.int32, order="C")
        rows.setflags(write=False)
        object.__setattr__(self, "physical_to_logical", rows)
        object.__setattr__(self, "shares", None if shares is None else _checked_shares(shares, rows.shape))

    @property
    def layers(self) -> int:
        """Number of MoE layers."""
        return int(self.physical_to_logical.shape[0])

    @property
    def slots(self) -> int:
        """Slots of one layer."""
        return int(self.physical_to_logical.shape[1])

    def replicas(self, experts: int) -> NDArray[np.int64]:
        """Slots that hold each expert, int64 [layers, experts]; ids outside 0..experts-1 are not counted.

        Raises:
            MapError: ``experts`` is no whole number, negative, or above any pool.
        """
        experts, rows = whole("experts", experts, 0, MapError, MOST_SLOTS), self.physical_to_logical
        counts = np.zeros((self.layers, experts + 1), dtype=np.int64)
        known = np.where((rows >= 0) & (rows < experts), rows, experts)
        np.add.at(counts, (np.arange(self.layers)[:, None], known), 1)
        return counts[:, :experts]


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that a map breaks.

    ``code``: ``wrong_width``, ``unknown_expert``, ``missing_expert``, ``twin``, ``dead_rank``, ``split_group`` or ``gap``.
    ``layer``, ``rank``, ``slot``, ``expert``: the place, -1 where it does not apply.
    """

    code: str
    layer: int
    sentence: str
    rank: int = -1
    slot: int = -1
    expert: int = -1


def violations(placement: Placement, topology: Topology, experts: int | None = None) -> list[Violation]:
    """List every rule that a map breaks, in the order of layers and slots.

    ``experts``: number of logical experts; None = the highest id of the map + 1 (give it where the topology has groups).
    A gap is an empty slot of a live rank which some expert could fill without becoming a twin. Where the policy of the
    topology resolves to ``hierarchical``, a group belongs to the node with most of its copies: copies elsewhere are
    ``split_group``, and a gap is what an expert of the node's own groups could fill (any expert, if it has none).

    Raises:
        InfeasibleError: the topology asks for ``hierarchical`` and no map can keep the groups whole.
        MapError: ``experts`` is no whole number or below 1, or it, or an id where it is not given, is above any pool.
    """
    instance("placement", placement, Placement, MapError)
    instance("topology", topology, Topology)
    rows = placement.physical_to_logical
    if placement.slots != topology.slots:
        text = f"the map has {placement.slots} slots a layer, the topology {topology.slots}"
        return [Violation("wrong_width", -1, text)]
    count = max(0, int(rows.max()) + 1) if experts is None else whole("experts", experts, 1, MapError)
    if count > MOST_SLOTS:
        raise MapError(f"{count} experts are above the limit of {MOST_SLOTS}: no pool has slots for them")
    grouped = count > 0 and len(topology.dead) < topology.ranks and resolve(topology, count).hierarchical
    found: list[Violation] = []
    for layer, row in enumerate(rows):
        may = _allowed(row, topology, count) if grouped else None
        found.extend(_row_violations(layer, row, topology, count, may))
    return found


def _allowed(row: NDArray[np.int32], topology: Topology, experts: int) -> NDArray[np.bool_]:
    """Which rank may hold which expert when every group stays on its main node, bool [experts, ranks]."""
    node = np.array(topology.node_of_rank)
    rank_of_slot = topology.rank_of_slot()
    served = np.where(np.isin(rank_of_slot, list(topology.dead)), EMPTY, row)
    home = main_nodes(served.astype(np.int64), node[rank_of_slot], experts, topology.expert_groups)
    may: NDArray[np.bool_] = home[:, None] == node
    return may


def _row_violations(
    layer: int,
    row: NDArray[np.int32],
    topology: Topology,
    experts: int,
    may: NDArray[np.bool_] | None,
) -> list[Violation]:
    rank_of_slot, dead = topology.rank_of_slot(), topology.dead
    found: list[Violation] = []
    held: dict[int, set[int]] = {}
    gaps: list[tuple[int, int]] = []
    served: set[int] = set()
    for slot, (expert, rank) in enumerate(zip(row.tolist(), rank_of_slot.tolist(), strict=True)):
        at = f"layer {layer}, rank {rank}, slot {slot}"
        if expert == EMPTY:
            gaps.append((slot, rank))
        elif not 0 <= expert < experts:
            found.append(
                Violation(
                    "unknown_expert",
                    layer,
                    f"{at} holds expert {expert}, there are {experts}",
                    rank,
                    slot,
                    expert,
                )
            )
        elif rank in dead:
            found.append(
                Violation(
                    "dead_rank", layer, f"{at} holds expert {expert} on a dead rank", rank, slot, expert
                )
            )
        elif expert in held.setdefault(rank, set()):
            found.append(
                Violation(
                    "twin", layer, f"{at} holds expert {expert} a second time on its rank", rank, slot, expert
                )
            )
        else:
            held[rank].add(expert)
            served.add(expert)
            if may is not None and not may[expert, rank]:
                text = f"{at} holds expert {expert}, whose group is on another node"
                found.append(Violation("split_group", layer, text, rank, slot, expert))
    for slot, rank in gaps:
        most = experts if may is None else int(may[:, rank].sum()) or experts
        if rank not in dead and len(held.get(rank, ())) < most:
            found.append(
                Violation("gap", layer, f"layer {layer}, rank {rank}, slot {slot} is empty", rank, slot)
            )
    found.extend(
        Violation(
            "missing_expert",
            layer,
            f"layer {layer}: expert {expert} has no slot on a live rank",
            expert=expert,
        )
        for expert in range(experts)
        if expert not in served
    )
    return found


def _checked_shares(shares: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = real_array("shares", shares, MapError)
    if array.shape != shape:
        raise MapError(f"shares have shape {list(array.shape)}, the map {list(shape)}")
    if not np.isfinite(array).all() or (array < 0).any() or (array > 1).any():
        raise MapError("shares must be finite and in 0..1")
    array.setflags(write=False)
    return array
