"""What one incarnation counted between two of its frames, from running totals.

Per (layer, phase, map digest) a rank's total never falls while its frames still speak of it, so the growth between two
frames is their difference, whatever lies between them: lost frames cost resolution and not correctness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from collectors.facts import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import Frame

Place = tuple[int, Phase, int]
"""(layer, phase, map digest)."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One incarnation's totals as one frame told them; nothing counted yet = ``Standing.empty``.

    ``digests`` uint64 [layers]; ``counts`` int64 [layers, width] by phase; ``closed`` int64 [width] by place.
    """

    digests: NDArray[np.uint64]
    counts: dict[Phase, NDArray[np.int64]]
    closed: dict[Place, NDArray[np.int64]]
    steps: dict[Phase, int]
    tokens: dict[Phase, int]

    @classmethod
    def of(cls, frame: Frame) -> Standing:
        """The totals that a frame tells."""
        return cls(
            digests=frame.layer_digests,
            counts={totals.phase: totals.counts for totals in frame.totals},
            closed={(row.layer, row.phase, row.digest): row.counts for row in frame.closed},
            steps={totals.phase: totals.steps for totals in frame.totals},
            tokens={totals.phase: totals.tokens for totals in frame.totals},
        )

    @classmethod
    def empty(cls, digests: NDArray[np.uint64]) -> Standing:
        """The totals at an incarnation's birth."""
        return cls(digests, {}, {}, {}, {})


@dataclass(slots=True)
class Growth:
    """Tokens counted between two frames.

    ``digests`` uint64 [layers], the later frame's maps. ``rows`` int64 [layers, width] by phase, under those maps; ``closed`` int64 [width] by place, under maps that
    were left in between. ``lost_rows`` maps that were left without their final total being told.
    """

    digests: NDArray[np.uint64]
    rows: dict[Phase, NDArray[np.int64]] = field(default_factory=dict)
    closed: dict[Place, NDArray[np.int64]] = field(default_factory=dict)
    steps: dict[Phase, int] = field(default_factory=dict)
    tokens: dict[Phase, int] = field(default_factory=dict)
    lost_rows: int = 0


def growth(before: Standing, after: Standing) -> Growth:
    """What was counted between two standings of one incarnation."""
    grown = Growth(after.digests)
    moved = np.flatnonzero(before.digests != after.digests).tolist()
    for phase, counts in after.counts.items():
        grown.rows[phase] = _grown_rows(before, after, phase, counts, moved)
        grown.steps[phase] = max(0, after.steps[phase] - before.steps.get(phase, 0))
        grown.tokens[phase] = max(0, after.tokens[phase] - before.tokens.get(phase, 0))
    for place, counts in after.closed.items():
        grown.closed[place] = _since(_value(before, place), counts)
    grown.lost_rows = sum(_is_lost(before, after, phase, layer) for phase in before.counts for layer in moved)
    return grown


def _grown_rows(
    before: Standing, after: Standing, phase: Phase, counts: NDArray[np.int64], moved: list[int]
) -> NDArray[np.int64]:
    known = before.counts.get(phase)
    if known is None:
        rows = counts.copy()
    else:
        rows = counts - known
        fell = (rows < 0).any(axis=1)
        rows[fell] = counts[fell]
    for layer in moved:
        rows[layer] = _since(before.closed.get((layer, phase, int(after.digests[layer]))), counts[layer])
    return rows


def _since(before: NDArray[np.int64] | None, now: NDArray[np.int64]) -> NDArray[np.int64]:
    """A total that fell has begun again at 0."""
    if before is None or (now < before).any():
        return now
    grown: NDArray[np.int64] = now - before
    return grown


def _value(standing: Standing, place: Place) -> NDArray[np.int64] | None:
    layer, phase, digest = place
    if int(standing.digests[layer]) == digest and phase in standing.counts:
        row: NDArray[np.int64] = standing.counts[phase][layer]
        return row
    return standing.closed.get(place)


def _is_lost(before: Standing, after: Standing, phase: Phase, layer: int) -> bool:
    place = (layer, phase, int(before.digests[layer]))
    return place not in after.closed and bool(before.counts[phase][layer].any())
