"""What a trace of a large model is expected to look like, and where that is known from.

Published ranges are those of models with 128 to 512 experts, mostly of DeepSeek-V3's shape; for other shapes there is none. Where
nothing is published the range is that of recorded traces, measured as everything else (docs/generate.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.formats.facts import SEQUENCES_PER_SLICE

if TYPE_CHECKING:
    from eplb.generate.recipe import Shape
    from eplb.generate.statistics import Statistics

PUBLISHED = "published"
COUNTS = "measured on DeepSeek-V3's published counts"
RECORDED = "measured on recorded traces"
TOLERANCE = 0.15
"""A measured value fits when it lies within a range that is wider by this part at both ends."""
LARGE = range(128, 513)
ANY = range(1, 2**15)


@dataclass(frozen=True, slots=True)
class Target:
    """Range of one statistic, from ``low`` to ``high``, for models with so many ``experts``; ``source``: where it is from."""

    name: str
    low: float
    high: float
    source: str
    experts: range

    def fits(self, value: float) -> bool:
        """Whether a measured value is as expected, ``TOLERANCE`` allowed."""
        return self.low * (1.0 - TOLERANCE) <= value <= self.high * (1.0 + TOLERANCE)


TARGETS = (
    Target("hottest_expert", 5.6, 8.1, COUNTS, range(256, 513)),
    Target("hottest_expert_worst", 0.0, 16.0, PUBLISHED, LARGE),
    Target("top_tenth_share", 0.27, 0.36, COUNTS, LARGE),
    Target("rank_ratio", 1.5, 2.7, PUBLISHED, LARGE),
    Target("pair_lift", 20.0, 40.0, PUBLISHED, LARGE),
    Target("top_pair_mass", 0.6, 0.8, PUBLISHED, LARGE),
    Target("domain_cosine", 0.63, 0.78, RECORDED, ANY),
    Target("domain_hot_overlap", 0.13, 0.29, RECORDED, LARGE),
    Target("phase_cosine", 0.94, 0.97, COUNTS, ANY),
    Target("phase_spearman", 0.7, 1.0, PUBLISHED, ANY),
    Target("slice_noise", 0.11, 0.42, RECORDED, ANY),
)


def targets_for(shape: Shape, *, requests_by_slice: int = SEQUENCES_PER_SLICE) -> dict[str, Target]:
    """The targets that hold for a model's shape, by the name of their statistic.

    ``requests_by_slice``: whole requests in a slice, 0 = parts of them. The range of ``slice_noise`` is that of
    ``SEQUENCES_PER_SLICE`` and of no other number.
    """
    return {
        target.name: target
        for target in TARGETS
        if shape.experts in target.experts
        and (target.name != "slice_noise" or requests_by_slice == SEQUENCES_PER_SLICE)
    }


def misses(found: Statistics, shape: Shape) -> tuple[str, ...]:
    """Names of the statistics that are known and do not fit; slices hold ``SEQUENCES_PER_SLICE`` requests."""
    known = targets_for(shape)
    values = {name: getattr(found, name) for name in known}
    return tuple(name for name, value in values.items() if value is not None and not known[name].fits(value))
