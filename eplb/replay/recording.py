"""A recording: the picks of every sequence, one after the other in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from eplb.formats.facts import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What was recorded.

    ``picks``: whole numbers [tokens, layers, top_k], logical experts. ``offsets``: int64 [sequences + 1]; sequence i =
    picks[offsets[i]:offsets[i+1]], at least one token. ``domain``: of every sequence, '' = unknown. ``experts``: of a layer.
    """

    picks: NDArray[Any]
    offsets: NDArray[np.int64]
    domain: tuple[str, ...]
    experts: int

    @classmethod
    def of(cls, sequences: Iterable[Sequence], experts: int | None = None) -> Recording:
        """Take all sequences that hold a token; ``experts`` None = the highest pick + 1.

        Raises:
            ReplayError: there is none, or a pick is missing or above ``experts``.
        """
        held = [sequence for sequence in sequences if len(sequence.picks)]
        if not held:
            raise ReplayError("the trace holds no sequence with a token; a replay needs picks by request")
        picks = np.concatenate([sequence.picks for sequence in held])
        most = int(picks.max()) + 1 if experts is None else experts
        bad = (picks < 0) | (picks >= most)
        if bad.any():
            token, layer, place = (int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
            raise ReplayError(
                f"picks[token {token}, layer {layer}, {place}] is {picks[token, layer, place]}, expected 0..{most - 1}: a replay "
                "needs every pick of every token; leave such sequences out"
            )
        lengths = [len(sequence.picks) for sequence in held]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(picks, offsets, tuple(sequence.domain for sequence in held), most)

    @property
    def layers(self) -> int:
        """Number of MoE layers."""
        return int(self.picks.shape[1])

    @property
    def top_k(self) -> int:
        """Experts that each token picks."""
        return int(self.picks.shape[2])

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.domain)

    def length(self, sequence: int) -> int:
        """Tokens of one sequence."""
        return int(self.offsets[sequence + 1] - self.offsets[sequence])

    def domains(self) -> tuple[str, ...]:
        """Domains, the one with most tokens first (ties: by name)."""
        tokens: dict[str, int] = dict.fromkeys(sorted(set(self.domain)), 0)
        for sequence, domain in enumerate(self.domain):
            tokens[domain] += self.length(sequence)
        return tuple(sorted(tokens, key=lambda domain: -tokens[domain]))

    def of_domains(self, domains: tuple[str, ...]) -> tuple[int, ...]:
        """Sequences of these domains.

        Raises:
            ReplayError: a domain has none; names those that there are.
        """
        missing = [domain for domain in domains if domain not in self.domain]
        if missing:
            raise ReplayError(
                f"the trace has no domain {missing[0]!r}; it has {', '.join(map(repr, self.domains()))}"
            )
        return tuple(sequence for sequence, domain in enumerate(self.domain) if domain in domains)
