"""Rules of regimes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, ward
from scipy.spatial.distance import pdist

from eplb.history.regimes import MOST_REGIMES, find_regimes, keep_ids, silhouette, ward_cuts


def distances_of(points):
    points = np.array(points, dtype=np.int64)
    return np.square(points[:, None] - points[None]).sum(axis=2)


def found_in(points, noise=0, apart=3):
    """Regimes of points so many moments apart, each with the same noise."""
    count = len(points)
    noises = np.full(count, noise, dtype=np.int64)
    return find_regimes(distances_of(points), noises, np.arange(count) * apart)


def clouds(rng, centres, each, spread):
    """Points around centres, in turn; their true clouds."""
    true = np.tile(np.arange(len(centres)), each)
    return np.rint(np.array(centres)[true] + rng.normal(0, spread, (len(true), len(centres[0])))), true


def same(first, second):
    """Whether two groupings are one but for their names."""
    return (
        len(set(zip(first.tolist(), second.tolist(), strict=True)))
        == len(set(first.tolist()))
        == len(set(second.tolist()))
    )


@given(st.integers(0, 10_000))
def test_the_tree_is_ward_s(seed):
    """Every cut is that of scipy's tree of the same points."""
    points = np.random.default_rng(seed).integers(0, 10**6, (12, 3))
    tree = ward(pdist(points.astype(np.float64)))
    for labels in ward_cuts(distances_of(points), 5):
        count = labels.max() + 1
        assert same(labels, fcluster(tree, count, criterion="maxclust"))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_clouds_that_come_back_are_told_apart(count):
    """As many as there are, each with its own points, numbered in the order of their first."""
    centres = np.random.default_rng(count).integers(0, 100_000, (count, 6))
    points, true = clouds(np.random.default_rng(1), centres, 8, 2000)
    found = found_in(points)
    assert np.array_equal(found, true)


@pytest.mark.parametrize(("dimensions", "noise"), [(30, 30 * 1000**2), (30, 0), (2, 2 * 1000**2)])
def test_one_cloud_is_one_regime(dimensions, noise):
    """Noise has no structure, whether its size is known or not, in few dimensions if it is."""
    points = np.rint(np.random.default_rng(3).normal(0, 1000, (40, dimensions)))
    assert not found_in(points, noise).any()


def test_neighbours_in_time_alone_make_no_regime():
    """Pairs that are alike only with their neighbour: requests that go on, not a kind of traffic."""
    points = np.repeat(np.random.default_rng(4).integers(0, 100_000, (10, 30)), 2, axis=0)
    assert not found_in(points, apart=1).any()
    assert found_in(points).max() == 9


def test_no_more_regimes_than_the_bound():
    """Even where there are more clouds."""
    centres = np.random.default_rng(5).integers(0, 10**6, (25, 8))
    points, _ = clouds(np.random.default_rng(6), centres, 3, 100)
    assert found_in(points).max() < MOST_REGIMES


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_moments_are_one_regime(count):
    """There is nothing that could come back."""
    assert not found_in(np.arange(count)[:, None] * 1000, apart=1).any()


def test_the_silhouette_is_rousseeuw_s():
    """Of squared distances less noise, in parts of the noise at least; against the definition, moment by moment."""
    rng = np.random.default_rng(7)
    distances, noises = distances_of(rng.integers(0, 1000, (9, 2))), rng.integers(0, 9000, 9)
    clean = distances - np.add.outer(noises, noises)
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0])
    apart = ~np.eye(9, dtype=np.bool_)
    widths = []
    for one in range(9):
        inside = max(0, clean[one, (labels == labels[one]) & apart[one]].mean())
        outside = max(
            0, min(clean[one, labels == other].mean() for other in range(3) if other != labels[one])
        )
        widths.append((outside - inside) / max(inside, outside, 2 * noises[one]))
    assert silhouette(distances, noises, labels, apart) == pytest.approx(np.mean(widths))


def test_regimes_keep_their_ids():
    """By the moments that they share, whatever they are called this time."""
    ids, free = keep_ids(np.array([1, 1, 0, 0, 0]), np.array([4, 4, 7, 7, -1]), 8)
    assert (ids.tolist(), free) == ([4, 4, 7, 7, 7], 8)


def test_a_regime_that_splits_leaves_its_id_to_the_larger_part():
    """The other is new, and so is one without any moment that had an id."""
    ids, free = keep_ids(np.array([0, 0, 0, 1, 2]), np.array([3, 3, 3, 3, -1]), 4)
    assert (ids.tolist(), free) == ([3, 3, 3, 4, 5], 6)


def test_regimes_that_merge_take_the_id_of_more_moments():
    """The other id is never given again."""
    ids, free = keep_ids(np.array([0, 0, 0, 1]), np.array([1, 2, 2, 0]), 3)
    assert (ids.tolist(), free) == ([2, 2, 2, 0], 3)
