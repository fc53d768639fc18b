"""Models: one table, whose rows agree with one another and with published sizes."""

import pytest

from eplb.models import MODELS, like, with_layers


def test_a_shape_is_known_by_its_moe_layers_or_by_all_layers():
    """A file may hold rows for dense layers too; top-k decides between models that differ in nothing else."""
    assert [model.name for model in like(26, 64)] == ["deepseek-v2-lite"]
    assert [model.name for model in like(27, 64, 6)] == ["deepseek-v2-lite"]
    assert like(26, 64, 8) == ()
    assert [model.experts for model in with_layers(60, None, 200)] == sorted(
        model.experts for model in with_layers(60, None, 200)
    )
    for model in MODELS.values():
        assert model in like(model.layers, model.experts, model.top_k)
        assert model.top_k < model.experts
        assert model.hidden_layers is None or model.layers <= model.hidden_layers


@pytest.mark.parametrize(
    ("name", "first", "last", "megabytes"),
    [
        ("deepseek-v3", 3, 60, 44.0),
        ("kimi-k3", 1, 92, 17.5),
        ("llama-4-maverick", 1, 47, 126),
        ("gpt-oss-20b", 0, 23, 13.2),
        ("mixtral-8x22b", 0, 55, 604),
    ],
)
def test_layers_and_bytes_are_the_published_ones(name, first, last, megabytes):
    """Dense layers come first, and every second layer of one model is dense."""
    model = MODELS[name]
    assert (model.model_layer[0], model.model_layer[-1]) == (first, last)
    assert model.bytes_per_expert / 1e6 == pytest.approx(megabytes, rel=0.005)


def test_every_model_numbers_as_many_layers_as_it_has():
    """A model whose layers are not known numbers none."""
    for model in MODELS.values():
        numbers = model.model_layer
        assert (numbers is None) == (model.hidden_layers is None)
        assert numbers is None or len(set(numbers)) == model.layers
