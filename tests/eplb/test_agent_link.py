"""The link to the store: the newest offer comes in, records go out, and a store that is away is only counted."""

import time
from dataclasses import replace

import numpy as np
import pytest
import redis
from agent_crew import FACTS, offer, rotated, start_map

from collectors.keys import desired_key, live_key
from eplb.agent.header import MAX_OFFER_BYTES
from eplb.agent.link import StoreLink
from eplb.agent.signing import RING, MapKeys
from eplb.agent.wire import LiveRecord, decode_live, encode_offer
from eplb.errors import ConfigError

GOOD = offer(FACTS, start_map(), np.stack([rotated(row) for row in start_map()]))
RECORD = LiveRecord("p", 2, 5, 77, 1, 0, 40, "serving", "", (1, 2, 3), (), facts=FACTS)


def wait_until(holds, seconds=10.0):
    limit = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > limit:
            pytest.fail("did not happen in time")
        time.sleep(0.02)


@pytest.fixture
def started():
    links = []

    def start(url, rank, **options):
        link = StoreLink(url, "p", rank, **options)
        link.start()
        links.append(link)
        return link

    yield start
    for link in links:
        link.stop()


def test_a_key_file_that_turns_bad_stops_neither_polls_nor_records(embedded_store_url, started, tmp_path):
    """It is written anew while keys are replaced, or was deleted by mistake: the keys stay as they were, and the reason is kept."""
    path = tmp_path / "map.key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    with RING.using(MapKeys()):
        RING.use(path)
        link = started(embedded_store_url, 0, poll_s=0.05, heartbeat_s=0.1)
        link.publish(RECORD, changed=True)
        path.write_text("half a ke")
        wait_until(lambda: link.stats["bad_keys"])
        polls, records = link.stats["polls"], link.stats["records"]
        wait_until(lambda: link.stats["polls"] > polls + 1 and link.stats["records"] > records + 1)
        assert "is not hex" in link.last_error
        path.unlink()
        wait_until(lambda: "cannot be read" in link.last_error)
        polls = link.stats["polls"]
        wait_until(lambda: link.stats["polls"] > polls + 1)


@pytest.mark.redis
def test_who_is_first_in_a_life_of_the_group_reads_what_is_desired_and_nobody_else(store_url, started):
    client = redis.Redis.from_url(store_url)
    client.hset(desired_key("p"), mapping={"offer": encode_offer(GOOD), "term": "4"})
    zero, second = started(store_url, 0, poll_s=0.05), started(store_url, 2, poll_s=0.05)
    wait_until(lambda: zero.wanted() is not None)
    assert second.wanted() is None
    zero.serve(first=False)
    second.serve(first=True)
    wait_until(lambda: second.wanted() is not None)
    assert zero.wanted() is None, "what it knew of the store grows old from now on"
    polls = second.stats["polls"]
    wait_until(lambda: second.stats["polls"] > polls)
    assert zero.wanted() is None
    client.close()


@pytest.mark.redis
def test_rank_0_sees_an_offer_and_the_term_it_was_written_under(store_url, started):
    client = redis.Redis.from_url(store_url)
    link = started(store_url, 0, poll_s=0.05)
    wait_until(lambda: link.wanted() is not None)
    assert link.wanted().offer is None
    client.hset(desired_key("p"), mapping={"offer": encode_offer(GOOD), "term": "4"})
    wait_until(lambda: link.wanted().offer is not None)
    first = link.wanted()
    assert (first.offer, first.term) == (encode_offer(GOOD), 4)
    wait_until(lambda: link.wanted().read_s > first.read_s)
    assert link.wanted().first_seen_s == first.first_seen_s
    client.hset(desired_key("p"), "offer", encode_offer(replace(GOOD, plan_id="p2")))
    wait_until(lambda: link.wanted().offer != first.offer)
    assert link.wanted().first_seen_s > first.first_seen_s
    client.close()


@pytest.mark.redis
def test_other_ranks_do_not_read_what_is_desired_and_all_write_what_is_live(store_url, started):
    client = redis.Redis.from_url(store_url)
    client.hset(desired_key("p"), mapping={"offer": encode_offer(GOOD), "term": "4"})
    link = started(store_url, 2)
    link.publish(RECORD, changed=True)
    wait_until(lambda: client.hget(live_key("p"), "2") is not None)
    assert decode_live(client.hget(live_key("p"), "2")) == RECORD
    assert link.wanted() is None
    client.close()


@pytest.mark.redis
def test_a_record_that_did_not_change_is_written_again_by_the_heartbeat_and_at_the_end(store_url, started):
    client = redis.Redis.from_url(store_url)
    link = started(store_url, 2, heartbeat_s=0.05)
    link.publish(RECORD, changed=True)
    wait_until(lambda: link.stats["records"] >= 3)
    link.publish(replace(RECORD, group_step=60), changed=False)
    link.stop()
    assert decode_live(client.hget(live_key("p"), "2")).group_step == 60
    client.close()


@pytest.mark.redis
def test_an_offer_beyond_the_limit_is_not_taken_over(store_url, started):
    client = redis.Redis.from_url(store_url)
    client.hset(desired_key("p"), mapping={"offer": b"x" * (MAX_OFFER_BYTES + 1), "term": "1"})
    link = started(store_url, 0, poll_s=0.05)
    wait_until(lambda: link.stats["oversize"] > 0)
    assert link.wanted().offer is None
    client.close()


@pytest.mark.redis
@pytest.mark.parametrize("term", [2**70, 2**53 + 1, -1, "x", "9" * 5000])
def test_a_term_that_frames_cannot_carry_is_counted_and_the_last_sound_one_kept(store_url, started, term):
    client = redis.Redis.from_url(store_url)
    client.hset(desired_key("p"), mapping={"offer": encode_offer(GOOD), "term": str(2**53)})
    link = started(store_url, 0, poll_s=0.05)
    wait_until(lambda: link.wanted() is not None)
    client.hset(desired_key("p"), "term", str(term))
    wait_until(lambda: link.stats["bad_term"] > 1)
    assert (link.wanted().offer, link.wanted().term) == (encode_offer(GOOD), 2**53)
    link.publish(RECORD, changed=True)
    wait_until(lambda: client.hexists(live_key("p"), "0"))
    assert link.stats["errors"] == 0
    client.close()


@pytest.mark.redis
def test_what_was_last_read_is_kept_when_the_store_answers_nonsense(store_url, started):
    client = redis.Redis.from_url(store_url)
    client.hset(desired_key("p"), mapping={"offer": encode_offer(GOOD), "term": "4"})
    link = started(store_url, 0, poll_s=0.05)
    wait_until(lambda: link.wanted() is not None)
    client.delete(desired_key("p"))
    client.set(desired_key("p"), "not a hash")
    wait_until(lambda: link.stats["errors"] > 0)
    assert link.wanted().offer == encode_offer(GOOD)
    client.close()


def test_a_store_that_is_away_is_counted_and_nothing_raises_or_blocks(tmp_path, started):
    link = started(f"unix://{tmp_path}/nobody.sock", 0, poll_s=0.02)
    for _ in range(50):
        link.publish(RECORD, changed=True)
        assert link.wanted() is None
    wait_until(lambda: link.stats["errors"] >= 2)
    assert "nobody.sock" in link.last_error or "ConnectionError" in link.last_error
    link.stop()


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", ""])
def test_a_url_that_is_none_of_redis_is_a_named_error_at_the_start(url):
    with pytest.raises(ConfigError, match="redis://host:port/0"):
        StoreLink(url, "p", 0)
