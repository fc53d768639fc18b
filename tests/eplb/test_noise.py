"""Rules of the noise floor."""

import numpy as np
import pytest

from eplb.noise import expected_max_of_normals, noise_floor


@pytest.mark.parametrize(
    ("ranks", "expected"), [(4, 1.029), (8, 1.424), (32, 2.070), (144, 2.635), (320, 2.898)]
)
def test_expected_maximum_agrees_with_published_values(ranks, expected):
    """The quadrature gives the known order statistics of the normal distribution."""
    assert expected_max_of_normals(ranks) == pytest.approx(expected, abs=2e-3)


def test_floor_agrees_with_simulation_of_a_balanced_router():
    """Tokens that pick k distinct experts evenly show the predicted excess on ranks that hold equal shares."""
    rng = np.random.default_rng(0)
    ranks, experts, top_k, tokens, steps = 8, 32, 4, 64, 400
    picks = rng.random((steps, tokens, experts)).argsort(axis=2)[:, :, :top_k]
    load = np.stack([np.bincount(step.ravel() // (experts // ranks), minlength=ranks) for step in picks])
    seen = (load.max(axis=1) / load.mean(axis=1) - 1.0).mean()
    floor = noise_floor(np.array([tokens * top_k / ranks]), ranks, experts, top_k)[0]
    assert seen == pytest.approx(floor, rel=0.08)


def test_no_load_has_no_floor():
    """Zero tokens give NaN, not infinity."""
    assert np.isnan(noise_floor(np.array([0.0]), 8, 32, 4)[0])


def test_one_rank_has_no_floor_to_speak_of():
    """A group of one is always balanced."""
    assert noise_floor(np.array([10.0]), 1, 32, 4)[0] == pytest.approx(0.0, abs=1e-6)
