"""Plans written down instead of moved: one neutral map file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import even_shares
from eplb.errors import FileError
from eplb.formats.neutral import NeutralMap, write_map
from placement import Placement

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.migration import Plan


def write_advice(folder: Path, facts: PoolFacts, plan: Plan, base: NDArray[np.int32]) -> Path:
    """Write the map that a plan leads to from ``base``, int32 [layers, slots]; returns the file.

    Raises:
        FileError: the file cannot be written.
    """
    target = base.copy()
    shares = np.stack([even_shares(row) for row in base])
    for change in plan.changes:
        target[change.layer] = change.target
        shares[change.layer] = even_shares(target[change.layer]) if change.shares is None else change.shares
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder}: cannot be made: {error.strerror}; set advice_folder to a folder that can be written"
        ) from error
    path = folder / f"{facts.pool}-{plan.plan_id}.json"
    write_map(
        path,
        NeutralMap(
            ranks=facts.ranks,
            nodes=facts.nodes,
            slots_per_rank=facts.slots_per_rank,
            experts=facts.experts,
            model_layer=facts.model_layers,
            placement=Placement(target, shares),
        ),
    )
    return path
