"""Tables for the router follow from the map alone, and are handed over together at the switch."""

import numpy as np
from agent_crew import FACTS, Crew, change, offer, rotated, start_map
from hypothesis import given
from test_agent_rounds import pools_with_two_maps

from collectors.facts import PoolFacts
from eplb.agent import dispatch_tables
from eplb.agent.tables import tables_of

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])


def test_MIG_11_without_all_to_all_one_rank_runs_an_expert_for_a_token():  # noqa: N802
    """Two ranks with experts [0, 1] and [0, 2]: the nearest replica would run expert 0 on both, and double its output."""
    facts = PoolFacts("p", ranks=2, nodes=1, slots_per_rank=2, experts=3, top_k=1, model_layers=(0,))
    row = np.array([[0, 1, 0, 2]], dtype=np.int32)
    tables = [dispatch_tables(facts, row) for _rank in range(facts.ranks)]
    assert np.array_equal(tables[0], tables[1])
    runs_expert_0 = [rank for rank in range(2) if tables[rank][0, 0] // facts.slots_per_rank == rank]
    assert len(runs_expert_0) == 1


@given(pools_with_two_maps())
def test_every_expert_is_dispatched_to_a_slot_that_holds_it(pool):
    facts, base, _ = pool
    table = dispatch_tables(facts, base)
    for layer, row in enumerate(base):
        assert np.array_equal(row[table[layer]], np.arange(facts.experts))


@given(pools_with_two_maps())
def test_the_tables_of_a_row_list_each_slot_once_under_its_expert(pool):
    facts, base, target = pool
    changes = [change(facts, layer, base[layer], target[layer]) for layer in reversed(range(facts.layers))]
    tables = tables_of(facts, changes)
    for layer, row in enumerate(target):
        for expert in range(facts.experts):
            slots = np.flatnonzero(row == expert)
            found = tables.logical_to_physical[layer, expert]
            assert tables.copies[layer, expert] == slots.size
            assert np.array_equal(found[: slots.size], slots)
            assert (found[slots.size :] == -1).all()
            assert abs(tables.shares[layer, expert].sum() - 1.0) < 1e-9


def test_the_switch_hands_over_rows_shares_and_tables_of_the_same_map():
    shares = np.where(TARGET[1] == 1, 0.0, 1.0) / np.bincount(TARGET[1])[TARGET[1]]
    first, second = np.flatnonzero(TARGET[1] == 1)
    shares[first], shares[second] = 0.75, 0.25
    changes = (change(FACTS, 2, BASE[2], TARGET[2]), change(FACTS, 1, BASE[1], TARGET[1], tuple(shares)))
    crew = Crew()
    crew.offer(offer(FACTS, BASE, TARGET, changes=changes))
    crew.settle()
    for ((_, switched),) in crew.switched:
        assert switched.layers == (1, 2)
        for place, row in enumerate(switched.rows):
            table = switched.tables.logical_to_physical[place]
            assert np.array_equal(row[table[:, 0]], np.arange(FACTS.experts))
        assert switched.tables.shares[0, 1].tolist() == [0.75, 0.25]
