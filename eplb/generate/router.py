"""A made-up router: which experts are popular in general, in a domain, in a phase and in one request, and which go together.

For layer l, expert e, a request q of domain d in phase f,

    log popularity = common(l, e) + domain(d, l, e) + phase(f, l, e) + request(q, l, e)

with independent normal terms. Experts of a layer are cut into blocks of about equal popularity to their topics, one block for each topic;
a token has one topic in all layers, and a pick follows it (one of the block, by popularity) with probability ``topic_share``, or else
is one of all experts, by popularity. Topics run for some tokens and are drawn by the request's own preferences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.generate.draws import Draws, exponential, logarithm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eplb.generate.recipe import Recipe

MODEL, REQUEST = 1, 2
"""First names of the streams of random numbers."""
PICKS_BY_BLOCK = 2
"""Experts in a block, in multiples of top-k."""
MOST_TOPICS = 64
TOPIC_RANGE = 1.2
"""The most frequent topic is e^1.2 times as frequent as the middle one, the rarest e^-1.2 times."""
LAYER_SKEW_LIMITS = (0.5, 1.7)


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """What does not change from request to request.

    ``base``: log popularity, float64 [domains, phases, layers, experts]; experts stand in the order of their blocks.
    ``order``: the expert at each place, int64 [layers, experts]. ``edges``: first place of each block, int64 [layers, topics + 1].
    ``topics``: log frequency of each topic, float64 [domains, topics].
    """

    base: NDArray[np.float64]
    order: NDArray[np.int64]
    edges: NDArray[np.int64]
    topics: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What one request likes. ``added``: to the log popularity, float64 [layers, experts], in order of places.

    ``topics``: frequency of each topic, float64 [topics], sums to 1.
    """

    added: NDArray[np.float64]
    topics: NDArray[np.float64]


def router_of(recipe: Recipe) -> Router:
    """The router of a recipe."""
    shape, draws = recipe.shape, Draws(recipe.seed, MODEL)
    size = (shape.layers, shape.experts)
    low, high = LAYER_SKEW_LIMITS
    by_layer = np.clip(1.0 + recipe.skew_by_layer * draws.normals(shape.layers), low, high)[:, None]
    common = _common_spread(recipe) * by_layer * draws.normals(*size)
    domain = recipe.domain_spread * draws.normals(recipe.domains, 1, *size)
    phase = recipe.phase_spread * draws.normals(1, len(recipe.phases), *size)
    count = _topic_count(shape.experts, shape.top_k)
    frequency = TOPIC_RANGE * np.linspace(1.0, -1.0, count)
    edges = _edges(exponential(common), _shares(frequency[None])[0])
    return Router(
        common + domain + phase,
        np.argsort(draws.uniform(*size), axis=1, kind="stable"),
        edges,
        frequency + recipe.domain_topic_spread * draws.normals(recipe.domains, count),
    )


def request_of(recipe: Recipe, router: Router, number: int, domain: int) -> Request:
    """What request ``number`` likes, whatever its phase."""
    draws = Draws(recipe.seed, REQUEST, number)
    liked = router.topics[domain] + recipe.topic_spread * draws.normals(router.topics.shape[1])
    added = recipe.request_spread * draws.normals(*router.order.shape)
    return Request(added, _shares(liked[None])[0])


def _common_spread(recipe: Recipe) -> float:
    """The spread of the common term that leaves ``skew`` for the whole trace: domains and phases average out in it.

    A mean of D lognormal popularities with own variance s^2 has E[x^2] / E[x]^2 = exp(common^2) (exp(s^2) + D - 1) / D.
    """
    rest = recipe.skew**2
    for spread, count in ((recipe.domain_spread, recipe.domains), (recipe.phase_spread, len(recipe.phases))):
        rest -= logarithm((float(exponential(np.array(spread**2))) + count - 1) / count)
    return float(np.sqrt(max(0.0, rest)))


def _topic_count(experts: int, top_k: int) -> int:
    return max(1, min(MOST_TOPICS, experts // (PICKS_BY_BLOCK * top_k)))


def _shares(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Parts of 1 by their logarithms, float64 [rows, n]."""
    weights = exponential(logs)
    result: NDArray[np.float64] = weights / np.cumsum(weights, axis=1)[:, -1:]
    return result


def _edges(weights: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """First place of each block so that blocks have about their topic's share of the weight, int64 [layers, topics + 1]."""
    done = np.cumsum(weights, axis=1)
    middle = (done - weights / 2.0) / done[:, -1:]
    bounds = np.cumsum(shares)[:-1]
    inner = (middle[:, None, :] < bounds[None, :, None]).sum(axis=2)
    first = np.zeros((len(weights), 1), dtype=np.int64)
    return np.concatenate([first, inner, np.full_like(first, weights.shape[1])], axis=1)
