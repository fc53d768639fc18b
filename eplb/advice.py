"""Plans written down instead of moved: one neutral map file each, of which the newest are kept."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from collectors.shares import even_shares
from eplb.formats.files import make_folder
from eplb.formats.neutral import NeutralMap, write_map
from placement import Placement

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.migration import Plan

KEPT_FILES = 100
"""Plans of a pool that stay on disk: with the default rest between plans, the last eight hours."""


def write_advice(folder: Path, facts: PoolFacts, plan: Plan, base: NDArray[np.int32]) -> Path:
    """Write the map that a plan leads to from ``base``, int32 [layers, slots]; returns the file.

    Of the pool's files the newest ``KEPT_FILES`` stay.

    Raises:
        FileError: the folder cannot be made or the file not written.
    """
    target = base.copy()
    shares = np.stack([even_shares(row) for row in base])
    for change in plan.changes:
        target[change.layer] = change.target
        shares[change.layer] = even_shares(target[change.layer]) if change.shares is None else change.shares
    make_folder(folder, "advice_folder")
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
    _drop_old(folder, facts.pool)
    return path


def _drop_old(folder: Path, pool: str) -> None:
    """Delete what was written here longest ago; a file that is gone, or may not be deleted, is no fault of the new plan."""
    name = re.compile(re.escape(pool) + r"-p[0-9a-f]{10}\.json")
    with suppress(OSError):
        files = [path for path in folder.iterdir() if name.fullmatch(path.name)]
        for path in sorted(files, key=lambda path: path.stat().st_mtime_ns)[:-KEPT_FILES]:
            path.unlink(missing_ok=True)
