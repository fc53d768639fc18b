"""What a change of the number of ranks asks for: how few ranks hold the model, and which tensors a new rank is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def fewest_ranks(experts: int, slots_per_rank: int) -> int:
    """The fewest ranks whose slots hold every expert."""
    return -(-experts // slots_per_rank)


def redundancy_at(experts: int, slots_per_rank: int, ranks: int) -> int:
    """Redundant experts of one layer on so many ranks; asked before anything is changed.

    Raises:
        PlanError: the ranks cannot hold all experts, or hold one twice.
    """
    least = fewest_ranks(experts, slots_per_rank)
    if ranks < least:
        raise PlanError(
            f"{ranks} ranks x {slots_per_rank} slots cannot hold {experts} experts: at least {least} ranks are needed; nothing changed"
        )
    return ranks * slots_per_rank - experts


def copied_tensors(present: Iterable[str], per_expert: Iterable[str]) -> tuple[str, ...]:
    """Names of the tensors that a new rank is sent, in the order of ``per_expert``: those alone that belong to an expert.

    All else that a layer holds is the rank's own, such as its map and mask, and is made from the placement.

    Raises:
        PlanError: a tensor that is declared per expert is not there.
    """
    here, wanted = set(present), tuple(per_expert)
    missing = [name for name in wanted if name not in here]
    if missing:
        raise PlanError(
            f"tensors {', '.join(missing)} are declared per expert and the layer has none; correct the names"
        )
    return wanted


def expert_mask(row: NDArray[np.int32], rank: int, slots_per_rank: int, experts: int) -> NDArray[np.bool_]:
    """Which experts a rank holds by its own part of a row: int32 [slots] -> bool [experts]."""
    mask = np.zeros(experts, dtype=np.bool_)
    own = row[rank * slots_per_rank : (rank + 1) * slots_per_rank]
    mask[own[own >= 0]] = True
    return mask
