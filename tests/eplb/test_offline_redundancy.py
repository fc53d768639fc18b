"""How many slots pay: the fewest that come within the tolerance of the best, judged on slices that the plan did not see."""

import numpy as np
import pytest

from eplb.offline.engines import engine_of
from eplb.offline.plan import Ask
from eplb.offline.redundancy import TOLERANCE, choose, resized, slots_for
from placement import InfeasibleError, Limits, LoadTrace, Topology


def ask(**changes):
    topology = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2)
    return Ask(topology=topology, engine=engine_of("even"), limits=Limits(), say=lambda _: None, **changes)


def chosen(tokens):
    trace = LoadTrace(np.array(tokens))
    return choose(trace, (("", ""),) * trace.slices, ask())


def test_even_load_needs_no_redundant_slot():
    """Every count is as good as the first."""
    found = chosen(np.full((8, 1, 8), 10))
    assert (found.chosen.slots_per_rank, found.chosen.redundant, found.chosen.ratio) == (2, 0, 1.0)
    assert [each.slots_per_rank for each in found.tries] == [2, 3, 4, 5, 6]
    assert found.held_out


def test_one_hot_expert_needs_copies():
    """It has half of all tokens: on 4 ranks the ratio is 2 or more while it has one slot, and no more than its tolerance above the best."""
    tokens = np.full((8, 1, 8), 10)
    tokens[:, :, 3] = 70
    found = chosen(tokens)
    best = min(each.ratio for each in found.tries)
    assert found.tries[0].ratio >= 2
    assert found.chosen.slots_per_rank > 2
    assert found.chosen.ratio <= best + TOLERANCE
    assert all(
        each.ratio > best + TOLERANCE
        for each in found.tries
        if each.slots_per_rank < found.chosen.slots_per_rank
    )


def test_a_single_slice_is_judged_on_itself_and_that_is_said():
    """Nothing can be held out of it."""
    assert not chosen(np.full((1, 1, 8), 10)).held_out


def test_a_trace_without_load_asks_for_no_slots():
    """Its ratios are not known."""
    assert chosen(np.zeros((4, 1, 8), dtype=int)).chosen.slots_per_rank == 2


def test_redundant_slots_must_divide_over_the_ranks():
    """8 experts and 4 redundant slots are 3 slots on each of 4 ranks."""
    assert slots_for(8, 4, 4) == 3
    with pytest.raises(InfeasibleError, match="use 8 redundant slots"):
        slots_for(8, 4, 5)


def test_a_resized_pool_keeps_all_else():
    """Nodes, groups and policy."""
    pool = Topology.uniform(ranks=4, nodes=2, slots_per_rank=2, expert_groups=2, policy="global")
    assert resized(pool, 5) == Topology.uniform(
        ranks=4, nodes=2, slots_per_rank=5, expert_groups=2, policy="global"
    )
