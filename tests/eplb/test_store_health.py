"""Rules of a store's memory: one that may evict is named and moves no map in mode auto; one that is nearly full is named."""

import pytest
import redis
import structlog
from pool_world import FACTS, config, make_pool, serve
from redis.exceptions import NoPermissionError

from eplb.agent.wire import LiveRecord, encode_live
from eplb.decisions import Code
from eplb.migration import Desired
from eplb.ranks import LiveRanks
from eplb.store.client import Store
from eplb.store.health import LOOK_S, HealthWatch, StoreHealth
from eplb.trust import Trust

NO_RANKS = LiveRanks.read({}, FACTS)


@pytest.mark.parametrize(
    ("health", "may_evict", "words"),
    [
        (StoreHealth("noeviction", 10, 100), False, ""),
        (StoreHealth("allkeys-lru", 10, 0), False, ""),
        (StoreHealth("allkeys-lru", 10, 100), True, "set maxmemory-policy noeviction"),
        (StoreHealth("volatile-ttl", 10, 100), True, "the lease"),
        (StoreHealth("noeviction", 91, 100), False, "91% of its maxmemory"),
        (StoreHealth(), None, ""),
    ],
)
def test_what_a_policy_means(health, may_evict, words):
    """A policy without a limit never evicts; unknown is neither good nor bad."""
    assert health.may_evict is may_evict
    assert words in health.sentence
    assert bool(words) == bool(health.sentence)


@pytest.mark.parametrize(
    ("mode", "code"), [("auto", Code.STORE_MAY_EVICT), ("advise", None), ("observe", None)]
)
def test_only_mode_auto_is_refused(mode, code):
    """Measuring and advising go on; a store that may not be asked is trusted, and shown as unknown."""
    verdict = Trust("p", mode).judge(StoreHealth("allkeys-lru", 1, 2), NO_RANKS)
    assert (verdict and verdict.code) == code
    assert Trust("p", mode).judge(StoreHealth(), NO_RANKS) is None


def test_a_server_is_asked_once_a_minute_and_a_refusal_is_unknown():
    """A user without the right fills the server's ACL log otherwise."""

    class Server:
        asked = 0

        def info(self, section):
            self.asked += 1
            raise NoPermissionError(section)

    server, now_s = Server(), [0.0]
    watch = HealthWatch(server, lambda: now_s[0])
    assert [watch.read(), watch.read()] == [StoreHealth()] * 2
    assert server.asked == 1
    now_s[0] = LOOK_S
    watch.read()
    assert server.asked == 2


@pytest.mark.redis
def test_a_real_server_says_what_it_does(store_url):
    """Both servers; the embedded one is set right."""
    with Store(store_url, "p") as store:
        health = store.health()
    assert health.may_evict is False
    assert health.used_bytes > 0


@pytest.mark.slow
@pytest.mark.redis
def test_a_pool_in_mode_auto_moves_nothing_on_a_store_that_may_evict(store_url, tmp_path):
    """The decision names the setting; after it is mended and a new look, the pool goes on."""
    with redis.Redis.from_url(store_url) as server:
        before = {name: server.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy")}
        try:
            server.config_set("maxmemory", 500_000_000)
            server.config_set("maxmemory-policy", "allkeys-lru")
            pool = make_pool(store_url, tmp_path, config("auto"))
            try:
                refused = serve(pool, lambda s: s.decision and s.decision["code"] == "store_may_evict")[-1]
                assert "noeviction" in refused.decision["sentence"]
                assert refused.store_may_evict is True
                server.config_set("maxmemory-policy", "noeviction")
                pool.store._watch._looked_s = float("-inf")
                serve(pool, lambda s: s.decision and s.decision["code"] == "not_enough_data")
            finally:
                pool.close()
        finally:
            for name, value in before.items():
                server.config_set(name, value)
    assert FACTS.pool == refused.pool


def test_a_desired_map_that_cannot_be_read_is_said_once_and_when_it_is_over():
    """It counts as absent, so that without this nobody would be told."""
    with structlog.testing.capture_logs() as events:
        trust = Trust("p", "auto")
        for damaged in (("map", "offer"), ("map", "offer"), ()):
            assert trust.judge(StoreHealth(), NO_RANKS, Desired(damaged=damaged)) is None
    assert [event["event"] for event in events] == ["desired_not_read", "desired_not_read_well_again"]
    assert events[0]["reason"] == "map, offer cannot be read and counts as absent"


def test_a_refusal_of_an_offer_that_is_gone_is_no_news():
    """A rank's last word stands until it has another, so a daemon that starts would complain of what nobody asks for any more."""
    refused = LiveRecord(
        FACTS.pool, 0, 0, 1, 0, 0, 1, "refused", "", (1,) * FACTS.layers, refusals=((0, "damaged_offer", "not signed"),)
    )  # fmt: skip
    ranks = LiveRanks.read({0: encode_live(refused)}, FACTS)
    with structlog.testing.capture_logs() as events:
        trust = Trust("p", "auto")
        trust.judge(StoreHealth(), ranks, Desired())
        assert events == []
        trust.judge(StoreHealth(), ranks, Desired(damaged=("offer",)))
    assert [event["event"] for event in events] == ["offer_not_read", "desired_not_read"]
