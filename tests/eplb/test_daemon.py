"""Rules of the loop over all pools: a slow store makes cycles long, and is no reason to restart the process."""

import redis
from pool_world import FACTS, config, make_pool, serve
from redis.client import Pipeline

from collectors.keys import FRAME_FIELD, load_key
from eplb.daemon import STORE_CALLS, live_within_s
from eplb.store.client import Store


def test_a_cycle_waits_for_no_more_answers_than_livez_allows_for(embedded_store_url, tmp_path, monkeypatch):
    """Counted on a leader with frames to read; a process that an orchestrator restarts in a slow hour never gets to lead."""
    asked = []

    def counted(owner, name):
        real = getattr(owner, name)

        def call(*given, **options):
            asked.append(given[1:2])
            return real(*given, **options)

        monkeypatch.setattr(owner, name, call)

    with Store(embedded_store_url, FACTS.pool) as store:
        store.redis.flushall()
        pool = make_pool(embedded_store_url, tmp_path)
        try:
            serve(pool, lambda snapshot: snapshot.leader)
            for node in range(FACTS.nodes):
                store.redis.xadd(load_key(FACTS.pool, node), {FRAME_FIELD: b"x"})
            pool.cycle()
            store.redis.xadd(load_key(FACTS.pool, 0), {FRAME_FIELD: b"x"})
            counted(redis.Redis, "execute_command")
            counted(Pipeline, "execute")
            snapshot = pool.cycle()
            answers = len(asked)
        finally:
            pool.close()
    assert snapshot.leader
    assert snapshot.counters["refused"] == 3
    assert 5 < answers <= STORE_CALLS, asked


def test_livez_grows_with_what_one_answer_may_take():
    """Not with the number of pools, each of which says when it has ended its cycle."""
    settings = config()
    patient = settings.model_copy(update={"store": settings.store.model_copy(update={"timeout_s": 10.0})})
    assert live_within_s(settings) == 3 * 0.2 + 12 * 2.0
    assert live_within_s(patient) == 3 * 0.2 + 12 * 10.0
