"""A served pool whose engine moves experts by itself: a real store, the real planner, and what is really routed."""

import pytest
from agent_crew import start_map
from pool_world import FACTS, MovingRanks, config, make_pool, serve

from eplb.store.client import Store
from eplb.store.control import is_paused

SETTINGS = config(profile="delegated")


@pytest.fixture
def url(embedded_store_url):
    with Store(embedded_store_url, FACTS.pool) as store:
        store.redis.flushall()
    return embedded_store_url


def codes(snapshots):
    return list(dict.fromkeys(s.decision["code"] for s in snapshots if s.decision))


@pytest.mark.slow
def test_a_plan_is_moved_by_the_engine_and_applied(url, tmp_path):
    """From skewed load to a map that every router reads and every rank reports."""
    with MovingRanks(url) as ranks:
        pool = make_pool(url, tmp_path, SETTINGS)
        try:
            snapshots = serve(pool, lambda s: s.decision and s.decision["code"] == "applied")
        finally:
            pool.close()
        routed = {engine.rows.tobytes() for engine in ranks.engines}
    assert routed == {agent.live.tobytes() for agent in ranks.agents}
    assert len(routed) == 1
    assert routed != {start_map(FACTS).tobytes()}
    assert [agent.state for agent in ranks.agents] == ["switched"] * 4
    assert ranks.version() == 1
    assert "apply_unverified" not in codes(snapshots)


@pytest.mark.slow
def test_a_layer_that_reads_back_wrong_is_said_put_back_and_pauses_the_pool(url, tmp_path):
    """MIG-12: one engine goes on with the old rows and says that it is done."""
    with MovingRanks(url) as ranks:
        ranks.engines[1].faults.keeps_row = set(range(FACTS.layers))
        pool = make_pool(url, tmp_path, SETTINGS)
        try:
            snapshots = serve(pool, lambda s: s.decision and s.decision["code"] == "rolled_back")
            last = serve(pool, lambda s: s.decision and s.decision["code"] == "paused")[-1]
        finally:
            pool.close()
        routed = {engine.rows.tobytes() for engine in ranks.engines}
    seen = codes(snapshots)
    wanted = ["offered", "apply_unverified", "rolled_back"]
    assert [code for code in seen if code in wanted] == wanted
    assert "applied" not in seen
    assert routed == {agent.live.tobytes() for agent in ranks.agents} == {start_map(FACTS).tobytes()}
    assert [agent.state for agent in ranks.agents] == ["switched"] * 4
    assert last.migration_state == "idle"
    with Store(url, FACTS.pool) as store:
        assert is_paused(store)
