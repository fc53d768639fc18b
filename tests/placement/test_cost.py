"""Cost: a roofline pays for activated experts and for tokens, per step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import LoadTrace, Placement, PlacementError, Topology, TraceError, UnsupportedError, evaluate
from placement.cost import H200_DEEPSEEK_V3_FP8, H200_DEEPSEEK_V3_FP8_DECODE, Activation, Roofline, as_cost

PAIR = Topology.uniform(ranks=2, slots_per_rank=2)
PLAIN = Roofline(base_us=20.0, activated_us=10.0, token_us=0.1)


def steps_of(*tokens, **facts):
    """A trace whose slices are single steps of one layer."""
    array = np.array(tokens, dtype=np.int64)[:, None, :]
    return LoadTrace(array, steps_per_slice=np.ones(len(array), dtype=np.int64), **facts)


def test_one_step_is_counted():
    """t0 + b x activated + p x tokens: an expert without tokens in the step is not read."""
    score = evaluate(Placement([[0, 1, 2, 3]]), steps_of([50, 30, 0, 20]), PAIR, cost=PLAIN)
    assert score.rank_cost[0, 0].tolist() == [20 + 2 * 10 + 8, 20 + 10 + 2]
    assert [reason.code for reason in score.reasons] == ["activation_counted"]
    balanced = 20 + 1.5 * 10 + 5
    assert score.ratio[0, 0] == pytest.approx(48 / balanced)


def test_a_copy_in_decode_can_hurt_and_in_prefill_it_helps():
    """Few tokens: a copy on each rank is one more expert to read there. Many: it takes tokens off the hottest rank."""
    spare = Topology.uniform(ranks=2, slots_per_rank=3)
    alone, copied = Placement([[0, 1, -1, 2, 3, -1]]), Placement([[0, 1, 2, 2, 3, 0]])
    few, many = steps_of([6, 4, 9, 5]), steps_of([6000, 4000, 9000, 5000])
    for trace, better, worse in ((few, alone, copied), (many, copied, alone)):
        cheap, dear = (evaluate(map_, trace, spare, cost="roofline") for map_ in (better, worse))
        assert cheap.rank_cost.max() < dear.rank_cost.max()
        assert cheap.mean_ratio < dear.mean_ratio
    assert evaluate(copied, few, spare).mean_ratio < evaluate(alone, few, spare).mean_ratio


@pytest.mark.parametrize(
    ("batch", "one", "two", "four"),
    [
        (8, 0.224, 0.237, 0.243),
        (32, 0.638, 0.792, 0.888),
        (128, 0.983, 1.734, 2.534),
        (512, 1.000, 1.999, 3.928),
    ],
)
def test_the_recorded_batch_gives_the_published_activations(batch, one, two, four):
    """Field notes 2.10: uniform top-8 of 256, expected activations with 1, 2 and 4 copies that share evenly."""
    steps = 100
    tokens = np.full((1, 1, 256), steps * batch * 8 // 256)
    trace = LoadTrace(tokens, steps_per_slice=[steps], batch_tokens=[batch])
    activation = Activation.of(trace)
    assert activation.reason.code == "activation_expected"
    for copies, expected in ((1, one), (2, two), (4, four)):
        part = np.full((1, 1), 1 / copies)
        chance = activation.chance(tokens[0, :, :1], part, whole=False)
        assert copies * chance[0, 0] == pytest.approx(expected, abs=6e-4)


def test_many_steps_without_a_batch_are_refused():
    """In a slice of many steps everything was activated in some: the sum says nothing about one step."""
    tokens = np.ones((1, 1, 4), dtype=np.int64)
    map_ = Placement([[0, 1, 2, 3]])
    with pytest.raises(TraceError, match="no steps_per_slice"):
        evaluate(map_, LoadTrace(tokens), PAIR, cost="roofline")
    with pytest.raises(TraceError, match=r"slices of one step or batch_tokens: slices have up to 9 steps"):
        evaluate(map_, LoadTrace(tokens, steps_per_slice=[9]), PAIR, cost="roofline")


@given(
    st.lists(st.integers(0, 500), min_size=4, max_size=4).filter(any),
    st.sampled_from(["even", "optimal", "hash_row"]),
)
@settings(deadline=None)
def test_no_map_is_cheaper_than_perfect_balance(loads, dispatch):
    """The ratio is at least 1 whatever the copies, so that maps can be compared by it."""
    wide = Topology.uniform(ranks=2, slots_per_rank=3)
    for row in ([0, 1, 2, 3, 0, 1], [0, 1, -1, 2, 3, -1]):
        for model in (H200_DEEPSEEK_V3_FP8_DECODE, PLAIN):
            score = evaluate(Placement([row]), steps_of(loads), wide, dispatch=dispatch, cost=model)
            assert score.ratio[0, 0] >= 1 - 1e-9


def test_speeds_and_dead_ranks_divide_and_drop_cost():
    """A rank of twice the speed takes half the time; a dead one takes none."""
    uneven = Topology.uniform(ranks=3, slots_per_rank=1, speeds=(2.0, 1.0, 1.0), dead=frozenset({2}))
    score = evaluate(Placement([[0, 1, 0]]), steps_of([100, 100]), uneven, cost=PLAIN)
    assert score.rank_cost[0, 0].tolist() == [20.0, 40.0, 0.0]


def test_presets_follow_the_published_table():
    """Decode layer at 64 / 32 / 16 / 8 / 4 / 2 experts a rank: 738 / 384 / 205 / 114 / 66 / 43 us where tokens do not bind."""
    for experts, published in ((64, 738), (32, 384), (16, 205), (8, 114), (4, 66), (2, 43)):
        many = np.full(1, float(experts))
        for preset in (H200_DEEPSEEK_V3_FP8_DECODE, H200_DEEPSEEK_V3_FP8):
            assert preset.us(many, many, 16 * many)[0] == pytest.approx(published, rel=0.065)
            assert "aiconfigurator" in preset.provenance or "same tables" in preset.provenance


def test_a_preset_can_be_scaled_to_other_hardware():
    """Weight reads and tokens scale apart; where tokens bind moves with their quotient."""
    half = H200_DEEPSEEK_V3_FP8.scaled(weight_read=0.5, compute=2.0, provenance="int4 experts")
    assert half.activated_us == pytest.approx(11.23 / 2)
    assert half.free_tokens == pytest.approx(half.activated_us / half.token_us)
    assert half.provenance.startswith("int4 experts; scaled from: ")


def test_models_are_found_by_name_and_checked():
    """Tokens have no roofline; unknown names and negative numbers are refused."""
    assert as_cost("tokens") is None
    assert as_cost("roofline") is H200_DEEPSEEK_V3_FP8_DECODE
    with pytest.raises(UnsupportedError, match="cost 'flops' is unknown: use one of tokens, roofline"):
        as_cost("flops")
    with pytest.raises(PlacementError, match=r"roofline\.token_us is -1"):
        Roofline(1.0, 1.0, -1.0)


@given(st.floats(1e-6, 1e6), st.integers(1, 1000), st.integers(0, 10**6), st.integers(2, 8))
def test_more_copies_are_never_fewer_activations(batch, steps, tokens, copies):
    """With any recorded batch, less than one token a step included."""
    activation = Activation(np.array([float(steps)]), np.array([batch]))
    one, each = (
        activation.chance(np.array([[tokens]]), np.array([[1.0 / n]]), whole=False) for n in (1, copies)
    )
    assert copies * each[0, 0] >= one[0, 0] * (1 - 1e-9)
    assert 0 <= each[0, 0] <= one[0, 0] <= 1


def test_with_less_than_one_token_a_step_an_expert_is_read_once_a_token():
    """10 tokens in 100 steps of a quarter token each: every tenth step reads the expert, half of them this copy."""
    activation = Activation(np.array([100.0]), np.array([0.25]))
    assert activation.chance(np.array([[10]]), np.array([[0.5]]), whole=False)[0, 0] == pytest.approx(0.05)
