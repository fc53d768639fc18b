"""Picks of one sequence, quickly: every pick is one look into a table whose cells are given to experts by their popularity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.generate.draws import BITS, UNIT, exponential

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eplb.generate.draws import Draws
    from eplb.generate.recipe import Recipe
    from eplb.generate.router import Request, Router

CELLS_BY_EXPERT = 16
"""Cells of the table for an average expert. Where an expert's cells begin and end is dithered, so no expert is lost for good."""
CHUNK_PICKS = 2**18
"""Picks that are drawn together, which bounds the memory."""
ROUNDS = 24
"""Rounds in which experts drawn twice for a token are drawn again by popularity; after that the next free expert is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """``cells``: expert of each cell, layer after layer, in the fewest bytes that hold it: whole numbers [layers x cells].

    ``first``, ``size``: cells of each topic's block, int64 [layers, topics + 1]; the last column is the whole layer.
    """

    cells: NDArray[Any]
    first: NDArray[np.int64]
    size: NDArray[np.int64]


def table_of(router: Router, logs: NDArray[np.float64], draws: Draws) -> Table:
    """The table of log popularities, float64 [layers, experts] in order of places."""
    layers, experts = logs.shape
    width = 1 << (CELLS_BY_EXPERT * experts - 1).bit_length()
    done = np.cumsum(exponential(logs), axis=1)
    dither = draws.uniform(layers, 1) / UNIT
    ends = np.floor(done / done[:, -1:] * width + dither).astype(np.int64)
    ends = np.minimum(ends, width)
    ends[:, -1] = width
    starts = np.concatenate([np.zeros((layers, 1), dtype=np.int64), ends[:, :-1]], axis=1)
    kind = np.min_scalar_type(experts - 1)
    cells = np.repeat(router.order.astype(kind).ravel(), (ends - starts).ravel())
    bounds = np.concatenate([starts, np.full((layers, 1), width)], axis=1)
    edges = np.take_along_axis(bounds, router.edges, axis=1)
    size = edges[:, 1:] - edges[:, :-1]
    # A block whose experts have no cell in this request is as good as no topic.
    first = np.where(size > 0, edges[:, :-1], 0)
    size = np.where(size > 0, size, width)
    zero, above = np.zeros((layers, 1), dtype=np.int64), width * np.arange(layers)[:, None]
    return Table(
        cells,
        np.concatenate([first, zero], axis=1) + above,
        np.concatenate([size, zero + width], axis=1),
    )


def topics_of(recipe: Recipe, request: Request, tokens: int, draws: Draws) -> NDArray[np.int64]:
    """Topic of every token, int64 [tokens]: it changes now and then, and is drawn anew by what the request likes."""
    changes = draws.uniform(tokens) < UNIT // recipe.topic_tokens
    run = np.cumsum(changes)
    bounds = np.cumsum(request.topics)[:-1]
    drawn = np.searchsorted(bounds, draws.uniform(int(run[-1]) + 1) / UNIT, side="right")
    topics: NDArray[np.int64] = drawn[run].astype(np.int64)
    return topics


def picks_of(recipe: Recipe, table: Table, topics: NDArray[np.int64], draws: Draws) -> Iterator[NDArray[Any]]:
    """Experts of every token, whole numbers [some tokens, layers, top_k] at a time, all different within a token's layer."""
    shape = recipe.shape
    step = max(1, CHUNK_PICKS // (shape.layers * shape.top_k))
    for start in range(0, len(topics), step):
        part = topics[start : start + step]
        rows = np.tile(np.arange(shape.layers), len(part))
        sets = _sets(recipe, table, rows, np.repeat(part, shape.layers), draws)
        yield sets.T.reshape(len(part), shape.layers, shape.top_k)


def _sets(
    recipe: Recipe, table: Table, rows: NDArray[np.int64], topics: NDArray[np.int64], draws: Draws
) -> NDArray[Any]:
    """Sets of experts, whole numbers [top_k, sets], for the layer and the topic of each."""
    top_k = recipe.shape.top_k
    sets = _drawn(recipe, table, np.tile(rows, (top_k, 1)), topics, draws)
    open_sets = np.arange(len(rows))
    for _ in range(ROUNDS):
        twins = _twins(sets[:, open_sets])
        some = twins.any(axis=0)
        open_sets, twins = open_sets[some], twins[:, some]
        if not len(open_sets):
            return sets
        place, at = np.nonzero(twins)
        which = open_sets[at]
        sets[place, which] = _drawn(recipe, table, rows[which], topics[which], draws)
    for left in open_sets.tolist():
        for again in np.flatnonzero(_twins(sets[:, [left]])[:, 0]).tolist():
            sets[again, left] = _next_free(sets[:, left], int(sets[again, left]), recipe.shape.experts)
    return sets


def _drawn(
    recipe: Recipe, table: Table, rows: NDArray[np.int64], topics: NDArray[np.int64], draws: Draws
) -> NDArray[Any]:
    """One expert for each row, by its topic or by popularity alone: whole numbers of the shape of ``rows``."""
    share = round(recipe.topic_share * UNIT)
    whole = table.first.shape[1] - 1
    block = rows * (whole + 1) + np.where(draws.uniform(*rows.shape) < share, topics, whole)
    place = draws.uniform(*rows.shape).astype(np.int64) * table.size.take(block) >> BITS
    drawn: NDArray[Any] = table.cells.take(table.first.take(block) + place)
    return drawn


def _twins(sets: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a set names an expert that stands before in it, bool [top_k, sets]."""
    found = np.zeros(sets.shape, dtype=bool)
    for later in range(1, len(sets)):
        for earlier in range(later):
            found[later] |= sets[later] == sets[earlier]
    return found


def _next_free(taken: NDArray[Any], expert: int, experts: int) -> int:
    used = set(taken.tolist())
    return next(each % experts for each in range(expert, expert + experts) if each % experts not in used)
