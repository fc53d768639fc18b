"""The verdict: one trace for every answer, and words that name the numbers."""

import numpy as np
import pytest
from report_world import compared, even, restless, skewed, studied

from eplb.report.study import Named
from eplb.report.verdict import verdict
from placement import Placement, Routes, Topology
from placement.cost import H200_DEEPSEEK_V3_FP8_DECODE

FULL = Topology.uniform(ranks=4, nodes=2, slots_per_rank=4)


def one_hot(slices=8):
    """One expert has half of all tokens, and there is no slot for a copy."""
    tokens = np.full((slices, 2, 16), 100, dtype=np.int64)
    tokens[:, :, 3] = 1500
    return tokens


def either_way():
    """Two kinds of slices; what helps one hurts the other as much."""
    kinds = np.array([[10, 10, 0, 0], [10, 0, 10, 0]])
    return kinds[[0, 0, 0, 1, 0, 0]][:, None, :]


CASES = {
    "no_load": lambda: studied(np.zeros((8, 2, 16), dtype=np.int64)),
    "one_rank": lambda: studied(topology=Topology.uniform(ranks=1, slots_per_rank=16)),
    "too_few_slices": lambda: studied(skewed(3)),
    "balanced": lambda: studied(even(), FULL),
    "drift": lambda: studied(restless(40, 6)),
    "indivisible": lambda: studied(one_hot(), FULL),
    "gain_too_small": lambda: compared(maps=(Named("same", Placement(np.tile(np.arange(20) % 16, (3, 1)))),)),
    "too_close": lambda: compared(
        either_way(),
        topology=Topology.uniform(ranks=2, slots_per_rank=2),
        maps=(Named("other", Placement(np.array([[0, 2, 1, 3]]))),),
    ),
    "no_time": lambda: studied(
        skewed(tokens=200), cost=H200_DEEPSEEK_V3_FP8_DECODE, steps=np.ones(8, dtype=np.int64)
    ),
    "pays": studied,
}


@pytest.mark.parametrize("code", CASES)
def test_every_answer_is_given_for_its_reason(code):
    """The headline answers, and the first sentences say why."""
    found = verdict(CASES[code]())
    assert found.code == code
    answer = {"pays": "pays", "no_load": "unsure", "too_few_slices": "unsure", "too_close": "unsure"}.get(
        code, "not"
    )
    assert found.answer == answer
    assert found.headline.startswith(
        {"pays": "This will pay", "not": "This will not pay"}.get(
            answer, ("This trace cannot tell", "Too close")
        )
    )
    assert all(sentence.endswith(".") for sentence in found.reasons)


def test_a_payer_names_what_it_saves_and_what_it_costs():
    """Ratios are those of held-out slices."""
    found = studied()
    text = " ".join(verdict(found).reasons)
    for part in (
        f"{found.mean_ratio(found.before):.3f}",
        f"{found.mean_ratio(found.after):.3f}",
        f"{found.after.moves} moves",
    ):
        assert part in text


def test_a_hot_expert_is_named_with_the_copies_it_would_take():
    """Half of the tokens on one of 4 ranks: two copies."""
    text = " ".join(verdict(CASES["indivisible"]()).reasons)
    assert "expert 3 of layer 0" in text
    assert "on 1 copy, where it would take 2" in text
    assert "0 redundant slots" in text


def test_a_phase_in_which_it_does_not_pay_is_named():
    """Prefill is uneven, decode is not."""
    tokens = np.empty((12, 3, 16), dtype=np.int64)
    tokens[::2], tokens[1::2] = skewed(6), even(6)
    found = verdict(studied(tokens, FULL, phase=("prefill", "decode") * 6))
    assert found.code == "pays"
    assert any("in decode the drop is below" in sentence for sentence in found.reasons)


def test_domains_that_share_no_hot_experts_are_warned_of():
    """The plan depends on the mix."""
    tokens = np.concatenate([skewed(6, seed=0), skewed(6, seed=9)])
    found = verdict(studied(tokens, domain=("law",) * 6 + ("math",) * 6))
    assert any("It depends on the mix of requests" in sentence for sentence in found.reasons)


def test_a_gain_seen_on_held_out_slices_outweighs_the_floor():
    """Requests that repeat each other leave less to chance than independent tokens, and the page says so."""
    rng = np.random.default_rng(4)
    tokens = np.tile(rng.integers(2, 6, (1, 3, 16)), (12, 1, 1))
    found = studied(tokens, FULL)
    assert found.mean_ratio(found.before) - 1 < found.mean_floor() + 0.02
    judged = verdict(found)
    assert judged.code == "pays"
    assert any("below the sampling floor" in sentence for sentence in judged.reasons)


def test_more_traffic_is_named_as_a_price():
    """Tokens whose experts stood on one node before, and stand on two after."""
    tokens = np.tile(np.array([8, 8, 1, 1]), (8, 1, 1))
    routes = Routes(np.tile(np.array([[[0, 1]]]), (8, 1, 1)), np.arange(8))
    topology = Topology.uniform(ranks=2, nodes=2, slots_per_rank=2)
    apart = Named("apart", Placement(np.array([[0, 2, 1, 3]])))
    judged = verdict(compared(tokens, topology=topology, routes=routes, maps=(apart,)))
    assert judged.code == "pays"
    assert any("2.00 nodes instead of 1.00" in sentence for sentence in judged.reasons)


def test_a_map_from_a_file_is_not_promised_more_than_is_known():
    """What it was planned on is in no file, so the answer says so and calls nothing held out; a plan made here needs no such word."""
    found = verdict(compared())
    assert found.headline.startswith("This will pay, unless the map was planned on this very trace")
    assert any("does not say what the map was planned on" in reason for reason in found.reasons)
    assert not any("held-out" in reason for reason in found.reasons)
    made = verdict(studied())
    assert made.headline.startswith("This will pay: ")
    assert not any("does not say" in reason for reason in made.reasons)


def test_slices_count_for_a_map_from_a_file_though_none_is_held_out():
    """Two cannot tell, three can."""
    assert verdict(compared(skewed(2))).code == "too_few_slices"
    assert verdict(compared(skewed(3))).code != "too_few_slices"
