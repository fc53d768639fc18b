"""What the solver is asked for in the cases where membership, and not balance, wants a plan."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS
from pool_world import config
from test_migration_membership import ALL, LIVING, read, records_of, reduced

from collectors.digests import layer_map_digests
from collectors.shares import even_shares
from eplb.decisions import Code
from eplb.evacuation import Need
from eplb.gains import Departure, Gains
from eplb.migration import Desired, Plan
from eplb.planner import PlanResult
from eplb.planning import Planning
from eplb.states import Answer
from eplb.window import Window
from placement import Placement

LEFT = ((0, 1, 2), (1, 2, 3))
GAINS = Gains().with_departure(Departure(995_000, LEFT))
NEEDS = [
    Need(Code.RANK_LOST, "rank 0 lost", urgent=True),
    Need(Code.RANK_BACK, "rank 0 is back", urgent=False),
]


class Waiting:
    """A solver that never answers: it keeps what it was asked."""

    def __init__(self):
        self.request, self.busy, self.warmed = None, False, 0

    def start(self, request):
        self.request, self.busy = request, True

    def warm(self):
        self.warmed += 1

    def poll(self):
        return None

    def close(self):
        self.busy = False


class Answering(Waiting):
    """A solver that swaps two experts of two ranks, at once."""

    def poll(self):
        target = self.request.current.copy()
        target[:, [0, 3]] = target[:, [3, 0]]
        shares = np.stack([even_shares(row) for row in target])
        self.busy = False
        return PlanResult(target, shares, 1.5, 1.1, 1.0, 8, 2, 0.1, ())


@pytest.fixture
def planning():
    pool = config().pools[0]
    assert pool.facts() == replace(FACTS, pool="main", bytes_per_expert=140)
    return Planning(pool.facts(), pool, Waiting())


def with_shares(records, first_copy):
    """The records once the group has switched to other shares of experts that have two copies."""
    rows = np.array(records[0].map_rows)
    shares = np.stack([even_shares(row) for row in rows])
    for row, each in zip(rows, shares, strict=True):
        for expert in np.flatnonzero(np.bincount(row) == 2):
            each[row == expert] = first_copy, 1 - first_copy
    digests = tuple(int(x) for x in layer_map_digests(FACTS.model_layers, rows, shares))
    told = {rank: replace(record, digests=digests) for rank, record in records.items()}
    return {**told, 0: replace(told[0], shares_rows=tuple(map(tuple, shares.tolist())))}


def plans_alive():
    gc.collect()  # beside many other tests the collector comes seldom by itself
    return [thing for thing in gc.get_objects() if type(thing) is Plan]


def ask(planning, ranks, need):
    planning.ask(Window(FACTS).view(1_000_000), ranks, GAINS, need)
    return planning._solver.request


@pytest.mark.parametrize("need", NEEDS)
def test_what_membership_asks_for_is_barred_by_no_earlier_plan_and_not_answered_by_shares_alone(
    planning, need
):
    """An expert may come back to a rank that it left lately, and a rank without experts is not left empty because shares suffice."""
    balance = ask(planning, read(records_of(77, ALL)), None)
    assert balance.barred == LEFT
    assert balance.enough_ratio is not None
    request = ask(planning, read(records_of(78, LIVING, reduced())), need)
    assert (request.barred, request.enough_ratio) == ((), None)
    assert request.dead == {0}


def test_a_solve_ends_when_the_live_shares_that_it_plans_from_are_gone(planning):
    """A wave that was lost with the store is switched to after all: no expert moved, but what the plan promises is no longer so."""
    before = read(records_of(77, ALL))
    ask(planning, before, None)
    tilted = read(with_shares(records_of(77, ALL), first_copy=0.7))
    assert np.array_equal(tilted.rows, before.rows)
    assert planning.answer(tilted, Desired(), 1_005_000, GAINS) == Answer(base_is_live=False)


def test_a_solve_ends_when_the_live_map_that_it_plans_from_is_gone(planning):
    """A rank is lost while the solver works: the plan for the survivors does not wait for an answer of no use."""
    before, after = read(records_of(77, ALL)), read(records_of(78, LIVING, reduced()))
    ask(planning, before, None)
    assert planning.answer(before, Desired(), 1_000_000, GAINS) is None
    answer = planning.answer(after, Desired(), 1_005_000, GAINS)
    assert (answer.plan, answer.base_is_live) == (None, False)
    assert not planning.solving
    assert planning._solver.warmed == 1, "the next request does not wait for imports"
    assert np.array_equal(ask(planning, after, NEEDS[0]).current, reduced())


def test_pln_13_plans_that_were_used_are_let_go():
    """PLN-13: after 200 plans, and 200 ways back that were looked at, the newest of each is alive and no other."""
    pool = config().pools[0]
    planning, ranks = Planning(pool.facts(), pool, Answering()), read(records_of(77, ALL))
    before = Placement(np.roll(ranks.rows, 3, axis=1))
    known = plans_alive()
    for cycle in range(200):
        ask(planning, ranks, None)
        made = planning.answer(ranks, Desired(), 1_000_000 + cycle, GAINS).plan
        back = planning.roll_back(before, ranks, 1_000_000 + cycle)
    assert len(plans_alive()) == len(known) + 2
    for _ in range(3):
        back = planning.roll_back(before, ranks, 1_000_500)
    for facts in (made, back):
        planning.choose(facts)
        assert planning.plan.plan_id == facts.plan_id
