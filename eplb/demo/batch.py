"""The demo's requests: which tokens are served in a step, the same on every process that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.errors import SequencesUsedUp
from eplb.replay import batch as continuous

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.demo.routing import Routing


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """The tokens of one step: int32 [tokens] each, request r at index r (or r // ranks within a rank's part)."""

    sequences: NDArray[np.int32]
    positions: NDArray[np.int32]

    def of_rank(self, rank: int, ranks: int) -> BatchTokens:
        """The part of one rank: request r lives on rank r % ranks."""
        return BatchTokens(self.sequences[rank::ranks], self.positions[rank::ranks])


class Batch:
    """A continuous batch that is always full, over two domains.

    The order of sequences follows from the seed; every sequence is used at most once. After ``shift`` new sequences come from the
    second domain, while those in flight are served to their end. Two batches with one seed that shift at one step are equal.

    Raises:
        SequencesUsedUp: a domain cannot fill the batch any more.
    """

    def __init__(self, routing: Routing, requests: int, seed: int) -> None:
        random = np.random.default_rng([seed, 4])
        self._routing = routing
        self._waiting = [
            random.permutation(np.flatnonzero(routing.domain_of == domain)).tolist()[::-1]
            for domain in (0, 1)
        ]
        self._domain = 0
        self._served = 0
        self._batch = continuous.Batch(requests, self._admit)

    def _admit(self) -> continuous.Request:
        waiting = self._waiting[self._domain]
        if not waiting:
            total = int((self._routing.domain_of == self._domain).sum())
            raise SequencesUsedUp(
                f"all {total} sequences of {self._routing.domains[self._domain]!r} were used by step {self._served} and none is "
                "replayed; use a longer trace, or find out why this phase of the run took so many steps"
            )
        sequence = waiting.pop()
        return continuous.Request(sequence, 0, self._routing.length(sequence))

    def shift(self) -> None:
        """From now on new requests come from the second domain."""
        self._domain = 1

    def tokens(self) -> BatchTokens:
        """The tokens of the present step."""
        return BatchTokens(self._batch.sequences.copy(), self._batch.positions.copy())

    def advance(self) -> None:
        """Go to the next step: every request moves on by one token and ended ones are replaced."""
        self._served += 1
        self._batch.advance()
