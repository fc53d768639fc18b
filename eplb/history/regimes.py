"""Regimes: moments whose traffic is of one kind, found without being told how many there are.

Ward's tree on squared distances, cut where the silhouette (Rousseeuw 1987) is largest; below the width that Kaufman and
Rousseeuw (1990) call no substantial structure all moments are one regime. Two things that look like structure are kept out of the
silhouette: noise is taken off distances, and a difference counts at most in parts of it; and neighbours in time share requests and are
alike for that reason alone, so that a moment must resemble moments that are not its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_REGIMES = 16
LEAST_SILHOUETTE = 1 - (1 - 0.25) ** 2
"""A quarter in distances, as Kaufman and Rousseeuw say, is so much in their squares."""


def find_regimes(
    distances: NDArray[np.int64], noises: NDArray[np.int64], order: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Regime of every moment, int64 [n], numbered from 0 in the order of their first moments.

    ``distances``: int64 [n, n], squared. ``noises``: int64 [n], what each moment's own noise adds to them. ``order``: int64 [n], place in
    time; those one apart are neighbours.
    """
    best = np.zeros(len(distances), dtype=np.int64)
    apart = np.abs(order[:, None] - order[None, :]) > 1
    widest = LEAST_SILHOUETTE
    for labels in ward_cuts(distances, MOST_REGIMES):
        width = silhouette(distances, noises, labels, apart)
        if width >= widest:
            best, widest = labels, width
    return _numbered(best)


def ward_cuts(distances: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """Labels, int64 [n], of Ward's tree cut into ``most``, ..., 3, 2 clusters, of squared distances int64 [n, n].

    Kept as sums of squared distances between and within clusters, whole numbers below 2^53, so that ties fall alike everywhere.
    """
    count = len(distances)
    between, within = distances.astype(np.float64), np.zeros(count)
    sizes, members = np.ones(count), [[place] for place in range(count)]
    cuts: list[NDArray[np.int64]] = []
    while len(members) > 1:
        if len(members) <= most and len(members) < count:
            cuts.append(_labels(members, count))
        first, second = _nearest(between, within, sizes)
        within[first] += within[second] + between[first, second]
        between[first] += between[second]
        between[:, first] = between[first]
        sizes[first] += sizes[second]
        members[first] += members.pop(second)
        kept = np.arange(len(sizes)) != second
        between, within, sizes = between[np.ix_(kept, kept)], within[kept], sizes[kept]
    return cuts


def _nearest(
    between: NDArray[np.float64], within: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[int, int]:
    """The two clusters whose union adds least to the sum of squares around centres; the first of equals."""
    spread = within / sizes
    both = spread[:, None] * sizes[None, :] + spread[None, :] * sizes[:, None]
    cost = (between - both) / (sizes[:, None] + sizes[None, :])
    cost[np.tri(len(sizes), dtype=np.bool_)] = np.inf
    first, second = divmod(int(cost.argmin()), len(sizes))
    return first, second


def silhouette(
    distances: NDArray[np.int64],
    noises: NDArray[np.int64],
    labels: NDArray[np.int64],
    apart: NDArray[np.bool_],
) -> float:
    """Mean silhouette of labels 0..k-1, int64 [n], by squared distances int64 [n, n] less the noise of both, int64 [n].

    ``apart``: bool [n, n], pairs that are no neighbours; only they count within a cluster. A moment without any has 0.
    """
    one_hot = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.int64)
    own = one_hot.astype(np.bool_)
    clean = distances - noises[:, None] - noises[None, :]
    far = apart.astype(np.int64)
    fellows = (far @ one_hot)[own]
    inside = np.maximum(((clean * far) @ one_hot)[own] / np.maximum(fellows, 1), 0.0)
    outside = np.maximum(np.where(own, np.inf, (clean @ one_hot) / one_hot.sum(axis=0)).min(axis=1), 0.0)
    larger = np.maximum(np.maximum(inside, outside), 2.0 * noises)
    width = np.where((fellows > 0) & (larger > 0), (outside - inside) / np.maximum(larger, 1.0), 0.0)
    return float(np.cumsum(width)[-1]) / len(labels)


def keep_ids(
    labels: NDArray[np.int64], before: NDArray[np.int64], next_id: int
) -> tuple[NDArray[np.int64], int]:
    """Give regimes the ids that their moments had: (ids int64 [n], next id that is free).

    ``before``: int64 [n], id that each moment had, -1 = none. The largest overlap goes first (then the lower id); a regime whose moments
    had none, or lost theirs to a larger part, gets a new id.
    """
    ids: dict[int, int] = {}
    pairs = np.stack([labels, before], axis=1)[before >= 0]
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    for place in np.lexsort((found[:, 0], found[:, 1], -counts)).tolist():
        label, old = found[place].tolist()
        if label not in ids and old not in ids.values():
            ids[label] = old
    for label in range(int(labels.max(initial=-1)) + 1):
        if label not in ids:
            ids[label] = next_id
            next_id += 1
    return np.array([ids[label] for label in labels.tolist()], dtype=np.int64), next_id


def _labels(members: list[list[int]], count: int) -> NDArray[np.int64]:
    labels = np.empty(count, dtype=np.int64)
    for label, places in enumerate(members):
        labels[places] = label
    return labels


def _numbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    names: dict[int, int] = {}
    return np.array([names.setdefault(label, len(names)) for label in labels.tolist()], dtype=np.int64)
