"""Memory, and what another number of ranks asks for: known before anything changes."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS
from pydantic import ValidationError

from collectors.facts import PoolFacts
from eplb.config import PoolConfig
from eplb.errors import PlanError
from eplb.migration.memory import check_headroom, memory_estimate
from eplb.migration.scale import copied_tensors, expert_mask, fewest_ranks, redundancy_at

DEEPSEEK = PoolFacts("p", 32, 4, 9, 256, 8, tuple(range(3, 61)), bytes_per_expert=44_040_192)


def test_PLN_14_the_price_of_redundancy_and_staging_is_known_before_the_start():  # noqa: N802
    estimate = memory_estimate(DEEPSEEK, wave_slots=9)
    assert estimate.redundant_bytes == 2_554_331_136
    assert estimate.staging_bytes == 396_361_728
    assert estimate.total_bytes == 2_950_692_864
    check_headroom(estimate, None)
    check_headroom(estimate, 2_950_692_864)
    with pytest.raises(PlanError, match="headroom is 2950692863"):
        check_headroom(estimate, 2_950_692_863)


def test_redundancy_that_does_not_divide_counts_for_the_fullest_rank():
    facts = replace(FACTS, bytes_per_expert=10)
    assert memory_estimate(facts, 2).redundant_bytes == 1 * 3 * 10
    assert memory_estimate(facts, 2).staging_bytes == 20


@pytest.mark.parametrize(("headroom", "fits"), [(2_950_692_864, True), (2_950_692_863, False)])
def test_PLN_14_a_pool_that_does_not_fit_is_refused_at_start(headroom, fits):  # noqa: N802
    body = {
        "name": "p",
        "topology": {"ranks": 32, "nodes": 4, "slots_per_rank": 9},
        "model": {"experts": 256, "top_k": 8, "moe_layers": "3-60", "bytes_per_expert": 44_040_192},
        "kind": "routed",
        "migration": {"headroom_bytes": headroom},
    }
    if fits:
        assert PoolConfig.model_validate(body).wave_slots() == 9
        return
    with pytest.raises(ValidationError, match="the headroom is 2950692863"):
        PoolConfig.model_validate(body)


def test_PLN_06_too_few_ranks_are_refused_before_any_change_and_the_least_is_named():  # noqa: N802
    assert fewest_ranks(128, 64) == 2
    with pytest.raises(PlanError, match="at least 2 ranks"):
        redundancy_at(128, 64, ranks=1)
    assert redundancy_at(128, 64, ranks=2) == 0
    assert redundancy_at(128, 64, ranks=4) == 128


def test_MIG_10_only_what_belongs_to_an_expert_is_copied_and_the_mask_is_made_from_the_row():  # noqa: N802
    present, rank_local = ("w13", "w2", "expert_map", "expert_mask"), {"expert_map", "expert_mask"}
    copied = copied_tensors(present, per_expert=("w13", "w2"))
    assert copied == ("w13", "w2")
    assert not rank_local & set(copied)
    row = np.array([0, 1, 2, 3, 0, 2, 1, 3, 3, -1], dtype=np.int32)
    assert expert_mask(row, 4, 2, 4).tolist() == [False, False, False, True]


def test_a_tensor_that_is_declared_and_not_there_is_named():
    with pytest.raises(PlanError, match="w13_scale"):
        copied_tensors(("w13", "w2"), per_expert=("w13", "w13_scale"))
