"""Which slices a plan sees and which are kept to score it on."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

import numpy as np

from eplb.errors import FileError
from placement import LoadTrace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.formats.facts import TraceFile

HOLDOUT = 0.25
"""Part of the slices that is held out, unless said otherwise: the plan that is scored should see nearly what the written one sees."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Split:
    """``seen``: the slices to plan on. ``unseen``: the others. Every slice is in one of the two."""

    seen: LoadTrace
    unseen: LoadTrace


def split(trace: LoadTrace, kinds: tuple[tuple[str, str], ...], fraction: float) -> Split | None:
    """Hold out ``fraction`` of the slices, evenly spread over each kind; None where 0 or a single slice leaves nothing to hold out.

    ``kinds``: domain and phase of every slice. At least one slice is on either side. The same slices for the same kinds.
    """
    if fraction <= 0 or trace.slices < 2:
        return None
    unseen = held_out(kinds, fraction)
    return Split(part(trace, ~unseen), part(trace, unseen))


def held_out(kinds: tuple[tuple[str, str], ...], fraction: float) -> NDArray[np.bool_]:
    """Which slices only score: about ``fraction`` of every kind, evenly spread over it; bool [slices], all false with 0 or of a single slice.

    Slices are counted through kind by kind, and slice j is held out where floor((j + 1) x fraction) exceeds floor(j x fraction).
    """
    held = np.zeros(len(kinds), dtype=np.bool_)
    if fraction <= 0 or len(kinds) < 2:
        return held
    # One running count over all kinds: many small kinds give their part too.
    order = sorted(range(len(kinds)), key=lambda at: kinds[at])
    for place, at in enumerate(order):
        held[at] = floor((place + 1) * fraction + ROUNDING) > floor(place * fraction + ROUNDING)
    if held.all():
        held[order[0]] = False
    if not held.any():
        held[order[-1]] = True
    return held


def kinds_of(file: TraceFile) -> tuple[tuple[str, str], ...]:
    """Domain and phase of every slice, '' = unknown."""
    unknown = ("",) * file.trace.slices
    return tuple(zip(file.domain or unknown, file.phase or unknown, strict=True))


def seen_kinds(kinds: tuple[tuple[str, str], ...], fraction: float) -> tuple[tuple[str, str], ...]:
    """The kinds of the slices that ``split`` leaves to plan on."""
    unseen = held_out(kinds, fraction)
    return tuple(kind for kind, out in zip(kinds, unseen.tolist(), strict=True) if not out)


def part(trace: LoadTrace, keep: NDArray[np.bool_]) -> LoadTrace:
    """The slices for which ``keep`` (bool [slices]) is true, with all that is known of them.

    Routes and counts by source are of the whole trace and stay: they say who talks to whom, not how much.
    """

    def kept(
        values: NDArray[np.int64] | NDArray[np.float64] | None,
    ) -> NDArray[np.int64] | NDArray[np.float64] | None:
        return None if values is None else values[keep]

    return LoadTrace(
        trace.tokens[keep],
        kept(trace.weights),
        kept(trace.steps_per_slice),
        routes=trace.routes,
        source_tokens=trace.source_tokens,
        batch_tokens=kept(trace.batch_tokens),
    )


def check_fraction(fraction: float, slices: int) -> None:
    """Refuse to hold out of a single slice when it was asked for.

    Raises:
        FileError: says what to change.
    """
    if fraction > 0 and slices < 2:
        raise FileError(
            "--holdout needs at least 2 slices: use a longer trace or a smaller --sequences-per-slice"
        )
