"""What a map would bring on slices that it was not planned on, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.study import mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.report.study import Contender, Study

UNKNOWN_PHASE = "all, phase not recorded"
SURE = 2.0
"""Standard errors that a gain must exceed to be told from chance."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Before against after on the same slices; NaN where nothing has load.

    ``name``: of the phase or domain. ``slices``: how many; ``better``: of these, how many have a lower ratio after. ``floor``: excess
    of sampling noise. ``error``: standard error of the gain over slices, NaN with fewer than 2. ``before_us``, ``after_us``: mean
    time of the costliest rank in one layer of one step, None = not known.
    """

    name: str
    slices: int
    before: float
    after: float
    floor: float
    better: int
    error: float
    before_us: float | None
    after_us: float | None

    @property
    def gain(self) -> float:
        """Drop of the ratio."""
        return self.before - self.after

    @property
    def saved(self) -> float:
        """Part of the MoE time that is saved where time follows the hottest rank: 1 - after / before."""
        return 1.0 - self.after / self.before

    @property
    def saved_us(self) -> float | None:
        """The same by the cost preset, None = not known."""
        if self.before_us is None or self.after_us is None:
            return None
        return 1.0 - self.after_us / self.before_us

    @property
    def sure(self) -> bool:
        """Whether the gain is further from 0 than chance explains."""
        return not isnan(self.error) and abs(self.gain) > SURE * self.error


def gain_on(study: Study, name: str, keep: NDArray[np.bool_], after: Contender | None = None) -> Gain:
    """The gain on some slices; ``keep``: bool [slices]; ``after``: None = the map that the page is about."""
    old, new = study.before, study.after if after is None else after
    by_slice = np.array([mean(row) for row in (old.ratio - new.ratio)[keep]])
    by_slice = by_slice[~np.isnan(by_slice)]
    many = len(by_slice) > 1
    return Gain(
        name=name,
        slices=int(keep.sum()),
        before=study.mean_ratio(old, keep),
        after=study.mean_ratio(new, keep),
        floor=study.mean_floor(keep),
        better=int((by_slice > 0).sum()),
        error=float(by_slice.std(ddof=1)) / sqrt(len(by_slice)) if many else float("nan"),
        before_us=None if old.layer_us is None else mean(old.layer_us[keep]),
        after_us=None if new.layer_us is None else mean(new.layer_us[keep]),
    )


def by_phase(study: Study) -> tuple[Gain, ...]:
    """The gain of every phase on the scored slices; one of unknown phase where the trace does not say."""
    return _by(study, study.file.phase, UNKNOWN_PHASE)


def by_domain(study: Study) -> tuple[Gain, ...]:
    """The gain of every domain on the scored slices; empty where the trace does not say."""
    return () if study.file.domain is None else _by(study, study.file.domain, "domain not recorded")


def _by(study: Study, names: tuple[str, ...] | None, unknown: str) -> tuple[Gain, ...]:
    if names is None:
        return (gain_on(study, unknown, study.scored),)
    of = np.array(names)
    found = (gain_on(study, name or unknown, study.scored & (of == name)) for name in dict.fromkeys(names))
    return tuple(each for each in found if each.slices)
