"""evaluate: the ratio of any map that serves all load, by even or weighted shares."""

import numpy as np
import pytest
from solver_inputs import one_slice

from placement import InfeasibleError, LoadTrace, MapError, Placement, Topology, UnsupportedError, evaluate

PAIR = Topology.uniform(ranks=2, slots_per_rank=2)


def test_copies_share_evenly():
    """Rank loads are tokens; the ratio is the hottest over the mean."""
    score = evaluate(Placement([[0, 1, 0, 2]]), one_slice([10, 4, 2]), PAIR)
    assert score.rank_load.tolist() == [[[9.0, 7.0]]]
    assert score.ratio.tolist() == [[9 / 8]]
    assert score.mean_ratio == 9 / 8


def test_twins_gaps_and_dead_ranks_are_scored_as_they_serve():
    """Both twins count, an empty slot gets nothing, a copy on a dead rank serves nothing."""
    assert evaluate(Placement([[0, 0, 1, -1]]), one_slice([6, 2]), PAIR).rank_load.tolist() == [[[6.0, 2.0]]]
    lame = Topology.uniform(ranks=3, slots_per_rank=1, dead=frozenset({2}))
    score = evaluate(Placement([[0, 1, 0]]), one_slice([6, 2]), lame)
    assert score.rank_load.tolist() == [[[6.0, 2.0, 0.0]]]
    assert score.ratio.tolist() == [[1.5]]


def test_speeds_divide_the_load():
    """A rank of twice the speed may take twice the tokens."""
    fast = Topology.uniform(ranks=2, slots_per_rank=1, speeds=(2.0, 1.0))
    assert evaluate(Placement([[0, 1]]), one_slice([8, 4]), fast).ratio.tolist() == [[1.0]]


def test_weighted_uses_the_shares_of_the_map():
    """Shares are scaled over live copies; an expert without shares is shared evenly."""
    placement = Placement([[0, 1, 0, 2]], [[0.25, 1.0, 0.75, 1.0]])
    score = evaluate(placement, one_slice([8, 4, 2]), PAIR, dispatch="weighted")
    assert score.rank_load.tolist() == [[[6.0, 8.0]]]
    bare = Placement([[0, 1, 0, 2]], [[0.0, 1.0, 0.0, 1.0]])
    assert evaluate(bare, one_slice([8, 4, 2]), PAIR, dispatch="weighted").rank_load.tolist() == [
        [[8.0, 6.0]]
    ]


def test_a_layer_without_load_has_no_ratio():
    """NaN in its place, left out of the mean; without any load the mean is NaN too."""
    tokens = np.zeros((2, 2, 2), dtype=np.int64)
    tokens[0, 0] = [3, 1]
    score = evaluate(Placement([[0, 1]] * 2), LoadTrace(tokens), Topology.uniform(ranks=2, slots_per_rank=1))
    assert np.isnan(score.ratio).tolist() == [[False, True], [True, True]]
    assert score.mean_ratio == 1.5
    assert score.layer_ratio()[0] == 1.5
    assert np.isnan(score.layer_ratio()[1])
    empty = evaluate(
        Placement([[0, 1]]), LoadTrace(tokens[1:, :1]), Topology.uniform(ranks=2, slots_per_rank=1)
    )
    assert np.isnan(empty.mean_ratio)


def test_weights_of_slices_count():
    """A slice of weight 3 counts three times."""
    trace = LoadTrace([[[3, 1]], [[1, 1]]], weights=[3.0, 1.0])
    score = evaluate(Placement([[0, 1]]), trace, Topology.uniform(ranks=2, slots_per_rank=1))
    assert score.mean_ratio == pytest.approx((3 * 1.5 + 1.0) / 4)


@pytest.mark.parametrize(
    ("rows", "part"),
    [([[0, 1, 2]], "3 slots"), ([[0, 1, 2, 2]] * 2, "2 layers"), ([[0, 1, 2, 3]], "ids from 0 to 3"), ([[0, 1, 1, 0]], "expert 2 has load")],
)  # fmt: skip
def test_a_map_that_does_not_fit_is_refused(rows, part):
    """Another width, other layers, unknown ids and unserved load are named."""
    with pytest.raises(MapError, match=part):
        evaluate(Placement(rows), one_slice([1, 1, 1]), PAIR)


def test_nothing_can_be_scored_without_a_live_rank():
    """All ranks dead is an InfeasibleError, not a division by zero."""
    dead = Topology.uniform(ranks=1, slots_per_rank=1, dead=frozenset({0}))
    with pytest.raises(InfeasibleError):
        evaluate(Placement([[0]]), one_slice([0]), dead)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"dispatch": "nearby"}, "dispatch 'nearby' is unknown"),
        ({"cost": "flops"}, "cost 'flops' is unknown"),
    ],
)
def test_an_unknown_model_is_refused_by_name(options, part):
    """No dispatch rule or cost model is quietly taken for another."""
    with pytest.raises(UnsupportedError, match=part):
        evaluate(Placement([[0, 1, 2, -1]]), one_slice([1, 1, 1]), PAIR, **options)


def test_the_cost_of_tokens_is_tokens_over_speed():
    """Beside the load of every rank stands what it costs; dead ranks cost nothing."""
    group = Topology.uniform(ranks=3, slots_per_rank=1, speeds=(2.0, 1.0, 1.0), dead=frozenset({2}))
    score = evaluate(Placement([[0, 1, 1]]), one_slice([6, 2]), group)
    assert score.rank_cost.tolist() == [[[3.0, 2.0, 0.0]]]
    assert score.reasons == ()


def test_what_was_assumed_stands_in_the_score():
    """A rule that needs source ranks says that it had none."""
    score = evaluate(Placement([[0, 1, 0, 2]]), one_slice([6, 2, 2]), PAIR, dispatch="nearest")
    assert [reason.code for reason in score.reasons] == ["sources_assumed_even"]
