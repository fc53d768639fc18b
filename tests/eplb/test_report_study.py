"""The numbers of a report are those of the library, and the plan never sees what it is scored on."""

import numpy as np
import pytest
from report_world import TOPOLOGY, compared, even, routes_of, skewed, spread_map, studied

from eplb.noise import noise_floor
from eplb.report.drift import between_domains, between_parts, hot_sets, hot_size, shared_part
from eplb.report.forecast import by_domain, by_phase, gain_on
from eplb.report.study import Named
from eplb.skew import id_order
from placement import InfeasibleError, LoadTrace, Topology, evaluate, fan_out, random_fan_out
from placement.cost import H200_DEEPSEEK_V3_FP8_DECODE


def test_the_plan_does_not_depend_on_held_out_slices():
    """Other load there changes the scores and not the map."""
    tokens = skewed()
    first = studied(tokens)
    changed = tokens.copy()
    changed[first.held] = even(int(first.held.sum()))
    second = studied(changed)
    same = first.after.placement.physical_to_logical == second.after.placement.physical_to_logical
    assert same.all()
    assert first.mean_ratio(first.after) != second.mean_ratio(second.after)


def test_ratios_are_those_of_the_library_on_held_out_slices():
    """Before, after and the floor."""
    tokens = skewed()
    found = studied(tokens)
    unseen = LoadTrace(tokens[found.held])
    assert found.mean_ratio(found.after) == pytest.approx(
        evaluate(found.after.placement, unseen, TOPOLOGY).mean_ratio
    )
    before = id_order(LoadTrace(tokens), TOPOLOGY)
    assert found.mean_ratio(found.before) == pytest.approx(evaluate(before, unseen, TOPOLOGY).mean_ratio)
    floor = noise_floor(tokens[found.held].sum(axis=2) / 4, 4, 16, 1)
    assert found.mean_floor() == pytest.approx(float(floor.mean()))


def test_moves_are_slots_with_an_expert_new_to_their_rank():
    """A map against itself has none; a swap of two experts between ranks has two; a swap within a rank has none."""
    rows = id_order(LoadTrace(skewed()), TOPOLOGY).physical_to_logical.copy()
    swapped, within = rows.copy(), rows.copy()
    swapped[0, [0, 5]] = rows[0, [5, 0]]
    within[0, [0, 1]] = rows[0, [1, 0]]
    maps = tuple(
        Named(name, spread_map().__class__(row))
        for name, row in (("same", rows), ("swap", swapped), ("within", within))
    )
    found = compared(maps=maps)
    assert [each.moves for each in found.others] == [0, 2, 0]


def test_a_frontier_point_is_scored_on_both_sides():
    """It starts at the map before and ends no higher, in rising moves."""
    found = studied()
    assert found.frontier[0].moves == 0
    assert found.frontier[0].held == pytest.approx(found.mean_ratio(found.before))
    assert [p.moves for p in found.frontier] == sorted(p.moves for p in found.frontier)
    assert any(
        p.moves == found.result.moves and p.held == pytest.approx(found.mean_ratio(found.after))
        for p in found.frontier
    )


def test_given_maps_are_compared_without_a_plan_and_beside_one():
    """The page is about the plan where there is one."""
    assert [each.name for each in compared().others] == ["dealt.json"]
    assert compared().result is None
    both = studied(maps=(Named("dealt.json", spread_map()),), plan=True)
    assert [each.name for each in both.others] == ["new plan", "dealt.json"]


def test_nothing_is_called_held_out_of_a_map_that_was_planned_elsewhere():
    """It is scored on all slices, as ``eplb eval`` does; beside a plan made here, on those that the plan did not see."""
    tokens = skewed()
    found = compared(tokens)
    assert (found.held.any(), found.scored.all(), found.foreign) == (False, True, True)
    whole = evaluate(spread_map(), LoadTrace(tokens), TOPOLOGY).mean_ratio
    assert found.mean_ratio(found.after) == pytest.approx(whole)
    both = studied(tokens, maps=(Named("dealt.json", spread_map()),), plan=True)
    assert (int(both.held.sum()), both.foreign) == (4, False)


