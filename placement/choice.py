"""Which copy of an expert a token takes, and how many places its copies then go to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placement.coactivation import merged_sets
from placement.errors import MapError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placement.routes import Routes

EVEN, NEAREST, PER_SOURCE, FEWEST = "even", "nearest", "per_source", "fewest"

CHOICES = (EVEN, NEAREST, PER_SOURCE, FEWEST)
"""Which copy of an expert a token takes: any, with equal chance; one on the token's own node when there is one, else any; copy
r mod n of n, by rising slot, for a token that started on rank r; those that together touch fewest nodes (a limit that no public
engine reaches)."""

OF_DISPATCH = {"nearest": NEAREST, "per_source": PER_SOURCE}
"""The choice that belongs to a dispatch rule; every other rule picks without regard to where the token is: ``even``."""

MOST_COVERED_BINS = 12
"""Most nodes over which ``fewest`` is counted exactly: it tries every set of nodes."""


def check_choice(choice: str) -> None:
    """Refuse an unknown choice.

    Raises:
        UnsupportedError: names the choices.
    """
    if not (isinstance(choice, str) and choice in CHOICES):
        raise UnsupportedError(f"choice {choice!r} is unknown: use one of {', '.join(CHOICES)}")


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """The places that a dispatcher sends a token to once: nodes, or ranks.

    ``of_slot``: int64 [slots]; ``of_rank``: int64 [ranks]; ``number``: int64 [ranks], the engine's number of each rank.
    """

    of_slot: NDArray[np.int64]
    of_rank: NDArray[np.int64]
    number: NDArray[np.int64]
    count: int

    def starts(self, choice: str) -> int:
        """Places where a token may start as far as its choice can tell: one, every bin, or every rank."""
        return {NEAREST: self.count, PER_SOURCE: len(self.of_rank)}.get(choice, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens of one layer by their set of experts and by where they started.

    ``sets``: int64 [rows, top_k], see ``merged_sets``. ``start``: int64 [rows], place in the table of ``copy_table``.
    ``own``: int64 [rows], bin where the token started, -1 = unknown. ``count``: float64 [rows], tokens.
    """

    sets: NDArray[np.int64]
    start: NDArray[np.int64]
    own: NDArray[np.int64]
    count: NDArray[np.float64]


def tokens_of(
    routes: Routes, at: int, experts: int, bins: Bins, choice: str, *, sampled: bool = False
) -> Tokens:
    """The tokens of layer ``at``. Where ``routes`` do not say where a token started it started everywhere alike.

    ``sampled``: each such token is given one start, by turns, instead of a part of it in every start; for a search.

    Raises:
        MapError: a source is not a rank.
    """
    sets, _, of_token = merged_sets(routes.experts[:, at], experts)
    known = np.flatnonzero(of_token >= 0)
    number, starts = of_token[known], bins.starts(choice)
    if routes.sources is not None:
        source = _checked(routes.sources, len(bins.of_rank))[known]
        own = bins.of_rank[source]
        start = source if choice == PER_SOURCE else own if choice == NEAREST else np.zeros_like(own)
    else:
        own = np.full(len(known), -1, dtype=np.int64)
        start = np.arange(len(known)) % starts
        if not sampled:
            number, own = np.tile(number, starts), np.tile(own, starts)
            start = np.repeat(np.arange(starts), len(known))
    keys = (number * starts + start) * (bins.count + 1) + own + 1
    _, first, count = np.unique(keys, return_index=True, return_counts=True)
    part = 1 if routes.sources is not None or sampled else starts
    return Tokens(sets[number[first]], start[first], own[first], count / part)


