"""The continuous batch: which tokens are served in a step, the same on every process that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.errors import SequencesUsedUp

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
    """A fixed number of requests in flight, each served one token a step; when one ends the next sequence takes its place.

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
        self._sequences = np.zeros(requests, dtype=np.int32)
        self._positions = np.zeros(requests, dtype=np.int32)
        self._lengths = np.zeros(requests, dtype=np.int32)
        for request in range(requests):
            self._admit(request)

    def _admit(self, request: int) -> None:
        waiting = self._waiting[self._domain]
        if not waiting:
            total = int((self._routing.domain_of == self._domain).sum())
            raise SequencesUsedUp(
                f"all {total} sequences of {self._routing.domains[self._domain]!r} were used by step {self._served} and none is "
                "replayed; use a longer trace, or find out why this phase of the run took so many steps"
            )
        sequence = waiting.pop()
        self._sequences[request] = sequence
        self._positions[request] = 0
        self._lengths[request] = self._routing.length(sequence)

    def shift(self) -> None:
        """From now on new requests come from the second domain."""
        self._domain = 1

    def tokens(self) -> BatchTokens:
        """The tokens of the present step."""
        return BatchTokens(self._sequences.copy(), self._positions.copy())

    def advance(self) -> None:
        """Go to the next step: every request moves on by one token and ended ones are replaced."""
        self._served += 1
        self._positions += 1
        for request in np.flatnonzero(self._positions >= self._lengths):
            self._admit(int(request))
