"""How contributions that came back are added to their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.demo.model import Floats


class Combine(Protocol):
    """Adds the contributions that came back to their tokens and says how many it added."""

    def __call__(self, into: Floats, tokens: NDArray[np.int64], rows: Floats) -> int:
        """Add rows float32 [n, hidden] to ``into`` [tokens, hidden] at ``tokens`` int64 [n]; the number of rows added."""


def combine_all(into: Floats, tokens: NDArray[np.int64], rows: Floats) -> int:
    """Add every row to its token."""
    np.add.at(into, tokens, rows)
    return len(rows)
