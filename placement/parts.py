"""Experts on several nodes, solved as one part for each node: a part keeps to its node, as a whole expert does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.trace import MOST_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.layer import Row

MOST_SCALE = 1024
"""Units of a token that tokens are counted in where an expert is split, so that rounding does not matter."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of one layer's experts, by rising expert and node.

    ``expert``, ``node``: int64 [parts]; ``share``: float64 [parts], part of the expert's tokens that the node serves.
    """

    experts: int
    expert: NDArray[np.int64]
    node: NDArray[np.int64]
    share: NDArray[np.float64]

    @classmethod
    def of(cls, held: NDArray[np.bool_], share: NDArray[np.float64]) -> Parts:
        """One part for every node that holds an expert; ``held``, ``share``: [experts, nodes]."""
        expert, node = np.nonzero(held)
        return cls(len(held), expert, node, share[expert, node])

    def tokens(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of every part, int64 [slices, parts], from int64 [slices, experts]; in smaller units where experts are split."""
        if len(self.expert) == self.experts:
            return tokens
        most = max(1, int(tokens.sum(axis=1).max()))
        scale = max(1, min(MOST_SCALE, MOST_TOKENS // (2 * most)))
        return np.rint(tokens[:, self.expert] * (self.share * scale)).astype(np.int64)

    def split(self, row: Row, node_of_slot: NDArray[np.int64]) -> Row:
        """A row of experts as a row of parts; a copy on a node that is to hold none becomes empty (``len(expert)``)."""
        number = np.full((self.experts + 1, int(node_of_slot.max()) + 1), len(self.expert), dtype=np.int64)
        number[self.expert, self.node] = np.arange(len(self.expert))
        return number[row, node_of_slot]

    def joined(self, row: Row) -> Row:
        """A row of parts as a row of experts."""
        return np.append(self.expert, self.experts)[row]
