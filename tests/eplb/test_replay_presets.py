"""Presets: sizes and scaling."""

import pytest

from eplb.models import MODELS
from eplb.replay.presets import MACHINES, kernels
from placement.cost import H200_DEEPSEEK_V3_FP8_DECODE


@pytest.mark.parametrize(
    ("model", "megabytes"),
    [("gpt-oss-20b", 13.2), ("deepseek-v3", 44.0), ("deepseek-v2-lite", 17.3), ("qwen3-235b-a22b", 18.9)],
)
def test_an_expert_weighs_what_the_model_s_configuration_says(model, megabytes):
    """Three matrices, scales included."""
    assert MODELS[model].bytes_per_expert / 1e6 == pytest.approx(megabytes, abs=0.05)


def test_the_fitted_pair_is_used_as_it_was_fitted_and_others_say_that_they_are_scaled():
    """A preset never hides where its numbers come from."""
    assert kernels(MODELS["deepseek-v3"], MACHINES["H200"], "decode") is H200_DEEPSEEK_V3_FP8_DECODE
    scaled = kernels(MODELS["deepseek-v3"], MACHINES["GB200"], "decode")
    assert scaled.provenance.startswith("deepseek-v3 on GB200; scaled from: fit to")
    assert scaled.activated_us == pytest.approx(H200_DEEPSEEK_V3_FP8_DECODE.activated_us * 4.8 / 8.0)
    assert scaled.token_us == pytest.approx(H200_DEEPSEEK_V3_FP8_DECODE.token_us * 1978 / 5000)


def test_weights_come_over_the_far_link_when_the_group_is_larger_than_its_domain():
    """8 H800 share NVLink, 16 do not; 72 GB200 do."""
    assert MACHINES["H800"].link_bytes_per_s(8) == 160e9
    assert MACHINES["H800"].link_bytes_per_s(16) == 50e9
    assert MACHINES["GB200"].link_bytes_per_s(72) == 900e9
