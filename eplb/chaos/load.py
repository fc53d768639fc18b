"""What is served: a seeded stream of tokens whose hot experts change every few seconds, so that the daemon keeps finding plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DRIFTS = 64
DRIFT_STEPS = 180
TOKENS_PER_DRIFT = 512
_SKEW = 0.9
_FRESH_DRIFTS = 4
"""One drift in so many makes other experts hot; the rest change only how hot each is, which new shares often answer without moves where dispatch is weighted."""
_PICKS, _TOKENS = 6, 7


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one step or of one rank's part of it, named by sequence and position: int32 [tokens] each."""

    sequences: NDArray[np.int32]
    positions: NDArray[np.int32]


@lru_cache(maxsize=1)
def drifting_picks(*, seed: int, layers: int, experts: int, top_k: int) -> NDArray[np.uint8]:
    """Picks of ``DRIFTS`` sequences: uint8 [DRIFTS * TOKENS_PER_DRIFT, layers, k], read only; the last answer is kept.

    An expert's weight is 1 / place ** 0.9 in an order drawn anew for every fourth sequence and each layer; the three that follow keep the order, with
    each weight times the exponential of a standard normal. The k picks of a token are drawn without repetition by the Gumbel top-k trick (Kool, van
    Hoof, Welling 2019).
    """
    random = np.random.default_rng([seed, _PICKS])
    skewed = np.tile(-_SKEW * np.log(np.arange(1, experts + 1)), (layers, 1))
    orders = np.zeros((layers, experts), dtype=np.int64)
    picks = np.empty((DRIFTS, TOKENS_PER_DRIFT, layers, top_k), dtype=np.uint8)
    for drift in range(DRIFTS):
        logits = skewed
        if drift % _FRESH_DRIFTS:
            logits = skewed + random.standard_normal((layers, experts))
        else:
            orders = np.stack([random.permutation(experts) for _ in range(layers)])
        for layer, order in enumerate(orders):
            noisy = logits[layer] + random.gumbel(size=(TOKENS_PER_DRIFT, experts))
            picks[drift, :, layer] = order[np.argsort(-noisy, axis=1, kind="stable")[:, :top_k]]
    picks.setflags(write=False)
    return picks.reshape(DRIFTS * TOKENS_PER_DRIFT, layers, top_k)


def picks_of(
    picks: NDArray[np.uint8], sequences: NDArray[np.int32], positions: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """Picks of tokens named by (sequence, position), int32 [tokens] each -> uint8 [tokens, layers, k]."""
    return np.asarray(picks[sequences.astype(np.int64) * TOKENS_PER_DRIFT + positions])


def tokens_of(seed: int, step: int, count: int) -> Tokens:
    """The tokens of one step, all of the sequence whose turn it is."""
    random = np.random.default_rng([seed, _TOKENS, step])
    sequence = step // DRIFT_STEPS % DRIFTS
    positions = random.choice(TOKENS_PER_DRIFT, size=count, replace=False)
    return Tokens(np.full(count, sequence, dtype=np.int32), positions.astype(np.int32))


def shared_out(tokens: Tokens, members: Sequence[int]) -> dict[int, Tokens]:
    """Each member's part of a step, dealt in turn."""
    ways = len(members)
    return {
        rank: Tokens(tokens.sequences[place::ways], tokens.positions[place::ways])
        for place, rank in enumerate(members)
    }
