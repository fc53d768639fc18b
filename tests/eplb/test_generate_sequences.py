"""Synthetic sequences and slices: the same for the same seed, marked as synthetic, and held in bounded memory."""

from dataclasses import replace
from hashlib import sha256
from itertools import islice

import numpy as np
import pytest

from eplb.errors import ConfigError
from eplb.formats.facts import Layers, ReadOptions
from eplb.formats.slicing import slices_of
from eplb.generate.recipe import Recipe, Shape
from eplb.generate.router import router_of
from eplb.generate.sequences import LENGTH_LIMIT, sequence_of, sequences_of
from eplb.generate.slices import Batch, slices_of_batch
from eplb.generate.statistics import statistics_of
from eplb.generate.targets import TARGETS, misses
from eplb.models import MODELS

SMALL = Recipe(Shape(3, 16, 2), domains=2, tokens=20)
DIGEST = "5621f4989b007e40a7f115f3d32e0618c98985b9793c3c532afee0af4f31a587"


def generated(recipe, count):
    """The trace of so many sequences, as it is read."""
    options = ReadOptions(experts=recipe.shape.experts, most_routes=20_000)
    return slices_of(sequences_of(recipe, count), options).as_file("npz", Layers(), ReadOptions())


def test_the_same_seed_gives_the_same_bytes_on_any_machine():
    """Fixed for good: a change of the digest changes every trace that was ever made with a seed."""
    made = sha256(b"".join(each.picks.tobytes() for each in sequences_of(SMALL, 6)))
    assert made.hexdigest() == DIGEST
    other = b"".join(each.picks.tobytes() for each in sequences_of(replace(SMALL, seed=1), 6))
    assert sha256(other).hexdigest() != DIGEST


def test_a_sequence_does_not_depend_on_those_before_it():
    """So a longer trace starts with the shorter one, and requests can be made in any order."""
    long, short = list(sequences_of(SMALL, 8)), list(sequences_of(SMALL, 3))
    assert [each.picks.tobytes() for each in long[:3]] == [each.picks.tobytes() for each in short]
    alone = sequence_of(SMALL, router_of(SMALL), 3, 1, 1)
    assert alone.picks.tobytes() == long[7].picks.tobytes()


def test_requests_have_both_phases_and_domains_take_turns():
    """And everything says that it is synthetic, the name of the domain too."""
    made = list(sequences_of(SMALL, 6))
    assert [each.phase for each in made] == ["prefill", "decode"] * 3
    assert [each.domain for each in made] == [f"synthetic-{domain}" for domain in (0, 0, 1, 1, 0, 0)]
    assert all(each.synthetic.startswith("eplb generate: layers=3 experts=16") for each in made)


def test_lengths_vary_about_their_median_within_limits():
    """Half of the sequences have more tokens than the median, none more than four times as many."""
    lengths = np.array([len(each.picks) for each in sequences_of(replace(SMALL, phases=("decode",)), 400)])
    assert np.median(lengths) == pytest.approx(20, abs=2)
    assert 1 <= lengths.min() < 10
    assert 40 < lengths.max() <= LENGTH_LIMIT * 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2", "glm-4.5", "qwen3-235b-a22b"])
def test_the_defaults_meet_the_targets(name, seed):
    """Several models and seeds, twelve layers of each: every statistic that has a target fits."""
    model = MODELS[name]
    shape = Shape(12, model.experts, model.top_k)
    found = statistics_of(generated(Recipe(shape, seed=seed), 96))
    assert misses(found, shape) == ()
    assert all(getattr(found, target.name) is not None for target in TARGETS)


@pytest.mark.slow
def test_other_numbers_of_domains_and_tokens_meet_the_targets_too():
    """The calibration is not one of a single size."""
    shape = Shape(12, 256, 8)
    for change in ({"domains": 2}, {"domains": 5, "tokens": 128}):
        found = statistics_of(generated(Recipe(shape, seed=3, **change), 120))
        assert misses(found, shape) == ()


@pytest.mark.slow
def test_each_option_moves_its_statistic():
    """The targets can be missed: without a term its statistic is that of noise."""
    shape = Shape(6, 256, 8)

    def found(**change):
        return statistics_of(generated(Recipe(shape, **change), 72))

    assert found(skew=0.0, domain_spread=0.0).hottest_expert < 3.0
    assert found(topic_share=0.0).pair_lift < 6.0
    assert found(domain_spread=0.0, domain_topic_spread=0.0).domain_cosine > 0.95
    assert found(phase_spread=0.0).phase_cosine > 0.98
    calm = found(request_spread=0.0, topic_spread=0.0, topic_tokens=1)
    assert calm.slice_noise < found().slice_noise / 3
    assert "pair_lift" in misses(found(topic_share=0.0), shape)


def test_every_slice_counts_the_same_number_of_picks():
    """A batch of 5 requests with 3 tokens each, top-2: 30 picks in each layer, none of an expert twice for a token."""
    made = list(slices_of_batch(SMALL, Batch(5, 3), 12))
    counts = np.stack([each.counts for each in made])
    assert (counts.sum(axis=2) == 30).all()
    assert counts.max() <= 15
    assert [each.steps for each in made[:2]] == [1, 3]


def test_slices_serve_one_domain_after_the_other():
    """And both phases within it."""
    made = list(slices_of_batch(SMALL, Batch(2), 8))
    assert [each.domain for each in made] == ["synthetic-0"] * 4 + ["synthetic-1"] * 4
    assert [each.phase for each in made] == ["prefill", "decode"] * 4


def test_slices_are_sums_of_the_tokens_of_sequences():
    """One live request of one domain and phase: its tokens one by one, then those of the next."""
    recipe = replace(SMALL, domains=1, phases=("decode",))
    picks = np.concatenate([each.picks for each in sequences_of(recipe, 3)])
    for token, each in zip(picks, slices_of_batch(recipe, Batch(1), 25), strict=False):
        expected = [np.bincount(layer, minlength=16).tolist() for layer in token]
        assert each.counts.tolist() == expected


def test_slices_are_the_same_for_the_same_seed():
    """Bytes, names and all."""
    one, two = ([each.counts.tobytes() for each in slices_of_batch(SMALL, Batch(3), 9)] for _ in range(2))
    assert one == two


def test_nothing_is_made_before_it_is_asked_for():
    """Of a trace that would never end the first parts come at once: memory does not grow with the trace."""
    assert next(sequences_of(SMALL, 10**12)).domain == "synthetic-0"
    assert len(list(islice(slices_of_batch(SMALL, Batch(4), 10**12), 3))) == 3


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        (Batch(0), "a batch of 0 requests"),
        (Batch(10**7), "more than 1,073,741,824: ask for fewer requests"),
    ],
)
def test_a_batch_that_is_none_or_too_large_is_refused(batch, part):
    """Before anything is made."""
    with pytest.raises(ConfigError) as caught:
        next(slices_of_batch(SMALL, batch, 4))
    assert part in str(caught.value)