def _checked(sources: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    if int(sources.max()) >= ranks:
        raise MapError(f"routes name source rank {int(sources.max())}, ranks are 0..{ranks - 1}")
    return sources


def bin_shares(
    row: NDArray[np.int64], bins: NDArray[np.int64], count: int, experts: int
) -> NDArray[np.float64]:
    """Part of an expert's copies in every bin, float64 [experts + 1, bins]; the last row, for no pick, is zero.

    ``row``: int64 [slots], -1 or ``experts`` = empty.
    """
    held = np.zeros((experts + 1, count))
    filled = (row >= 0) & (row < experts)
    np.add.at(held, (row[filled], bins[filled]), 1.0)
    copies = np.bincount(row[filled], minlength=experts + 1)[:, None]
    shares: NDArray[np.float64] = held / np.maximum(copies, 1)
    return shares


def copy_table(row: NDArray[np.int64], bins: Bins, experts: int, choice: str) -> NDArray[np.float64]:
    """Chance that a token's copy of an expert is in a bin, by where the token started: float64 [starts, experts + 1, bins].

    ``row``: int64 [slots], -1 or ``experts`` = empty. For ``fewest`` the chances are those of ``even``: only which bins hold a
    copy matters.
    """
    shares = bin_shares(row, bins.of_slot, bins.count, experts)
    if choice == PER_SOURCE:
        return _by_number(row, bins, experts)
    if choice != NEAREST:
        return shares[None]
    here = shares.T > 0
    return np.where(here[:, :, None], np.eye(bins.count)[:, None, :], shares)


def _by_number(row: NDArray[np.int64], bins: Bins, experts: int) -> NDArray[np.float64]:
    slots = np.flatnonzero((row >= 0) & (row < experts))
    slots = slots[np.argsort(row[slots], kind="stable")]
    copies = np.bincount(row[slots], minlength=experts)
    first = np.cumsum(copies) - copies
    held = np.flatnonzero(copies)
    number = bins.number[:, None] % copies[held]
    table = np.zeros((len(bins.number), experts + 1, bins.count))
    table[np.arange(len(number))[:, None], held, bins.of_slot[slots[first[held] + number]]] = 1.0
    return table


def bins_touched(
    tokens: Tokens, table: NDArray[np.float64], choice: str, *, remote: bool = False
) -> NDArray[np.float64]:
    """Expected distinct bins that the copies of a token go to, float64 [rows].

    Sum over bins of 1 - prod over the set of (1 - chance). ``remote``: the bin where the token started does not count.

    Raises:
        UnsupportedError: ``fewest`` over more than 12 bins.
    """
    if choice == FEWEST:
        return _fewest(tokens, table[0] > 0, remote=remote)
    missed = np.ones((len(tokens.sets), table.shape[2]))
    for place in range(tokens.sets.shape[1]):
        missed *= 1.0 - table[tokens.start, tokens.sets[:, place]]
    if remote:
        known = np.flatnonzero(tokens.own >= 0)
        missed[known, tokens.own[known]] = 1.0
    touched: NDArray[np.float64] = np.cumsum(1.0 - missed, axis=1)[:, -1]
    return touched


def _fewest(tokens: Tokens, holds: NDArray[np.bool_], *, remote: bool) -> NDArray[np.float64]:
    """Smallest number of bins that hold a copy of every expert of a set, by trying all sets of bins in falling size."""
    count = holds.shape[1]
    if count > MOST_COVERED_BINS:
        raise UnsupportedError(
            f"choice 'fewest' tries every set of nodes, {count} are too many: use at most {MOST_COVERED_BINS}"
        )
    bit: NDArray[np.int64] = (holds * (1 << np.arange(count))).sum(axis=1)
    bit[-1] = (1 << count) - 1
    held = bit[tokens.sets]
    free = np.where((tokens.own >= 0) & remote, 1 << np.maximum(tokens.own, 0), 0)
    touched = np.full(len(held), float(count))
    for chosen in sorted(range(1 << count), key=int.bit_count, reverse=True):
        served = ((held & (chosen | free)[:, None]) > 0).all(axis=1)
        touched[served] = chosen.bit_count()
    return touched
