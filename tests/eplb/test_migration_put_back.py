"""The way back after a failed read-back: every layer that any rank serves otherwise, from all that ranks serve, in one wave."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, rotated, start_map
from test_migration_status import NOW_MS, Shelf, everywhere, record

from collectors.digests import layer_map_digest
from collectors.shares import even_shares
from eplb.agent.wire import decode_offer, encode_offer
from eplb.errors import PlanStale
from eplb.migration import Actuator, State, observe
from eplb.migration.plan_wire import decode_plan, encode_plan
from eplb.migration.put_back import put_back_plan

BEFORE = start_map()
AFTER = np.stack([rotated(row) for row in BEFORE])


def served(ranks_rows, **fields):
    live = everywhere(AFTER, state="switched", offer="p1/0@1", **fields)
    for rank, rows in ranks_rows.items():
        live[rank] = record(rank, rows, state="stuck", offer="p1/0@1")
    return live


def back(live, before=BEFORE, shares=None):
    return put_back_plan(FACTS, before, shares, live[0], live, created_ms=NOW_MS)


def kept(*layers):
    rows = AFTER.copy()
    rows[list(layers)] = BEFORE[list(layers)]
    return rows


def test_all_layers_are_in_it_with_all_that_ranks_serve():
    """Also where the rank that tells the map is the one that kept the rows before."""
    for rank in (0, 2):
        plan = back(served({rank: kept(1)}))
        assert [change.layer for change in plan.changes] == [0, 1, 2]
        digests = {layer_map_digest(FACTS.model_layers[1], rows[1]) for rows in (BEFORE, AFTER)}
        assert set(plan.changes[1].bases) == digests
        assert plan.puts_back


def test_nothing_is_put_back_where_all_serve_the_map_before_or_nobody_tells_a_map():
    assert back(served(dict.fromkeys(range(4), BEFORE))) is None
    silent = served({1: kept(1)})
    silent[0] = replace(silent[0], map_rows=None, facts=None)
    assert back(silent) is None


def test_it_is_offered_as_one_wave_whatever_the_limits_and_a_rank_that_serves_anything_else_stands_against_it():
    live, shelf = served({1: kept(1)}), Shelf()
    actuator = Actuator(FACTS, shelf.write, staging_slots=3)
    plan = back(live)
    desired = actuator.begin(plan, shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert (len(desired.offer.changes), desired.offer.waves, desired.offer.puts_back) == (3, 1, True)
    assert observe(FACTS, shelf.desired(), live, NOW_MS).state is State.MOVING
    other = {**live, 3: record(3, np.roll(AFTER, 1, axis=1))}
    with pytest.raises(PlanStale, match=r"ranks \[3\] serve another map"):
        Actuator(FACTS, Shelf().write).begin(plan, Shelf().desired(), other, term=1, now_ms=NOW_MS)


def test_a_rank_that_is_stuck_by_the_way_back_too_is_unverified_and_one_that_was_before_is_waited_for():
    live, shelf = served({1: kept(1)}), Shelf()
    desired = Actuator(FACTS, shelf.write).begin(back(live), shelf.desired(), live, term=1, now_ms=NOW_MS)
    key = desired.offer.key
    done = everywhere(BEFORE, state="switched", offer=key)
    assert observe(FACTS, desired, {**done, 1: live[1]}, NOW_MS).state is State.IN_DOUBT
    again = {**done, 1: record(1, kept(1), state="stuck", offer=key)}
    assert observe(FACTS, desired, again, NOW_MS).state is State.UNVERIFIED
    assert observe(FACTS, desired, done, NOW_MS).state is State.ALL_LIVE


def test_a_rank_that_the_way_back_left_stuck_is_unverified_under_the_next_leader_too():
    """It has offered the same wave again, under its own term, before that rank could say what became of it."""
    live, shelf = served({1: kept(1)}), Shelf()
    desired = Actuator(FACTS, shelf.write).begin(back(live), shelf.desired(), live, term=1, now_ms=NOW_MS)
    first, again = desired.offer.key, replace(desired.offer, term=2)
    told = {
        **everywhere(BEFORE, state="switched", offer=first),
        1: record(1, kept(1), state="stuck", offer=first),
    }
    status = observe(FACTS, replace(desired, offer=again, term=2), told, NOW_MS)
    assert (status.offer, status.state) == (again.key, State.UNVERIFIED)
    other = {**told, 1: replace(told[1], offer="p1/0@1")}
    assert observe(FACTS, replace(desired, offer=again, term=2), other, NOW_MS).state is State.IN_DOUBT


def test_where_the_map_before_is_served_by_some_it_is_live_only_when_they_say_that_they_have_switched():
    """Rank 0 never left it: its rows alone do not tell whether the others may be told. Layers that all serve are named too."""
    rows = BEFORE.copy()
    rows[1] = AFTER[1]
    live = everywhere(BEFORE, state="stuck", offer="p1/0@1")
    live[2] = record(2, rows, state="switched", offer="p1/0@1")
    shelf = Shelf()
    desired = Actuator(FACTS, shelf.write).begin(back(live), shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert [change.layer for change in desired.offer.changes] == [0, 1, 2]
    assert observe(FACTS, desired, live, NOW_MS).state is State.MOVING
    done = everywhere(BEFORE, state="switched", offer=desired.offer.key)
    assert observe(FACTS, desired, done, NOW_MS).state is State.ALL_LIVE


def test_shares_come_back_with_the_rows():
    shares = np.stack([even_shares(row) for row in BEFORE])
    shares[1, [0, 8]] = (0.75, 0.25)
    plan = back(served({1: kept(1)}), shares=shares)
    assert plan.changes[1].shares[0] == 0.75
    assert plan.changes[1].target_digest == layer_map_digest(FACTS.model_layers[1], BEFORE[1], shares[1])


def test_it_survives_the_store():
    live, shelf = served({1: kept(1)}), Shelf()
    plan = back(live)
    desired = Actuator(FACTS, shelf.write).begin(plan, shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert decode_plan(encode_plan(plan)) == plan == shelf.desired().plan
    assert decode_offer(encode_offer(desired.offer)) == desired.offer


def test_a_rank_that_says_nothing_of_a_wave_that_left_another_stuck_is_waited_for():
    """It has voted for it, for a vote is unanimous: its engine may be at it still."""
    live, shelf = everywhere(BEFORE), Shelf()
    forth = put_back_plan(FACTS, AFTER, None, live[0], live, created_ms=1)
    desired = Actuator(FACTS, shelf.write).begin(forth, shelf.desired(), live, term=1, now_ms=NOW_MS)
    live = everywhere(AFTER, state="switched", offer=desired.offer.key)
    live[1] = record(1, kept(1), state="stuck", offer=desired.offer.key)
    assert observe(FACTS, desired, live, NOW_MS).state is State.UNVERIFIED
    for late in (record(3, BEFORE), record(3, AFTER, state="committing", offer=desired.offer.key)):
        assert observe(FACTS, desired, {**live, 3: late}, NOW_MS).state is State.IN_DOUBT
