"""How the engine dispatches, seen in its steps: whether an expert's tokens follow the shares of the map or are dealt evenly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_EVIDENCE = 100.0
"""Evidence from which the measure is given: its standard error is then .1 at most, if tokens are dealt at random, and less if in turn."""


class SeenDispatch:
    """Adds up steps of one run of the group that were served with uneven shares; a new run begins anew, because its engine may be another.

    The measure is the least-squares coefficient of (arrived - even part) on (shared part - even part) over slots. Since neither changes an expert's sum,
    it is sum(arrived x tilt) / sum(tokens x tilt^2), with tilt = share - 1 / copies and tokens those of the slot's expert.
    """

    def __init__(self) -> None:
        self._run = -1
        self._along = self._evidence = 0.0

    def note(
        self, run: int, tilt: NDArray[np.float64], arrived: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> None:
        """Take one step of the group's ``run``, counted from the first one seen.

        ``tilt``: float64 [layers, slots], share minus even part. ``arrived``: int64 [layers, slots]; ``tokens``: int64 [layers, slots], all that came for the
        slot's expert.
        """
        if run < self._run:
            return
        if run > self._run:
            self._run, self._along, self._evidence = run, 0.0, 0.0
        # Running sums have one order on every machine; np.sum has not.
        self._along += float(np.cumsum(arrived * tilt)[-1])
        self._evidence += float(np.cumsum(tokens * tilt * tilt)[-1])

    @property
    def shares_followed(self) -> float:
        """1 = tokens go where shares say, 0 = they are dealt evenly whatever the shares; NaN = not known."""
        return self._along / self._evidence if self._evidence >= LEAST_EVIDENCE else math.nan
