"""Shares of replicas: even ones, and the steps of a millionth in which shares are named and sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARE_STEPS = 1_000_000
"""Shares are multiples of one in so many: far below what a dispatcher can honour, far above the noise of floats."""

_ROUND_UP = 0.5001
"""Not one half: exact halves are what simple fractions, such as 1/128, give, and noise must not decide them."""


def even_shares(row: NDArray[np.integer]) -> NDArray[np.float64]:
    """Equal shares for the replicas of each expert: int [slots] -> float64 [slots], 0 for empty slots."""
    held = row >= 0
    copies = np.bincount(row[held], minlength=1)
    shares = np.zeros(row.size)
    shares[held] = 1.0 / copies[row[held]]
    return shares


def share_steps(row: NDArray[np.integer], shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Shares in millionths: int [slots], float64 [slots], finite -> int64 [slots].

    The running sums of an expert's shares are rounded, slots in order: shares that add up to 1 add up to exactly a million,
    and no share is off by more than one step. Steps of steps are the same steps.
    """
    order = np.argsort(row, kind="stable")
    experts, ordered = row[order], np.where(row >= 0, shares, 0.0)[order]
    steps = np.zeros(row.size, dtype=np.int64)
    for places in np.split(np.arange(row.size), np.flatnonzero(np.diff(experts)) + 1):
        running = np.floor(np.cumsum(ordered[places]) * SHARE_STEPS + _ROUND_UP).astype(np.int64)
        steps[order[places]] = np.diff(running, prepend=0)
    return steps


def quantised_shares(row: NDArray[np.integer], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same shares in whole steps of a millionth: int [slots], float64 [slots] -> float64 [slots]."""
    return share_steps(row, shares) / SHARE_STEPS


def all_shares(rows: NDArray[np.integer], shares: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Shares of all layers in whole steps, even ones for None: int [layers, slots] -> float64 [layers, slots]."""
    given = [even_shares(row) for row in rows] if shares is None else shares
    whole = [quantised_shares(row, each) for row, each in zip(rows, given, strict=True)]
    return np.array(whole, dtype=np.float64).reshape(rows.shape)
