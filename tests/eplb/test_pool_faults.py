"""Rules of a served pool when something fails in the middle: nothing hangs, nothing moves unasked, and the reason is said."""

import json
from dataclasses import replace

import numpy as np
import pytest
from agent_crew import start_map
from pool_world import FACTS, Ranks, config, make_pool, serve

from collectors import Kind, Phase, Recorder, encode_frame
from collectors.digests import layer_map_digests
from collectors.keys import FRAME_FIELD, live_key, load_key
from eplb.agent.wire import LiveRecord, encode_live
from eplb.errors import StoreUnavailable
from eplb.migration import Desired, make_plan, read_desired
from eplb.migration.actuator import Actuator
from eplb.store.client import Store
from eplb.store.control import is_paused

BASE = start_map(FACTS)
TARGET = np.roll(BASE, FACTS.slots_per_rank, axis=1).astype(np.int32)


@pytest.fixture
def store(embedded_store_url):
    with Store(embedded_store_url, FACTS.pool) as opened:
        opened.redis.flushall()
        yield opened


def break_write(pool, which, *, landed):
    """Let the first write of the desired map that ``which`` picks go unanswered, done or not."""
    real, broken = pool.store.write_desired, []

    def write(term, fields):
        if broken or not which(fields):
            real(term, fields)
            return
        broken.append(True)
        if landed:
            real(term, fields)
        raise StoreUnavailable("no answer")

    pool._actuator._write_desired = write
    return broken


def record(rank, rows=BASE, run_id=5, **fields):
    digests = tuple(int(x) for x in layer_map_digests(FACTS.model_layers, rows))
    first = (
        {"map_rows": tuple(tuple(int(x) for x in row) for row in rows), "facts": FACTS} if rank == 0 else {}
    )
    given = {"state": "serving", "offer": "", "map_version": 0, "term_seen": 0, **first, **fields}
    return LiveRecord("main", rank, rank, run_id, group_step=1, digests=digests, **given)


def report(store, *records):
    for entry in records:
        store.redis.hset(live_key("main"), str(entry.rank), encode_live(entry))


def until(pool, code):
    return serve(pool, lambda s: s.decision and s.decision["code"] == code)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
def test_an_offer_whose_answer_is_lost_ends_live_on_all_ranks(store, tmp_path, landed):
    """Whether or not the write arrived, the pool finds out from the store and goes on."""
    with Ranks(store.url) as ranks:
        pool = make_pool(store.url, tmp_path)
        broken = break_write(pool, lambda fields: fields["offer"] != b"", landed=landed)
        try:
            serve(pool, lambda s: s.map_version == 1 and s.migration_state == "idle")
        finally:
            pool.close()
        assert len({agent.live.tobytes() for agent in ranks.agents}) == 1
    assert broken


@pytest.mark.slow
def test_a_close_whose_answer_is_lost_is_still_an_applied_plan(store, tmp_path):
    """The plan is live on all ranks, so it is recorded as applied and its gain is measured."""
    with Ranks(store.url):
        pool = make_pool(store.url, tmp_path)
        broken = break_write(
            pool, lambda fields: fields["offer"] == b"" and fields["map"] != b"", landed=True
        )
        try:
            snapshots = serve(pool, lambda s: s.decision and s.decision["code"] == "settled")
        finally:
            pool.close()
        log = [json.loads(raw)["code"] for raw in store.read_log(1000)]
    assert broken
    assert log.index("applied") < log.index("settled")
    assert snapshots[-1].decision["realised_gain"] > 0.1


def test_a_stuck_rank_pauses_the_pool_even_when_the_next_write_fails(store, tmp_path):
    """The pause is written first, and without it a stuck rank still blocks every plan."""
    actuator = Actuator(FACTS, store.write_desired)
    live = {rank: record(rank) for rank in range(FACTS.ranks)}
    plan = make_plan(FACTS, BASE, TARGET, created_ms=1)
    offered = actuator.begin(plan, Desired(), live, term=0, now_ms=store.time_ms())
    key = offered.offer.key
    states = ["switched", "stuck", "switched", "switched"]
    report(store, *(record(rank, TARGET, state=state, offer=key) for rank, state in enumerate(states)))
    pool = make_pool(store.url, tmp_path)
    broken = break_write(pool, lambda fields: fields["offer"] == b"", landed=False)
    try:
        until(pool, "store_away")
        assert broken
        assert is_paused(store)
        until(pool, "ranks_stuck")
    finally:
        pool.close()


def test_ask_plan_without_a_live_map_goes_back_to_observing(store, tmp_path):
    """A plan that cannot be asked for is not waited for."""
    with Ranks(store.url):
        pool = make_pool(store.url, tmp_path)
        try:
            until(pool, "planning")
            pool._planning.close()
            assert until(pool, "planning_failed").decision["state"] == "observing"
        finally:
            pool.close()


