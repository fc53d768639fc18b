"""What homes cost: the hottest node of every slice, and the nodes that tokens touch, in one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placement.norm import power

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.coactivation import Touched

Step = list[tuple[int, int]]
"""Experts that change their home, as pairs (expert, node)."""

UNITS = 2**20
"""Slopes and loads are whole parts of this, so that their sums are exact in any order."""

MOST_WEIGHT = 2.0**12
"""A larger weight of the fan-out counts as this in the search: the peaks are then all but ignored."""


class Peaks:
    """Mean over slices of the hottest node's load + weight × (mean nodes touched per token - 1).

    Node loads are relative: 1.0 = the node's fair share of the slice. ``value`` is the figure now.
    """

    __slots__ = ("_cost", "_inverse_speed", "_loads", "_rate", "_touched", "_weights", "_whole", "value")

    def __init__(
        self,
        touched: Touched,
        loads: NDArray[np.float64],
        weights: NDArray[np.float64],
        speed: NDArray[np.float64],
        *,
        weight: float,
        tokens: int,
    ) -> None:
        """``loads``: float64 [slices, experts], each slice summing to the speeds' sum; ``weights``: float64 [slices], summing
        to 1; ``speed``: float64 [nodes]; ``tokens``: those counted in ``touched``.
        """
        self._touched, self._loads, self._weights = touched, loads, weights
        self._inverse_speed = 1.0 / speed
        self._whole = np.rint(loads.T * UNITS).astype(np.int64)
        self._rate = min(weight, MOST_WEIGHT) / max(tokens, 1)
        home = touched.home[:-1]
        held = [np.cumsum(loads[:, home == node], axis=1) for node in range(touched.nodes)]
        self._cost = np.stack(
            [sums[:, -1] if sums.shape[1] else np.zeros(len(loads)) for sums in held], axis=1
        )
        self._cost *= self._inverse_speed
        self.value = self._figure(self._cost.max(axis=1)[None], np.array([touched.objective]))[0]

    def _figure(self, peaks: NDArray[np.float64], objective: NDArray[np.int64]) -> NDArray[np.float64]:
        """``peaks``: float64 [candidates, slices], ``objective``: int64 [candidates]."""
        figure: NDArray[np.float64] = np.cumsum(peaks * self._weights, axis=1)[:, -1] + self._rate * objective
        return figure

    def slopes(self) -> NDArray[np.int64]:
        """First-order rise of the figure when an expert moves, int64 [experts, nodes], 0 at its home.

        The slope of the mean over slices of the 16-norm of the node loads, and the exact rise of the nodes touched.
        """
        top = np.maximum(self._cost.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        near = power(self._cost / top)
        steep = near / np.maximum(np.cumsum(near, axis=1)[:, -1:], 1.0)
        slope = np.rint(steep * self._inverse_speed * self._weights[:, None] * UNITS).astype(np.int64)
        heat = self._whole @ slope
        home = self._touched.home[:-1]
        heat -= heat[np.arange(len(home)), home][:, None]
        return heat + self.touched_units(self._touched.move)

    def touched_units(self, rise: NDArray[np.int64]) -> NDArray[np.int64]:
        """A rise of the nodes touched in the units of ``slopes``."""
        units: NDArray[np.int64] = np.rint(rise * (self._rate * UNITS * UNITS)).astype(np.int64)
        return units

    def after(self, steps: list[Step], rise: NDArray[np.int64]) -> NDArray[np.float64]:
        """The figure after each of some steps, float64 [steps]; ``rise``: int64 [steps], their rise of the nodes touched."""
        cost = np.repeat(self._cost[None], len(steps), axis=0)
        for number, step in enumerate(steps):
            self._shift(cost[number], step)
        return self._figure(cost.max(axis=2), self._touched.objective + rise)

    def settle(self, step: Step) -> None:
        """Follow a step; call it before the homes change."""
        self._shift(self._cost, step)

    def refresh(self) -> None:
        """Count the figure again, after the homes changed."""
        peaks = self._cost.max(axis=1)
        self.value = self._figure(peaks[None], np.array([self._touched.objective]))[0]

    def _shift(self, cost: NDArray[np.float64], step: Step) -> None:
        for expert, node in step:
            left = int(self._touched.home[expert])
            cost[:, left] -= self._loads[:, expert] * self._inverse_speed[left]
            cost[:, node] += self._loads[:, expert] * self._inverse_speed[node]
