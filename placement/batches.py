"""Parts of copies that are picked by a token's place in its batch: by hash of the row, or by turns within a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASH = 2654435769
MOST_ROWS = 4096
"""Rows beyond which the parts no longer change: they are even within copies / rows."""
BLOCK = 1024
"""Choices (token, expert) that one block of the kernel deals."""


def copies_by_row(rows: NDArray[np.float64], copies: int) -> NDArray[np.float64]:
    """Part of each copy when row i takes copy (i x 2654435769 mod 2^32) mod copies and every row is as likely to choose.

    ``rows``: float64 [...], rows of the batch; between two whole numbers the counts are interpolated, below 1 it is one row.
    Returns float64 [..., copies].
    """
    picked = (np.arange(MOST_ROWS, dtype=np.uint64) * np.uint64(HASH) % np.uint64(2**32)) % np.uint64(copies)
    counts = np.zeros((MOST_ROWS + 1, copies))
    counts[1:] = np.cumsum(np.equal.outer(picked, np.arange(copies, dtype=np.uint64)), axis=0)
    size = np.clip(rows, 1.0, MOST_ROWS)
    low = np.floor(size).astype(np.int64)
    high = np.minimum(low + 1, MOST_ROWS)
    over = (size - low)[..., None]
    result: NDArray[np.float64] = (counts[low] * (1 - over) + counts[high] * over) / size[..., None]
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Where the choices of a slice come from.

    ``steps``: int64 [slices]; ``choices``: float64 [slices, ranks], choices of a source rank in a step; ``source``: float64
    [ranks, experts], part of an expert's tokens by source rank; ``turn``: int64 [ranks], the copy that its first block starts at.
    """

    steps: NDArray[np.int64]
    choices: NDArray[np.float64]
    source: NDArray[np.float64]
    turn: NDArray[np.int64]


def copies_by_turn(tokens: NDArray[np.int64], blocks: Blocks, copies: int) -> NDArray[np.float64]:
    """Part of each copy when the k-th choice of an expert in block b of source rank r takes copy (k + b + turn_r) mod copies.

    ``tokens``: int64 [slices, experts]. Returns float64 [slices, experts, copies].
    An expert's tokens are as likely in any step and block of their rank, so a block gets Binomial(tokens, q) of them with
    q = source / (steps x blocks): with one step, one rank and one block this is the exact count.
    """
    number = np.maximum(1, np.ceil(blocks.choices / BLOCK)).astype(np.int64)
    cells = blocks.steps[:, None] * number
    chance = blocks.source[None] / cells[:, :, None]
    served = _turns(tokens[:, None, :], chance, copies) * cells[:, :, None, None]
    place = np.arange(copies)
    result = np.zeros((*tokens.shape, copies))
    for shift in range(copies):
        # Blocks whose first choice takes copy ``shift``: b = shift - turn, + copies, + 2 copies, ... below their number.
        first = (shift - blocks.turn) % copies
        often = np.maximum(0, -(-(number - first) // copies)) / number
        result[:, :, (place + shift) % copies] += np.cumsum(served * often[:, :, None, None], axis=1)[:, -1]
    total = np.cumsum(result, axis=2)[:, :, -1:]
    parts: NDArray[np.float64] = np.divide(
        result, total, out=np.full_like(result, 1.0 / copies), where=total > 0
    )
    return parts


def _turns(tokens: NDArray[np.int64], chance: NDArray[np.float64], copies: int) -> NDArray[np.float64]:
    """Mean number of tokens k = j mod copies among Binomial(tokens, chance), float64 [..., copies].

    With M tokens that number is (M - 1 - j - (M - 1 - j) mod copies) / copies + 1.
    """
    place = np.arange(copies)
    remainder = _remainder(tokens, chance, copies)
    left = np.zeros(remainder.shape)
    for rest in range(copies):
        left += remainder[..., rest, None] * ((rest - 1 - place) % copies)
    mean = (tokens * chance)[..., None]
    number: NDArray[np.float64] = np.maximum(0.0, (mean - 1 - place - left) / copies + 1)
    return number


def _remainder(tokens: NDArray[np.int64], chance: NDArray[np.float64], copies: int) -> NDArray[np.float64]:
    """Chances of M mod copies for M among Binomial(tokens, chance), float64 [..., copies].

    They are the coefficients of (1 - q + q x)^tokens modulo x^copies - 1: by squaring, so that every machine rounds alike.
    """
    shape = np.broadcast_shapes(tokens.shape, chance.shape)
    result = np.zeros((*shape, copies))
    result[..., 0] = 1.0
    hit = chance[..., None]
    for bit in range(int(tokens.max(initial=0)).bit_length() - 1, -1, -1):
        square = np.zeros(result.shape)
        for shift in range(copies):
            square += result[..., shift, None] * np.roll(result, shift, axis=-1)
        odd = ((tokens >> bit) & 1)[..., None] == 1
        result = np.where(odd, (1 - hit) * square + hit * np.roll(square, 1, axis=-1), square)
    return result
