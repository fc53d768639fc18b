"""A group of some of the pool's ranks: its members are agreed on, the other ranks' slots stay empty, and refusals name pool ranks."""

import threading

import pytest
from agent_crew import FACTS, CrewMemory, change, offer, start_map

from eplb.agent import Agent, LocalLink, ThreadGroup, ThreadTransport
from eplb.agent.membership import stray_slot
from eplb.agent.wire import encode_offer
from eplb.errors import MigrationError

LIVING = (0, 2, 3)
BASE = start_map()
BASE[:, 3:6] = -1
BASE[:, 0:3] = [0, 1, 2]
BASE[:, 6:9] = [3, 4, 5]
BASE[:, 9:12] = [6, 7, -1]


def start_everywhere(members_by_place, rows=BASE, transport_members=LIVING, link=None):
    """The agent of each place of the group, or the error that its start raised."""
    size = len(transport_members)
    outcomes = [None] * size
    transports = ThreadTransport.create(size, members=transport_members)

    def start(group):
        rank = transport_members[group.rank]
        try:
            outcomes[group.rank] = Agent(
                FACTS, group, transports[group.rank], CrewMemory(FACTS, rank, rows), rows, run_id=5, incarnation=1,
                members=members_by_place(group.rank), link=link,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - what kind it is, is what the tests ask
            outcomes[group.rank] = error

    threads = [threading.Thread(target=start, args=(group,)) for group in ThreadGroup.create(size, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def gate_everywhere(agents, step):
    threads = [threading.Thread(target=agent.before_forward, args=(step,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_each_member_knows_its_number_in_the_pool():
    agents = start_everywhere(lambda place: LIVING)
    assert [agent.rank for agent in agents] == [0, 2, 3]
    assert {agent.members for agent in agents} == {LIVING}


@pytest.mark.parametrize(
    ("members_by_place", "words"),
    [
        (lambda place: LIVING if place else (0, 1, 3), "place 1 of the group: its members are [0, 2, 3]"),
        (lambda place: (0, 1, 3), "place 1 of the group: its transport speaks for pool rank 2, not 1"),
        (lambda place: None, "place 0 of the group: the group has 3 ranks, 4 of pool 'p'"),
        (lambda place: (0, 2) if place == 1 else LIVING, "place 1 of the group: the group has 3 ranks, 2 of"),
        (lambda place: (2, 0, 3), "must be different ranks of 0..3, in rising order"),
        (lambda place: (0, 2, 4), "must be different ranks of 0..3, in rising order"),
        (lambda place: "all" if place == 2 else LIVING, "place 2 of the group: its members are not ranks"),
    ],
)
def test_members_that_do_not_fit_are_a_named_error_on_all_ranks_alike(members_by_place, words):
    (sentence,) = {str(outcome) for outcome in start_everywhere(members_by_place)}
    assert words in sentence


def test_a_map_that_gives_experts_to_a_rank_that_is_no_member_stops_the_start_on_all():
    outcomes = start_everywhere(lambda place: LIVING, rows=start_map())
    assert {type(outcome) for outcome in outcomes} == {MigrationError}
    assert all("its rank 1 is no member of the group" in str(outcome) for outcome in outcomes)


def test_an_offer_that_gives_an_expert_to_a_rank_that_is_no_member_is_refused():
    target = BASE[0].copy()
    target[4] = 7
    refusal = stray_slot(FACTS, LIVING, (change(FACTS, 0, BASE[0], target),))
    assert refusal.code == "not_member"
    assert "slot 4" in refusal.sentence
    assert "rank 1's" in refusal.sentence
    assert stray_slot(FACTS, (0, 1, 2, 3), (change(FACTS, 0, BASE[0], target),)) is None


def test_the_records_carry_the_members_and_the_first_of_them_carries_the_map():
    living = (1, 2, 3)
    rows = BASE.copy()
    rows[:, 0:3], rows[:, 3:6] = -1, [0, 1, 2]
    link = LocalLink()
    agents = start_everywhere(lambda place: living, rows=rows, transport_members=living, link=link)
    assert [agent.rank for agent in agents] == [1, 2, 3]
    assert {record.members for record in link.records.values()} == {living}
    assert [rank for rank, record in link.records.items() if record.map_rows is not None] == [1]


def test_a_refusal_names_the_rank_of_the_pool():
    link = LocalLink()
    agents = start_everywhere(lambda place: LIVING, link=link)
    target = BASE.copy()
    target[:, [0, 6]] = target[:, [6, 0]]
    agents[1]._standing.term_seen = 9
    link.offer(encode_offer(offer(FACTS, BASE, target, run_id=5)), 1)
    gate_everywhere(agents, 0)
    assert [(rank, code) for rank, code, _ in agents[0].refusals] == [(2, "old_term")]
