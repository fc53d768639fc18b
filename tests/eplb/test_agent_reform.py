"""A group that forms again: survivors say what their slots hold, what nobody holds is loaded, and all serve one map or nobody does."""

import numpy as np
import pytest
from agent_crew import FACTS, NAMES, expert_bytes, offer, start_map
from life_crew import Checkpoint, LifeCrew

from collectors.digests import layer_map_digests
from collectors.facts import PoolFacts
from eplb.agent.reform import leave
from eplb.errors import ExpertLost, GroupTooSmall, MigrationError

LIVING = (0, 2, 3)


def swap(rows, first, second):
    """The map with two slots exchanged in every layer."""
    after = rows.copy()
    after[:, [first, second]] = rows[:, [second, first]]
    return after


def sentence_of_all(errors, members=LIVING):
    assert set(errors) == set(members)
    (sentence,) = {str(error) for error in errors.values()}
    return sentence


def test_three_of_four_serve_every_expert_go_on_moving_and_take_the_fourth_back():
    crew = LifeCrew(loader=Checkpoint())
    crew.kill(1)
    assert crew.form(LIVING) == {}
    rows = crew.rows()
    assert (rows[:, 3:6] == -1).all()
    assert all(set(row.tolist()) >= set(range(FACTS.experts)) for row in rows)
    assert sorted(set(crew.loader.loads)) == [(layer, expert) for layer in range(3) for expert in (4, 5)]
    assert crew.weights_are_right()
    target = swap(rows, 0, 6)
    crew.offer(offer(FACTS, rows, target, map_version=4))
    crew.settle()
    assert {agent.state for agent in crew.agents.values()} == {"switched"}
    assert crew.weights_are_right()
    assert crew.form((0, 1, 2, 3)) == {}
    assert np.array_equal(crew.rows(), target)
    assert {agent.map_version for agent in crew.agents.values()} == {4}
    home = target.copy()
    home[:, 3:6] = [[0, 1, 7]] * FACTS.layers
    crew.offer(offer(FACTS, target, home, plan_id="p2", map_version=5))
    crew.settle()
    assert np.array_equal(crew.rows(), home), "what a rank that came back holds arrives by an ordinary plan"
    assert crew.weights_are_right()


def test_every_life_has_a_run_of_its_own_above_those_before():
    crew = LifeCrew(loader=Checkpoint())
    crew.kill(3)
    crew.form((0, 1, 2))
    first = {agent.run_id for agent in crew.agents.values()}
    crew.form((0, 1, 2, 3))
    assert (first, {agent.run_id for agent in crew.agents.values()}) == ({78}, {79})


def test_the_lowest_living_rank_reads_the_store_and_reports_the_map_and_what_was_reloaded():
    crew = LifeCrew(rows=np.roll(start_map(), -3, axis=1), loader=Checkpoint())
    crew.kill(0)
    crew.form((1, 2, 3))
    records = {rank: record for rank, record in crew.link.records.items() if record.run_id == 78}
    assert {rank: record.map_rows is not None for rank, record in records.items()} == {
        1: True,
        2: False,
        3: False,
    }
    assert records[1].members == (1, 2, 3)
    assert records[1].reloaded_experts == len(crew.reformed.reloaded) > 0
    assert set(records[1].reloaded) == {(layer, expert) for layer, _, expert in crew.reformed.reloaded}


def test_survivors_that_a_crash_left_with_different_maps_serve_what_their_slots_hold():
    """Rank 2 has switched and its peers have not: expert 6 stands nowhere, expert 1 twice, and nobody's map is right."""
    crew = LifeCrew(loader=Checkpoint())
    pasts = {rank: leave(agent) for rank, agent in crew.agents.items()}
    crew.agents, crew.pasts = {}, pasts
    switched = swap(start_map(), 1, 6)
    for layer in range(FACTS.layers):
        for name in NAMES:
            crew.memories[2].tensors(layer, 6)[name][:] = expert_bytes(layer, 1, name)
    pasts[2].rows.setflags(write=True)
    pasts[2].rows[:] = switched
    assert crew.form((0, 1, 2, 3)) == {}
    assert {expert for _, _, expert in crew.reformed.reloaded} == {6}
    assert all(set(row.tolist()) >= set(range(FACTS.experts)) for row in crew.rows())
    assert crew.weights_are_right()


def test_a_slot_whose_weights_are_not_the_tables_counts_as_empty():
    crew = LifeCrew(loader=Checkpoint())
    crew.memories[1].tensors(0, 4)["w2"][7] ^= 1
    assert crew.form((0, 1, 2, 3)) == {}
    assert [(layer, expert) for layer, _, expert in crew.reformed.reloaded] == [(0, 4)]
    assert crew.weights_are_right()


