"""How much one wave may bring to a rank: more after every wave that nobody felt, half after one that slowed the steps.

Additive increase and halving, as Chiu and Jain (1989) found to settle: the limit grows by one expert a wave and is halved when
the 95th percentile of step times during a wave is above that before it by more than a limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.window import WindowView

STEPS_MIN = 5
"""Measured steps on both sides without which a wave is not judged: its limit stays."""

STEPS_BEFORE = 200
"""Newest steps before a wave that it is compared with."""


@dataclass(frozen=True, slots=True)
class PaceRules:
    """``least_bytes``: of one expert, also the step up; ``most_bytes`` of a wave on one rank; ``slowdown``: rise of the 95th
    percentile of step times that is still accepted, 0.5 = half as long again.
    """

    least_bytes: int
    most_bytes: int
    slowdown: float

    @classmethod
    def of(cls, facts: PoolFacts, slowdown: float, wave_slots: int) -> PaceRules:
        """From the pool's shape and the most experts that one wave may bring to a rank; all 0 while their size is unknown."""
        return cls(facts.bytes_per_expert, wave_slots * facts.bytes_per_expert, slowdown)


@dataclass(frozen=True, slots=True)
class Pace:
    """``limit_bytes`` that the next wave should bring to a rank at most; ``sentence`` why it is what it is, "" = unchanged so far."""

    limit_bytes: int
    sentence: str = ""


def first_pace(rules: PaceRules) -> Pace:
    """The whole wave at first: waves are small by default, and a plan of few moves is over before a limit has grown."""
    return Pace(max(rules.most_bytes, rules.least_bytes))


def after_wave(
    pace: Pace, rules: PaceRules, before_us: NDArray[np.float64], during_us: NDArray[np.float64]
) -> Pace:
    """The pace after a wave: float64 [steps] each, microseconds, NaN = not measured."""
    before, during = before_us[np.isfinite(before_us)], during_us[np.isfinite(during_us)]
    if min(before.size, during.size) < STEPS_MIN:
        return replace(
            pace, sentence=f"too few steps were timed to judge the last wave: {_said(pace.limit_bytes)}"
        )
    base, now = (float(np.percentile(steps, 95)) for steps in (before, during))
    compared = f"p95 of steps {now / 1e3:.2f} ms during the last wave, {base / 1e3:.2f} ms before"
    if now > base * (1 + rules.slowdown):
        limit = max(rules.least_bytes, pace.limit_bytes // 2)
        return Pace(limit, f"{compared}: halved, {_said(limit)}")
    limit = max(rules.least_bytes, min(rules.most_bytes, pace.limit_bytes + rules.least_bytes))
    return Pace(limit, f"{compared}: {_said(limit)}")


def _said(limit_bytes: int) -> str:
    return f"a wave brings a rank at most {limit_bytes / 1e6:.2f} MB"


class Pacer:
    """The pace of one pool's waves, judged wave by wave from what the window shows."""

    def __init__(self, rules: PaceRules) -> None:
        self._rules = rules
        self._since_step: int | None = None
        self._before_us: NDArray[np.float64] = np.zeros(0)
        self.pace = first_pace(rules)

    def turn(self, view: WindowView, *, offers: bool) -> int:
        """Judge the wave that has ended, if there was one, and note where the next begins; the limit in bytes."""
        steps, times_us = view.group_steps, view.step_us_by_slice
        if self._since_step is not None:
            during = times_us[steps > self._since_step]
            self.pace = after_wave(self.pace, self._rules, self._before_us, during)
        if offers and self._since_step is None:
            self._before_us = times_us[-STEPS_BEFORE:]
        self._since_step = int(steps.max(initial=-1)) if offers else None
        return self.pace.limit_bytes
