"""Predicted seconds: rounds one after the other over the slowest link, copies into place, and two gates."""

import numpy as np
import pytest
from agent_crew import change

from collectors.facts import PoolFacts
from eplb.agent.rounds import wave_copies
from eplb.config.sections import MigrationConfig
from eplb.migration import make_plan, waves
from eplb.migration.duration import Links, layers_in_budget, plan_seconds, predicted_seconds, wave_seconds

FACTS = PoolFacts("p", 4, 2, 2, 6, 1, (0, 1), bytes_per_expert=1000)
LINKS = Links(node_bytes_per_s=1e6, bytes_per_s=1e5, copy_bytes_per_s=1e7, round_s=0.5, gate_s=2.0)
BASE = np.array([[0, 1, 2, 3, 4, 5, -1, -1]] * 2, dtype=np.int32)


def seconds(target):
    copies = wave_copies(FACTS, BASE, [change(FACTS, 0, BASE[0], np.array(target, dtype=np.int32))])
    return wave_seconds(FACTS, LINKS, copies)


def test_a_copy_inside_a_node_takes_the_fast_link_and_one_between_nodes_the_slow_one():
    waiting, placing = 2 * 2.0, 1000 * 2 / 1e7
    assert seconds([0, 1, 2, 3, 4, 5, 4, -1]) == pytest.approx(waiting + placing + 0.5 + 1000 / 1e6)
    assert seconds([0, 1, 2, 3, 4, 5, 0, -1]) == pytest.approx(waiting + placing + 0.5 + 1000 / 1e5)


def test_two_arrivals_on_one_rank_are_two_rounds_and_two_on_two_ranks_are_one():
    one = 0.5 + 1000 / 1e5
    assert seconds([0, 1, 2, 3, 4, 5, 0, 2]) == pytest.approx(4.0 + 2 * 1000 * 2 / 1e7 + 2 * one)
    swap = [2, 1, 0, 3, 4, 5, -1, -1]
    assert seconds(swap) == pytest.approx(4.0 + 1000 * 2 / 1e7 + 0.5 + 1000 / 1e6)


def test_shares_alone_wait_for_the_two_gates():
    assert seconds(BASE[0]) == 4.0


def test_a_plan_takes_as_long_as_its_waves():
    target = BASE.copy()
    target[:, 6] = (0, 1)
    plan = make_plan(FACTS, BASE, target, created_ms=1)
    parts = waves(FACTS, plan, BASE, plan.base_digests, staging_slots=1)
    assert len(parts) == 2
    each = 4.0 + 1000 * 2 / 1e7 + 0.5 + 1000 / 1e5
    assert plan_seconds(FACTS, LINKS, BASE, parts) == pytest.approx(2 * each)
    assert predicted_seconds(FACTS, LINKS, plan, BASE, 1) == pytest.approx(2 * each)


def test_an_expert_without_a_holder_has_no_predicted_time():
    base, target = BASE.copy(), BASE.copy()
    base[0, 0], target[0, 7] = -1, 0
    plan = make_plan(FACTS, base, target, created_ms=1)
    assert predicted_seconds(FACTS, LINKS, plan, base, 2) is None


def test_links_come_from_the_settings_and_gates_from_the_step_time():
    settings = MigrationConfig(link_bytes_per_s=3e9, node_link_bytes_per_s=4e9, gate_steps=50)
    links = Links.of(settings, 20_000.0)
    assert (links.bytes_per_s, links.node_bytes_per_s, links.gate_s) == (3e9, 4e9, 1.0)
    assert Links.of(settings, None).gate_s == 0.0


def test_MIG_05_a_stall_of_100_ms_holds_five_layers_and_58_are_12_batches():  # noqa: N802
    """396,361,728 bytes a layer and rank at 20 GB/s: 19.8 ms each."""
    layers = layers_in_budget(396_361_728, link_bytes_per_s=20e9, budget_s=0.1)
    assert (layers, -(-58 // layers)) == (5, 12)
    assert layers_in_budget(396_361_728, link_bytes_per_s=1e9, budget_s=0.1) == 1
    with pytest.raises(ValueError, match="layer_bytes"):
        layers_in_budget(0, link_bytes_per_s=1e9, budget_s=0.1)
