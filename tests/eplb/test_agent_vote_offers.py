"""Which offers come to the vote at all: of what term, read when, and how long they are wanted."""

import pytest
from agent_crew import (
    FACTS,
    GATE_STEPS,
    Crew,
)
from agent_faults import (
    BASE,
    GOOD,
    assert_nobody_switched,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.digests import layer_map_digest


@pytest.mark.parametrize("place", [0, 40, 200, -3])
def test_an_offer_damaged_in_the_store_is_refused_by_all_and_reported(place):
    from eplb.agent.wire import encode_offer

    crew = Crew()
    raw = bytearray(encode_offer(GOOD))
    raw[place] ^= 0x10
    crew.link.offer(bytes(raw), 1)
    crew.until(lambda agent: agent.state == "refused")
    assert_nobody_switched(crew)
    assert {(rank, code) for rank, code, _ in crew.agents[0].refusals} == {
        (r, "damaged_offer") for r in range(4)
    }


@settings(max_examples=15, deadline=None)
@given(st.one_of(st.integers(max_value=-1), st.integers(min_value=2**53 + 1), st.just(2**70)))
def test_a_term_that_no_header_or_frame_can_carry_is_counted_and_the_group_goes_on(term):
    crew = Crew()
    crew.link.offer(None, term)
    crew.gates(2)
    assert crew.states() == ["serving"] * FACTS.ranks
    assert [agent.term_seen for agent in crew.agents] == [0] * FACTS.ranks
    assert [agent.stats["errors"] for agent in crew.agents] == [2, 0, 0, 0]
    assert [agent.stats["step_differs"] for agent in crew.agents] == [0] * FACTS.ranks
    crew.offer(GOOD)
    crew.settle()
    assert crew.states() == ["switched"] * FACTS.ranks


def test_a_step_that_no_header_can_carry_stops_nobody():
    crew = Crew(step_offset={0: 2**70})
    crew.offer(GOOD)
    crew.gates(3)
    assert_nobody_switched(crew)
    assert crew.states() == ["serving"] * FACTS.ranks
    crew.step_offset = {}
    crew.settle()
    assert crew.states() == ["switched"] * FACTS.ranks


def test_an_offer_that_expired_before_any_gate_is_never_put_to_the_vote():
    crew = Crew()
    crew.offer(GOOD)
    crew.clocks[0].ahead_s = 31.0
    crew.gates(2)
    assert_nobody_switched(crew)
    assert crew.agents[0].refusals[0][:2] == (0, "expired")
    assert crew.states()[1:] == ["serving"] * 3


def test_prepared_ranks_let_go_when_the_store_no_longer_asks():
    crew = Crew()
    crew.stage(GOOD)
    crew.link.away = False
    crew.offer(None, term=1)
    crew.gates(2)
    assert_nobody_switched(crew)
    assert {agent.refusals[0][1] for agent in crew.agents} == {"withdrawn"}


def test_an_offer_of_a_deposed_leader_is_refused_even_when_it_is_prepared():
    crew = Crew()
    crew.stage(GOOD)
    crew.link.away = False
    crew.offer(GOOD, term=2)
    crew.settle()
    assert_nobody_switched(crew)
    assert {code for _, code, _ in crew.agents[0].refusals} == {"old_term"}
    assert {agent.term_seen for agent in crew.agents} == {2}


def test_a_store_that_is_away_never_changes_a_map():
    crew = Crew()
    crew.offer(GOOD)
    crew.link.away = True
    crew.gates(5)
    assert_nobody_switched(crew)
    assert crew.states() == ["serving"] * FACTS.ranks


def test_an_applied_offer_that_stays_in_the_store_is_not_applied_again():
    crew = Crew()
    crew.offer(GOOD)
    crew.settle()
    crew.gates(4)
    assert {len(switched) for switched in crew.switched} == {1}
    assert crew.states() == ["switched"] * FACTS.ranks


def test_the_run_is_named_by_rank_0():
    assert {agent.run_id for agent in Crew().agents} == {77}


def test_a_rank_counts_steps_that_rank_0_numbers_otherwise():
    crew = Crew(step_offset={2: GATE_STEPS})
    crew.gates(3)
    assert [agent.stats["step_differs"] for agent in crew.agents] == [0, 0, 3, 0]
    assert layer_map_digest(3, BASE[0]) == int(crew.agents[2].layer_digests[0])
