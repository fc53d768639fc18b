"""The made-up router: blocks hold their topic's share, spreads do what they say, limits are kept."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.errors import ConfigError
from eplb.generate.draws import Draws, exponential
from eplb.generate.picking import picks_of, table_of, topics_of
from eplb.generate.recipe import Recipe, Shape
from eplb.generate.router import Request, request_of, router_of

RECIPE = Recipe(Shape(4, 128, 4))


def drawn(recipe, tokens, number=0):
    """Picks [tokens, layers, top_k] of one request."""
    router = router_of(recipe)
    request, draws = request_of(recipe, router, number, 0), Draws(recipe.seed, 9, number)
    table = table_of(router, router.base[0, 0] + request.added, draws)
    return np.concatenate(list(picks_of(recipe, table, topics_of(recipe, request, tokens, draws), draws)))


def test_the_blocks_of_a_layer_share_out_all_experts():
    """Every expert has one place, every place one block."""
    router = router_of(RECIPE)
    assert np.sort(router.order, axis=1).tolist() == [list(range(128))] * 4
    assert (router.edges[:, 0] == 0).all()
    assert (router.edges[:, -1] == 128).all()
    assert (np.diff(router.edges, axis=1) >= 0).all()


def test_a_block_is_as_popular_as_its_topic():
    """In the common part of popularity: so topics leave the load of experts as it is, but for one expert at each edge."""
    recipe = replace(
        RECIPE,
        shape=Shape(4, 2048, 64),
        domains=1,
        phases=("decode",),
        domain_spread=0.0,
        phase_spread=0.0,
        domain_topic_spread=0.0,
    )
    router = router_of(recipe)
    weights = exponential(router.base[0, 0])
    done = np.concatenate([np.zeros((4, 1)), np.cumsum(weights, axis=1)], axis=1)
    mass = np.diff(np.take_along_axis(done, router.edges, axis=1), axis=1) / done[:, -1:]
    topics = exponential(router.topics[0])
    assert mass == pytest.approx(np.tile(topics / topics.sum(), (4, 1)), abs=0.02)


@pytest.mark.parametrize("term", ["domain_spread", "phase_spread"])
def test_a_spread_of_0_makes_all_alike(term):
    """Domains differ only by the domain's term, phases by the phase's."""
    base = router_of(replace(RECIPE, **{term: 0.0})).base
    other = router_of(replace(RECIPE, **{term: 0.5})).base
    axis = 0 if term == "domain_spread" else 1
    assert np.ptp(base, axis=axis).max() == 0.0
    assert np.ptp(other, axis=axis).min() >= 0.0
    assert np.ptp(other, axis=axis).max() > 0.5


def test_the_whole_trace_keeps_its_skew_however_many_domains_there_are():
    """What domains average out is added to the common term: the spread of pooled popularity stays."""
    for domains in (1, 2, 8):
        recipe = replace(RECIPE, shape=Shape(64, 256, 8), domains=domains, skew_by_layer=0.0)
        pooled = exponential(router_of(recipe).base).mean(axis=(0, 1))
        second = (pooled**2).mean() / pooled.mean() ** 2
        assert np.sqrt(np.log(second)) == pytest.approx(recipe.skew, rel=0.1)


def test_requests_differ_by_their_number_alone():
    """Asked for again, a request likes what it liked."""
    router = router_of(RECIPE)
    one, same, other = (request_of(RECIPE, router, number, 1) for number in (3, 3, 4))
    assert one.added.tobytes() == same.added.tobytes()
    assert one.added.tobytes() != other.added.tobytes()
    assert one.topics.sum() == pytest.approx(1.0)


@given(
    experts=st.integers(1, 40),
    part=st.floats(0.0, 1.0),
    skew=st.floats(0.0, 3.0),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_token_picks_different_experts_of_the_model(experts, part, skew, share, seed):
    """Whatever the shape, down to a token that picks all experts, and however hot one of them is."""
    top_k = max(1, round(part * experts))
    recipe = Recipe(Shape(2, experts, top_k), skew=skew, topic_share=share, seed=seed)
    ordered = np.sort(drawn(recipe, 17), axis=2).astype(int)
    assert ordered.shape == (17, 2, top_k)
    assert (np.diff(ordered, axis=2) > 0).all()
    assert ordered.min() >= 0
    assert ordered.max() < experts


def test_single_picks_follow_popularity():
    """Top-1 without topics: the parts of 40,000 picks are the popularity of this request."""
    recipe = Recipe(Shape(2, 16, 1), topic_share=0.0)
    router = router_of(recipe)
    request = request_of(recipe, router, 0, 0)
    weights = exponential(router.base[0, 0] + request.added)
    expected = np.zeros((2, 16))
    np.put_along_axis(expected, router.order, weights / weights.sum(axis=1, keepdims=True), axis=1)
    picks = drawn(recipe, 40_000)[:, :, 0]
    found = np.array([np.bincount(picks[:, layer], minlength=16) / len(picks) for layer in range(2)])
    # One cell of the table is 1/256 of a layer.
    assert found == pytest.approx(expected, abs=1.5 / 256)


def test_topics_alone_keep_a_token_within_its_block():
    """With share 1 and blocks that are large enough, all picks of a token in a layer come from one block."""
    recipe = Recipe(Shape(3, 512, 2), topic_share=1.0, skew=0.2)
    router = router_of(recipe)
    block_of = np.empty((3, 512), dtype=int)
    for layer in range(3):
        at = np.searchsorted(router.edges[layer], np.arange(512), side="right") - 1
        block_of[layer, router.order[layer]] = at
    picks = drawn(recipe, 200)
    blocks = np.stack([block_of[layer][picks[:, layer]] for layer in range(3)], axis=1)
    assert (blocks == blocks[:, :1, :1]).all()


def test_a_topic_runs_for_some_tokens():
    """Eight on average: one change in eight tokens; and rare topics are drawn rarely."""
    recipe = Recipe(Shape(1, 512, 2), topic_tokens=8)
    request = Request(np.zeros((1, 512)), np.array([0.5, 0.0, 0.5]))
    topics = topics_of(recipe, request, 80_000, Draws(1))
    changes = (np.diff(topics) != 0).mean()
    # Half of the new topics are the old one.
    assert changes == pytest.approx(1 / 16, rel=0.05)
    assert set(topics.tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"shape": Shape(1, 4, 5)}, "top_k is 5, must be 1..4"),
        ({"shape": Shape(0, 4, 1)}, "layers is 0"),
        ({"domains": 65}, "domains is 65, must be 1..64"),
        ({"skew": float("nan")}, "skew is nan"),
        ({"topic_share": 1.1}, "topic_share is 1.1, must be 0..1"),
        ({"phases": ("decode", "decode")}, "different ones of prefill, decode, mixed"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(change, part):
    """Each message names the value and its range."""
    with pytest.raises(ConfigError) as caught:
        replace(RECIPE, **change)
    assert part in str(caught.value)
