"""Rules of what tells one kind of traffic from another."""

import numpy as np
import pytest

from eplb.history.features import (
    DIMENSIONS,
    SCALE,
    feature,
    mixed,
    noise,
    squared_distances,
)


def test_mixed_bits_are_those_of_splitmix64():
    """First outputs of the published generator from seed 0, whose state grows by the golden ratio."""
    states = np.array([0, 0x9E3779B97F4A7C15], dtype=np.uint64)
    assert [hex(bits) for bits in mixed(states).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


def test_the_size_of_a_step_does_not_matter_its_shares_do():
    """Ten times the counts are the same point; all on one expert is one point of every layer."""
    counts = np.array([[5, 3, 2], [0, 0, 10]])
    assert np.array_equal(feature(counts), feature(counts * 10))
    assert feature(counts)[5] == SCALE


def test_a_layer_without_load_is_no_distance():
    """Zero is not missing, and nothing is divided by it."""
    assert not feature(np.zeros((2, 3), dtype=np.int64)).any()
    assert noise(np.zeros((2, 3), dtype=np.int64)) == 0


def test_distances_are_those_of_the_points():
    """Exactly, against plain subtraction."""
    rng = np.random.default_rng(0)
    rows = [feature(rng.poisson(20, (3, 6))) for _ in range(5)]
    expected = [[int(np.square(a - b).sum()) for b in rows] for a in rows]
    assert squared_distances(rows).tolist() == expected


def test_a_sketch_keeps_distances():
    """16 layers x 256 experts in a quarter of the numbers: within a fifth for every pair, and 3 % on average."""
    rng = np.random.default_rng(1)
    steps = [rng.multinomial(4000, rng.dirichlet(np.full(256, 0.3)), size=16) for _ in range(12)]
    sketched = squared_distances([feature(step) for step in steps])
    assert len(feature(steps[0])) == DIMENSIONS < steps[0].size
    roots = [np.sqrt(step / step.sum(axis=1, keepdims=True)).ravel() * SCALE for step in steps]
    true = np.array([[np.square(a - b).sum() for b in roots] for a in roots])
    pairs = np.triu_indices(len(steps), 1)
    parts = sketched[pairs] / true[pairs]
    assert np.abs(parts - 1).max() < 0.2
    assert parts.mean() == pytest.approx(1.0, abs=0.03)


def test_the_noise_of_independent_picks_is_taken_off():
    """Samples of one distribution are some distance apart; less their noise, nearly none."""
    rng = np.random.default_rng(2)
    shares = rng.dirichlet(np.full(32, 5.0), size=4)
    steps = [np.stack([rng.multinomial(2000, layer) for layer in shares]) for _ in range(40)]
    raw = squared_distances([feature(step) for step in steps])
    clean = raw - np.add.outer(*[np.array([noise(step) for step in steps])] * 2)
    pairs = np.triu_indices(len(steps), 1)
    assert abs(clean[pairs].mean()) < 0.05 * raw[pairs].mean()
