"""Which slices a plan may see, and which are kept to score it."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray


def held_out(kinds: Sequence[Hashable], fraction: float) -> NDArray[np.bool_]:
    """Hold out about ``fraction`` of the slices of every kind, evenly spread: bool [slices], true = the plan never sees it.

    ``kinds``: what each slice is of, such as its domain and phase. Slices are counted through kind by kind, and slice j is held
    out where floor((j + 1) x fraction) exceeds floor(j x fraction). With two slices or more and a fraction above 0 at least one is held out and
    at least one is not; a single slice is never held out.
    """
    held = np.zeros(len(kinds), dtype=np.bool_)
    if len(kinds) < 2 or fraction <= 0:
        return held
    first = {kind: at for at, kind in reversed(list(enumerate(kinds)))}
    order = sorted(range(len(kinds)), key=lambda at: (first[kinds[at]], at))
    for j, at in enumerate(order):
        held[at] = floor((j + 1) * fraction) > floor(j * fraction)
    if not held.any():
        held[order[-1]] = True
    if held.all():
        held[order[0]] = False
    return held
