"""Which life of the group serves is told by the records alone: those of ranks that are gone stay in the store for ever."""

from dataclasses import replace

from agent_crew import FACTS, start_map

from collectors.digests import layer_map_digests
from eplb.agent.wire import LiveRecord, encode_live
from eplb.migration.membership import first_of, lost_ranks, members_of, serving_run
from eplb.migration.status import in_doubt_of_weights
from eplb.ranks import LiveRanks

ROWS = start_map()
ALL, LIVING = (0, 1, 2, 3), (1, 2, 3)


def records_of(run_id, members, rows=ROWS, told=None):
    """Records of one life; ``told`` the members that have reported by now."""
    digests = tuple(int(x) for x in layer_map_digests(FACTS.model_layers, rows))
    record = LiveRecord("p", members[0], 1, run_id, 1, 0, 0, "serving", "", digests, members)
    whole = tuple(tuple(int(x) for x in row) for row in rows)
    return {
        rank: replace(record, rank=rank, map_rows=whole, facts=FACTS)
        if rank == members[0]
        else replace(record, rank=rank)
        for rank in members
        if told is None or rank in told
    }


def reduced():
    rows = ROWS.copy()
    rows[:, 0:3] = -1
    return rows


def read(records):
    return LiveRanks.read({rank: encode_live(record) for rank, record in records.items()}, FACTS)


def test_a_life_of_fewer_ranks_serves_though_the_lost_ones_record_is_still_there():
    records = {**records_of(77, ALL), **records_of(78, LIVING, reduced())}
    ranks = read(records)
    assert (ranks.run_id, ranks.members, ranks.lost) == (78, LIVING, (0,))
    assert ranks.first.rank == 1
    assert ranks.rows.tolist() == reduced().tolist()
    assert sorted(ranks.records) == [1, 2, 3]


def test_run_ids_need_not_grow():
    records = {**records_of(900, ALL), **records_of(5, LIVING, reduced())}
    assert serving_run(FACTS, records) == 5


def test_while_members_change_over_the_life_counts_whose_first_member_has_told_its_map():
    before, after = records_of(78, LIVING, reduced()), records_of(79, ALL)
    assert serving_run(FACTS, {**before, 0: after[0]}) == 78
    assert serving_run(FACTS, {**before, 0: after[0], 1: after[1]}) == 79
    assert serving_run(FACTS, {**before, **after}) == 79


def test_a_life_in_which_all_say_that_they_cannot_serve_is_the_present_one():
    lost = {
        rank: replace(
            record, state="stuck", map_rows=None, refusals=((1, "expert_lost", "layer 0 expert 4"),)
        )
        for rank, record in records_of(78, LIVING, reduced()).items()
    }
    ranks = read({**records_of(77, ALL), **lost})
    assert (ranks.run_id, ranks.stuck, ranks.rows) == (78, LIVING, None)
    assert ranks.experts_lost == "layer 0 expert 4"


def test_records_without_members_speak_of_the_whole_pool():
    records = {rank: replace(record, members=()) for rank, record in records_of(7, ALL).items()}
    assert members_of(FACTS, records) == ALL
    assert first_of(FACTS, records).rank == 0


def test_members_that_the_pool_does_not_have_are_not_waited_for():
    records = {
        rank: replace(record, members=(1, 2, 3, 99, -4)) for rank, record in records_of(7, LIVING).items()
    }
    assert members_of(FACTS, records) == LIVING
    assert lost_ranks(FACTS, LIVING) == (0,)


def test_without_any_record_all_of_the_pool_is_expected():
    assert serving_run(FACTS, {}) is None
    assert members_of(FACTS, {}) == ALL


def test_a_rank_that_lost_its_group_is_not_one_whose_weights_are_in_doubt():
    record = records_of(7, ALL)[2]
    lost = replace(record, state="stuck", refusals=((2, "group_failed", "a peer is gone"),))
    broken = replace(record, state="stuck", refusals=((2, "weights_differ", "slot 7"),))
    assert [in_doubt_of_weights(each) for each in (record, lost, broken)] == [False, False, True]
