"""A bounded sample of steps over days: dense for the last minutes, ever thinner back in time.

Ages fall into bands, each twice as long as the one after it. While all moments fit, all stay; then the bands that hold most give up moments
until all have the same number, and each keeps those of lowest random rank. So a band's sample is fair (every minute of it has the same
chance, whatever its load), recent hours are dense enough to tell regimes, and yesterday is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.history.moments import MOMENT_MS, MOMENT_STEPS, Moment, Step, rank_of_moment, ranks_of_steps
from eplb.history.packing import pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from eplb.history.moments import StepKey

FIRST_BAND_MS = 10 * MOMENT_MS
"""Width of the newest band; the next are 2, 4, 8 ... times as wide, ten of them a week."""


class Reservoir:
    """At most ``most_moments`` moments and ``most_bytes`` of packed counts, none older than ``keep_ms``; times are the store's.

    ``shape`` = (layers, experts). The same steps, times and seed leave the same moments.
    """

    def __init__(
        self, shape: tuple[int, int], *, most_moments: int, most_bytes: int, keep_ms: int, seed: int = 0
    ) -> None:
        self.shape = shape
        self._most_moments, self._most_bytes, self._keep_ms, self._seed = (
            most_moments,
            most_bytes,
            keep_ms,
            seed,
        )
        self._moments: dict[int, Moment] = {}
        self._known: set[StepKey] = set()

    @property
    def moments(self) -> tuple[Moment, ...]:
        """All moments, oldest first."""
        return tuple(self._moments[number] for number in sorted(self._moments))

    @property
    def bytes(self) -> int:
        """Packed counts that are held."""
        return sum(moment.bytes for moment in self._moments.values())

    def restore(self, moments: Iterable[Moment]) -> None:
        """Take moments of an earlier life; later ones of the same minute win."""
        self._moments.update({moment.number: moment for moment in moments})
        self._known = {step.key for moment in self._moments.values() for step in moment.steps}

    def add(
        self,
        now_ms: int,
        run_ids: NDArray[np.uint64],
        group_steps: NDArray[np.int64],
        tokens: NDArray[np.int64],
    ) -> None:
        """Take steps that are seen for the first time: uint64 [steps], int64 [steps], int64 [steps, layers, experts].

        Steps that are held already are left out, and a step without any count says nothing.
        """
        number = now_ms // MOMENT_MS
        before = self._moments.get(number)
        held = () if before is None else before.steps
        keys = list(zip(run_ids.tolist(), group_steps.tolist(), strict=True))
        new = {key: at for at, key in enumerate(keys) if key not in self._known and tokens[at].any()}
        if not new:
            return
        places = list(new.values())
        runs = np.array([step.run_id for step in held] + run_ids[places].tolist(), dtype=np.uint64)
        numbers = np.array([step.group_step for step in held] + group_steps[places].tolist(), dtype=np.int64)
        lowest = np.argsort(ranks_of_steps(runs, numbers, self._seed), kind="stable")[:MOMENT_STEPS]
        kept: list[Step] = []
        for at in np.sort(lowest).tolist():
            if at < len(held):
                kept.append(held[at])
            else:
                place = places[at - len(held)]
                kept.append(Step(now_ms, keys[place][0], keys[place][1], pack(tokens[place])))
        self._known.difference_update(step.key for step in held)
        self._known.update(step.key for step in kept)
        self._moments[number] = Moment(number, tuple(kept), self.shape)

    def thin(self, now_ms: int) -> None:
        """Drop what is too old, or ahead of a clock that went back, and what is over the bounds."""
        now = now_ms // MOMENT_MS
        oldest = (now_ms - self._keep_ms) // MOMENT_MS
        self._keep([number for number in self._moments if oldest < number <= now + 1])
        self._keep(self._fair(now, self._most_moments))
        while len(self._moments) > 1 and (held := self.bytes) > self._most_bytes:
            fewer = len(self._moments) * self._most_bytes // held
            self._keep(self._fair(now, min(max(fewer, 1), len(self._moments) - 1)))

    def _fair(self, now: int, most: int) -> list[int]:
        """Numbers of ``most`` moments: as many of every band as of any other that has them."""
        bands: dict[int, list[int]] = {}
        for number in self._moments:
            bands.setdefault(_band(now - number), []).append(number)
        quota = _quota([len(band) for band in bands.values()], most)
        kept: list[int] = []
        spare: list[int] = []
        for band in sorted(bands):
            ranked = sorted(bands[band], key=lambda number: (rank_of_moment(number, self._seed), number))
            kept += ranked[:quota]
            spare += ranked[quota : quota + 1]
        return kept + spare[: max(0, most - len(kept))]

    def _keep(self, numbers: list[int]) -> None:
        if len(numbers) == len(self._moments):
            return
        self._moments = {number: self._moments[number] for number in numbers}
        self._known = {step.key for moment in self._moments.values() for step in moment.steps}


def _band(age: int) -> int:
    """Band of an age in moments: 0 below FIRST_BAND_MS, then each twice as wide."""
    return (max(age, 0) * MOMENT_MS // FIRST_BAND_MS + 1).bit_length() - 1


def _quota(sizes: list[int], most: int) -> int:
    """Most that every band may keep so that all keep at most ``most``."""
    quota, left, bands = 0, most, len(sizes)
    for size in sorted(sizes):
        if (size - quota) * bands > left:
            return quota + left // bands
        left -= (size - quota) * bands
        quota, bands = size, bands - 1
    return quota