@pytest.mark.parametrize("loader", [None, Checkpoint(missing=[(1, 5)])])
def test_mig_01_without_a_second_source_nobody_serves_and_all_name_the_expert(loader):
    crew = LifeCrew(loader=loader)
    crew.kill(1)
    errors = crew.form(LIVING)
    assert {type(error) for error in errors.values()} == {ExpertLost}
    assert "layer 1 expert 5" in sentence_of_all(errors)
    assert crew.agents == {}
    records = {crew.link.records[rank] for rank in LIVING}
    assert {(record.state, record.members, record.map_rows) for record in records} == {
        ("stuck", LIVING, None)
    }
    assert all(code == "expert_lost" for record in records for _, code, _ in record.refusals)
    crew.loader = Checkpoint()
    assert crew.form(LIVING) == {}, "with the loader mended the same survivors go on"
    assert crew.weights_are_right()


def test_an_expert_that_the_checkpoint_has_otherwise_is_not_served():
    crew = LifeCrew(
        loader=Checkpoint(saved=lambda layer, expert, name: expert_bytes(layer, expert, name) ^ 1)
    )
    crew.kill(1)
    assert "loaded from a checkpoint" in sentence_of_all(crew.form(LIVING))


def test_mig_01_a_rank_that_dies_with_the_only_copy_before_its_send_leaves_whole_layers():
    """Rank 1 dies in mid-transfer of a wave: the survivors keep their old rows, and form again with what is reloaded."""
    crew = LifeCrew(loader=Checkpoint(), timeout_s=0.5)
    before = crew.rows()
    crew.transports[1].exchange = lambda sends, receives: crew.transports[1].abort()
    crew.offer(offer(FACTS, before, swap(before, 4, 7)))
    crew.settle()
    assert {agent.state for agent in crew.agents.values()} == {"refused"}
    assert np.array_equal(crew.rows(), before)
    crew.kill(1)
    assert crew.form(LIVING) == {}
    assert crew.weights_are_right()
    assert (crew.rows()[:, 3:6] == -1).all()


def test_a_wire_that_failed_is_made_anew_at_the_next_offer():
    crew = LifeCrew(timeout_s=0.3)
    before = crew.rows()
    target = swap(before, 4, 7)
    whole = crew.transports[1].exchange
    crew.transports[1].exchange = lambda sends, receives: crew.transports[1].abort()
    crew.offer(offer(FACTS, before, target))
    crew.settle()
    assert any(transport.broken for transport in crew.transports.values())
    crew.transports[1].exchange = whole
    crew.until(lambda agent: agent.staging_bytes == 0, gates=2000)
    crew.offer(offer(FACTS, before, target, plan_id="again"))
    crew.until(lambda agent: agent.state == "switched")
    assert np.array_equal(crew.rows(), target)
    assert crew.weights_are_right()


def test_ranks_of_which_none_was_in_a_group_before_are_told_so():
    crew = LifeCrew(loader=Checkpoint())
    crew.kill(1)
    crew.pasts = dict.fromkeys(crew.pasts)
    assert "load the model and start agents" in sentence_of_all(crew.form(LIVING))


def test_members_that_cannot_hold_all_experts_do_not_serve():
    facts = PoolFacts("p", ranks=4, nodes=2, slots_per_rank=2, experts=8, top_k=2, model_layers=(3, 4, 7))
    crew = LifeCrew(facts, loader=Checkpoint())
    crew.kill(1)
    errors = crew.form(LIVING)
    assert {type(error) for error in errors.values()} == {GroupTooSmall}


def test_shares_are_kept_where_no_copy_was_lost_and_even_elsewhere():
    crew = LifeCrew(loader=Checkpoint())
    pasts = {rank: leave(agent) for rank, agent in crew.agents.items()}
    rows = start_map()
    shares = np.ones(rows.shape)
    shares[:, [0, 8]], shares[:, [1, 9]] = [0.3, 0.7], [0.2, 0.8]
    crew.agents = {}
    crew.pasts = {
        rank: type(past)(**{**{n: getattr(past, n) for n in past.__slots__}, "shares": shares})
        for rank, past in pasts.items()
    }
    crew.pasts[1] = None
    assert crew.form(LIVING) == {}
    after, kept = crew.rows()[0], crew.reformed.shares[0]
    for expert in range(FACTS.experts):
        assert kept[after == expert].sum() == pytest.approx(1.0)
    both = after[[0, 8]].tolist() == [0, 0]
    assert not both or kept[[0, 8]].tolist() == [0.3, 0.7]
    assert (kept[after < 0] == 0).all()


def test_the_digests_of_the_new_life_are_those_of_its_map():
    crew = LifeCrew(loader=Checkpoint())
    crew.kill(2)
    crew.form((0, 1, 3))
    wanted = layer_map_digests(FACTS.model_layers, crew.rows())
    assert all(np.array_equal(agent.layer_digests, wanted) for agent in crew.agents.values())


def test_another_model_on_one_rank_is_a_named_error_on_all():
    crew = LifeCrew(loader=Checkpoint())
    crew.kill(1)
    table = type(crew.pasts[3].table)(crew.pasts[3].table.digests ^ np.uint64(4), None)
    past = crew.pasts[3]
    crew.pasts[3] = type(past)(past.rows, past.shares, table, past.map_version, past.term_seen, past.run_id)
    errors = crew.form(LIVING)
    assert {type(error) for error in errors.values()} == {MigrationError}
    assert "rank 3 holds another model" in sentence_of_all(errors)
