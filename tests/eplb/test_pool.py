"""Rules of one served pool: a real store, the real planner process, and ranks that are threads with real agents."""

import json
from pathlib import Path

import pytest
from agent_crew import start_map
from pool_world import FACTS, Ranks, config, make_pool, serve

from eplb.controller import Name
from eplb.store.client import Store
from eplb.store.control import set_paused


@pytest.mark.slow
@pytest.mark.redis
def test_skewed_load_is_measured_planned_moved_and_settled(store_url, tmp_path):
    """The whole loop: exact ratios, a plan judged on unseen slices, a verified switch on all ranks, the gain measured."""
    with Ranks(store_url) as ranks:
        pool = make_pool(store_url, tmp_path)
        try:
            snapshots = serve(pool, lambda s: s.decision and s.decision["code"] == "settled")
        finally:
            pool.close()
        maps = {agent.live.tobytes() for agent in ranks.agents}
        states = {agent.state for agent in ranks.agents}
    assert len(maps) == 1
    assert maps != {start_map(FACTS).tobytes()}
    assert states == {"switched"}
    last = snapshots[-1]
    assert (last.map_version, last.leader, last.coverage) == (1, True, 1.0)
    assert last.readings[0].quality == "exact"
    assert last.counters["misaligned"] == 0
    assert last.decision["realised_gain"] > 0.1
    seen = [s.decision["code"] for s in snapshots if s.decision]
    wanted = ["elected", "planning", "offered", "applied", "settled"]
    assert [code for code in dict.fromkeys(seen) if code in wanted] == wanted


@pytest.mark.slow
def test_a_new_daemon_goes_on_where_the_old_one_was_stopped(embedded_store_url, tmp_path):
    """PLN-12: the leader vanishes after its offer; the next one adopts the move from desired and live alone."""
    url = embedded_store_url
    with Store(url, FACTS.pool) as store:
        store.redis.flushall()
    with Ranks(url) as ranks:
        first = make_pool(url, tmp_path)
        serve(first, lambda s: s.decision and s.decision["code"] == "offered")
        first.close()
        second = make_pool(url, tmp_path)
        try:
            snapshots = serve(
                second, lambda s: s.leader and s.map_version == 1 and s.migration_state == "idle"
            )
        finally:
            second.close()
        assert len({agent.live.tobytes() for agent in ranks.agents}) == 1
    assert snapshots[-1].term == 2
    assert "adopted" in {s.decision["code"] for s in snapshots if s.decision}


@pytest.mark.slow
def test_pause_observe_and_advise_move_nothing(embedded_store_url, tmp_path):
    """Paused and observing pools keep measuring; advise writes a map file that `eplb eval` can read."""
    url = embedded_store_url
    with Store(url, FACTS.pool) as store:
        store.redis.flushall()
        set_paused(store, paused=True)
    with Ranks(url) as ranks:
        for mode, code in (("auto", "paused"), ("observe", "observe_only"), ("advise", "advised")):
            pool = make_pool(url, tmp_path, config(mode))
            try:
                snapshot = serve(pool, lambda s, code=code: s.decision and s.decision["code"] == code)[-1]
            finally:
                pool.close()
            assert snapshot.readings[0].excess > 0.2
            with Store(url, FACTS.pool) as store:
                set_paused(store, paused=False)
        assert {agent.live.tobytes() for agent in ranks.agents} == {start_map(FACTS).tobytes()}
    plans = list(Path(tmp_path).glob("*.json"))
    assert plans
    assert json.loads(plans[0].read_text())["physical_to_logical"]


def test_store_away_keeps_the_last_snapshot_and_leads_nothing(tmp_path):
    """A store that does not answer is said, and nothing is claimed."""
    pool = make_pool("redis://127.0.0.1:1/0", tmp_path)
    try:
        snapshot = pool.cycle()
    finally:
        pool.close()
    assert (snapshot.store_up, snapshot.leader, snapshot.coverage) == (False, False, 0.0)


@pytest.mark.redis
def test_without_ranks_the_reason_is_missing_data(store_url, tmp_path):
    """An empty store gives `not_enough_data`, in the log too."""
    pool = make_pool(store_url, tmp_path)
    try:
        snapshot = serve(pool, lambda s: s.leader and s.decision["code"] == "not_enough_data")[-1]
        log = [json.loads(raw) for raw in pool.store.read_log(10)]
    finally:
        pool.close()
    assert snapshot.ranks_seen == 0
    assert log[-1]["code"] == "not_enough_data"


def test_controller_states_have_words_for_people():
    """State names are what snapshots and logs show."""
    assert [str(name) for name in Name] == ["standby", "observing", "planning", "moving", "settling"]