def test_one_fault_in_the_store_is_said_and_left_behind(store, tmp_path):
    """A key of a wrong type fails the cycle by name; when it is gone, the pool goes on."""
    pool = make_pool(store.url, tmp_path)
    try:
        store.redis.set(live_key("main"), b"not a hash")
        failed = pool.cycle()
        assert (failed.decision["code"], failed.store_up) == ("cycle_failed", True)
        store.redis.delete(live_key("main"))
        until(pool, "not_enough_data")
    finally:
        pool.close()


@pytest.mark.parametrize(
    "raw",
    [b"{}", b"\xff", encode_live(record(1)).replace(b'"map_version":0', b'"map_version":1')],
    ids=["empty", "bytes", "changed"],
)
def test_a_damaged_live_record_counts_as_none(store, tmp_path, raw):
    """It neither ends the loop nor speaks for its rank."""
    report(store, record(0), record(2), record(3))
    store.redis.hset(live_key("main"), "1", raw)
    pool = make_pool(store.url, tmp_path)
    try:
        assert until(pool, "not_enough_data").map_version == 0
    finally:
        pool.close()


def test_records_of_a_former_and_larger_group_do_not_block(store, tmp_path):
    """Only the run that rank 0 names is listened to."""
    report(store, *(record(rank) for rank in range(4)), record(9, run_id=3), record(3, TARGET, run_id=3))
    pool = make_pool(store.url, tmp_path)
    try:
        until(pool, "not_enough_data")
    finally:
        pool.close()


def test_an_entry_from_the_future_hides_no_other_rank(store, tmp_path):
    """One leap of the store's clock, or one hand, dates a stream ahead for ever: what comes after it has that date and counts as now."""
    with Ranks(store.url):
        pool = make_pool(store.url, tmp_path, config("observe"))
        try:
            serve(pool, lambda s: s.coverage == 1.0)
            (_, fields), *_ = store.redis.xrevrange(load_key("main", 1), count=1)
            store.redis.xadd(load_key("main", 1), fields, id="9999999999999999-1")
            frames = pool.cycle().counters["frames"]
            last = serve(pool, lambda s: s.counters["frames"] > frames + 40)[-1]
        finally:
            pool.close()
    assert (last.coverage, last.stale_ranks) == (1.0, ())
    assert last.readings[0].slices > 0


def test_terms_that_ranks_have_seen_are_passed_even_after_the_store_was_emptied(store, tmp_path):
    """A leader below what ranks have seen leads anew above it, or every offer would be refused."""
    pool = make_pool(store.url, tmp_path)
    try:
        assert serve(pool, lambda s: s.leader)[-1].term == 1
        report(store, *(record(rank, term_seen=9) for rank in range(4)))
        assert serve(pool, lambda s: s.leader and s.term > 1)[-1].term == 10
    finally:
        pool.close()


def test_ranks_of_another_shape_are_named_and_not_called_missing(store, tmp_path):
    """Frames that are all refused and facts that differ are the reason, not `no rank has reported`."""
    other = replace(FACTS, ranks=8, slots_per_rank=2)
    recorder = Recorder(other, 0, Kind.RECEIVED_SLOTS)
    rows = np.tile(np.arange(16, dtype=np.int32) % 8, (3, 1))
    recorder.register(1, 0, layer_map_digests(other.model_layers, rows))
    recorder.record_step(1, Phase.DECODE, np.ones((3, 2), dtype=np.int64), 1)
    pool = make_pool(store.url, tmp_path)
    try:
        serve(pool, lambda s: s.leader)
        store.redis.xadd(load_key("main", 0), {FRAME_FIELD: encode_frame(recorder.snapshot(0))})
        refused = until(pool, "frames_refused").decision["sentence"]
        served = tuple(tuple(row) for row in rows.tolist())
        digests = tuple(layer_map_digests(other.model_layers, rows).tolist())
        report(store, replace(record(0), facts=other, map_rows=served, digests=digests))
        named = until(pool, "facts_mismatch").decision["sentence"]
    finally:
        pool.close()
    assert "8 ranks" in refused or "ranks" in refused
    assert named == "the ranks report ranks 8, the configuration has 4; correct one of them"


def test_advice_that_cannot_be_written_is_said_and_not_fatal(store, tmp_path):
    """A folder that cannot be made ends the plan, not the daemon."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with Ranks(store.url):
        pool = make_pool(store.url, blocked / "plans", config("advise"))
        try:
            sentence = until(pool, "not_done").decision["sentence"]
        finally:
            pool.close()
    assert "set advice_folder" in sentence


@pytest.mark.slow
def test_observe_mode_withdraws_a_plan_that_another_left_on_offer(store, tmp_path):
    """An operator who restarts in mode observe stops the move between waves."""
    with Ranks(store.url) as ranks:
        first = make_pool(store.url, tmp_path)
        until(first, "offered")
        first.close()
        second = make_pool(store.url, tmp_path, config("observe"))
        try:
            serve(
                second, lambda s: s.leader and s.decision["code"] in ("observe_only", "cooldown", "balanced")
            )
        finally:
            second.close()
        assert len({agent.live.tobytes() for agent in ranks.agents}) == 1
    assert read_desired(store.read_desired()).offer is None
