"""Requests of a made-up router, one after the other, in memory that does not grow with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.formats.facts import Sequence
from eplb.generate.draws import Draws, exponential
from eplb.generate.picking import picks_of, table_of, topics_of
from eplb.generate.router import request_of, router_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.generate.recipe import Recipe
    from eplb.generate.router import Router

LENGTH_SPREAD = 0.6
LENGTH_LIMIT = 4
"""No sequence has more than so many times the median tokens."""
TOKENS = 3
"""First name of the streams of a sequence's tokens; those of the model and its requests stand in ``router``."""


def sequences_of(recipe: Recipe, count: int) -> Iterator[Sequence]:
    """So many sequences: every request has one in each phase of the recipe, and domains take turns."""
    router = router_of(recipe)
    phases = len(recipe.phases)
    for at in range(count):
        number = at // phases
        yield sequence_of(recipe, router, number, number % recipe.domains, at % phases)


def domain_name(domain: int) -> str:
    """What a made-up domain is called: the name itself says that it is made up."""
    return f"synthetic-{domain}"


def sequence_of(recipe: Recipe, router: Router, number: int, domain: int, phase: int) -> Sequence:
    """Request ``number`` in one phase: the same whatever was asked for before."""
    request = request_of(recipe, router, number, domain)
    draws = Draws(recipe.seed, TOKENS, number, phase)
    drawn = float(exponential(LENGTH_SPREAD * draws.normals(1))[0])
    tokens = max(1, min(LENGTH_LIMIT * recipe.tokens, round(recipe.tokens * drawn)))
    table = table_of(router, router.base[domain, phase] + request.added, draws)
    topics = topics_of(recipe, request, tokens, draws)
    picks = np.concatenate(list(picks_of(recipe, table, topics, draws)))
    return Sequence(picks, domain_name(domain), recipe.phases[phase], synthetic=recipe.words())