def test_fan_out_is_the_library_s_and_absent_without_routes():
    """Counts alone say nothing of nodes."""
    routes = routes_of()
    found = compared(routes=routes)
    assert found.after.nodes_per_token == pytest.approx(float(fan_out(spread_map(), routes, TOPOLOGY).mean()))
    assert found.random_nodes == random_fan_out(16, 2, 2)
    assert compared().after.nodes_per_token is None


def test_microseconds_need_a_preset_and_steps():
    """Without either, the reason is kept; with both they are the library's."""
    assert "--cost" in compared().after.layer_us_missing
    assert "steps_per_slice" in compared(cost=H200_DEEPSEEK_V3_FP8_DECODE).after.layer_us_missing
    tokens = skewed()
    found = compared(tokens, cost=H200_DEEPSEEK_V3_FP8_DECODE, steps=np.ones(len(tokens), dtype=np.int64))
    trace = LoadTrace(tokens, steps_per_slice=np.ones(len(tokens), dtype=np.int64))
    score = evaluate(spread_map(), trace, TOPOLOGY, cost=H200_DEEPSEEK_V3_FP8_DECODE)
    assert np.array_equal(found.after.layer_us, score.rank_cost.max(axis=2))


def test_a_pool_that_cannot_hold_the_experts_is_refused():
    """By the solver's own named error."""
    with pytest.raises(InfeasibleError, match="too few"):
        studied(topology=Topology.uniform(ranks=2, slots_per_rank=4))


def test_gains_are_told_apart_by_phase_and_domain():
    """Every scored slice counts once in each; unknown ones by that name."""
    phase, domain = ("prefill", "decode") * 4, ("law", "law", "math", "math") * 2
    found = compared(phase=phase, domain=domain)
    assert [each.name for each in by_phase(found)] == ["prefill", "decode"]
    assert sum(each.slices for each in by_domain(found)) == found.scored.sum()
    keep = found.scored & (np.array(phase) == "decode")
    assert by_phase(found)[1].after == pytest.approx(found.mean_ratio(found.after, keep))
    assert by_domain(compared()) == ()


def test_a_gain_is_the_drop_and_its_error_that_of_the_slices():
    """Saved time is 1 - after / before."""
    found = compared()
    gain = gain_on(found, "all", found.scored)
    by_slice = (found.before.ratio - found.after.ratio)[found.scored].mean(axis=1)
    assert gain.gain == pytest.approx(by_slice.mean())
    assert gain.error == pytest.approx(by_slice.std(ddof=1) / np.sqrt(len(by_slice)))
    assert gain.saved == pytest.approx(1 - gain.after / gain.before)
    assert gain.better == (by_slice > 0).sum()


def test_the_hot_set_is_a_tenth_of_the_experts_and_empty_without_load():
    """At least one; equal loads by id."""
    assert [hot_size(experts) for experts in (1, 16, 64, 256)] == [1, 2, 6, 26]
    hot = hot_sets(np.array([[5, 9, 9, 1], [0, 0, 0, 0]]))
    assert hot.tolist() == [[False, True, False, False], [False] * 4]


def test_equal_load_shares_all_of_the_hot_set_and_opposite_load_nothing():
    """Layers without load on one side do not count; without any the overlap is not known."""
    tokens = np.arange(20)[None].repeat(2, axis=0)
    assert shared_part(tokens, tokens) == 1.0
    assert shared_part(tokens, tokens[:, ::-1]) == 0.0
    half = tokens.copy()
    half[1] = 0
    assert shared_part(half, tokens) == 1.0
    assert np.isnan(shared_part(np.zeros_like(tokens), tokens))


def test_domains_are_compared_across_the_split():
    """The diagonal is one half of a domain against the other; two domains with other experts share nothing."""
    tokens = np.zeros((8, 1, 16), dtype=np.int64)
    tokens[::2, :, :2], tokens[1::2, :, 2:4] = 9, 9
    found = between_domains(compared(tokens, domain=("law", "math") * 4))
    assert found.shared.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert (found.within, found.across) == (1.0, 0.0)
    assert between_domains(compared()) is None
    assert between_parts(compared()).shared.shape == (8, 8)
