"""Counts of a made-up pool: requests that are served together, some tokens of each in a slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import ConfigError
from eplb.formats.picks import add_picks
from eplb.formats.slicing import CountSlice
from eplb.generate.router import router_of
from eplb.generate.sequences import LENGTH_LIMIT, domain_name, sequence_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eplb.generate.recipe import Recipe
    from eplb.generate.router import Router

MOST_BATCH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Batch:
    """``requests`` served together in each phase; ``tokens``: of each of them in one slice (forward passes, in decode)."""

    requests: int = 64
    tokens: int = 1


def slices_of_batch(recipe: Recipe, batch: Batch, count: int) -> Iterator[CountSlice]:
    """So many slices of a pool that serves one domain after the other, its phases in turn within a domain.

    A request that ends makes room for the next one, so every slice has as many tokens. Only the live requests are held.

    Raises:
        ConfigError: they would take more than ``MOST_BATCH_BYTES``, or the batch is empty.
    """
    _check(recipe, batch)
    router = router_of(recipe)
    phases = len(recipe.phases)
    served: list[_Served] = []
    domain = -1
    for at in range(count):
        now = at * recipe.domains // count
        if now != domain:
            domain = now
            served = [_Served(recipe, router, (domain, phase), batch) for phase in range(phases)]
        yield served[at % phases].slice()


class _Served:
    """The live requests of one domain and phase."""

    def __init__(self, recipe: Recipe, router: Router, kind: tuple[int, int], batch: Batch) -> None:
        self._recipe, self._router, self._batch = recipe, router, batch
        self._domain, self._phase = kind
        # Every domain has request numbers of its own, and phases share them: they are the same requests.
        self._next = self._domain
        self._live = [self._request() for _ in range(batch.requests)]
        self._at = [len(picks) * place // batch.requests for place, picks in enumerate(self._live)]

    def slice(self) -> CountSlice:
        """Counts of the next tokens of every live request."""
        shape = self._recipe.shape
        counts = np.zeros((shape.layers, shape.experts), dtype=np.int64)
        for place in range(len(self._live)):
            add_picks(counts, self._tokens(place))
        phase = self._recipe.phases[self._phase]
        return CountSlice(
            counts,
            domain_name(self._domain),
            phase,
            1 if phase == "prefill" else self._batch.tokens,
        )

    def _tokens(self, place: int) -> NDArray[Any]:
        wanted = self._batch.tokens
        parts = []
        while wanted:
            start = self._at[place]
            part = self._live[place][start : start + wanted]
            parts.append(part)
            wanted -= len(part)
            self._at[place] = start + len(part)
            if self._at[place] == len(self._live[place]):
                self._live[place], self._at[place] = self._request(), 0
        return np.concatenate(parts)

    def _request(self) -> NDArray[Any]:
        number = self._next
        self._next += self._recipe.domains
        return sequence_of(self._recipe, self._router, number, self._domain, self._phase).picks


def _check(recipe: Recipe, batch: Batch) -> None:
    if batch.requests < 1 or batch.tokens < 1:
        raise ConfigError(
            f"a batch of {batch.requests} requests with {batch.tokens} tokens each is none: give at least 1 of both"
        )
    shape = recipe.shape
    kind = np.min_scalar_type(shape.experts - 1)
    tokens = len(recipe.phases) * batch.requests * LENGTH_LIMIT * recipe.tokens
    most = tokens * shape.layers * shape.top_k * kind.itemsize
    if most > MOST_BATCH_BYTES:
        raise ConfigError(
            f"the live requests may take {most:,} bytes, more than {MOST_BATCH_BYTES:,}: ask for fewer requests in a batch "
            "or fewer tokens in a sequence"
        )
