"""The publisher on a real store: frames arrive, a store that is away costs frames and nothing else."""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path

import pytest
import redis
from pool_examples import pool, recorder, spread

from collectors import CollectorError, Kind, Phase, Publisher, Recorder, decode_frame
from collectors.keys import FRAME_FIELD, load_key

KEY = load_key("main", 3)
SOON_S = 0.02
DEADLINE_S = 30.0


def wait_until(condition):
    """Wait for a condition; the deadline only ends a test that hangs."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail("the condition did not come true")
        time.sleep(0.005)


def record(rec, step, tokens=4):
    rec.record_step(step, Phase.DECODE, spread(rec.kind, tokens), tokens)


def frames_at(url, key=KEY):
    with redis.Redis.from_url(url, protocol=2) as client:
        return [decode_frame(fields[FRAME_FIELD]) for _, fields in client.xrange(key)]


@pytest.fixture
def folder():
    """A short path: names of unix sockets are limited to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="eplb-") as path:
        yield Path(path)


@pytest.fixture
def door(store_url, folder):
    """A way to the store that can be closed and opened: (url, close, open)."""
    path, target = folder / "s", store_url.removeprefix("unix://")

    def close():
        path.unlink()
        with redis.Redis.from_url(store_url) as client:
            client.client_kill_filter(_type="normal", skipme=True)

    path.symlink_to(target)
    return f"unix://{path}", close, lambda: path.symlink_to(target)


@pytest.mark.redis
def test_frames_arrive_in_the_stream_of_the_node(store_url):
    """Entries decode, in order, and the last one is sent at the stop."""
    rec = recorder(Kind.ROUTED_SLOTS, incarnation=5)
    publisher = Publisher(rec, url=store_url, node=3, interval_s=SOON_S, term=lambda: 9)
    publisher.start()
    record(rec, 0)
    wait_until(lambda: publisher.stats.published >= 2)
    record(rec, 1)
    assert publisher.stop()
    frames = frames_at(store_url)
    assert [f.header.seq for f in frames] == list(range(len(frames)))
    assert {(f.header.pool, f.header.rank, f.header.incarnation, f.header.term_seen) for f in frames} == {
        ("main", 0, 5, 9)
    }
    assert frames[-1].totals[0].steps == 2
    assert sorted(s.group_step for f in frames for s in f.samples) == [0, 1]
    assert publisher.stats.published == len(frames)
    assert (publisher.stats.dropped, publisher.stats.last_error) == (0, "")


@pytest.mark.redis
def test_an_idle_rank_keeps_sending(store_url):
    """No step at all still gives frames: seen, not missing."""
    publisher = Publisher(recorder(), url=store_url, node=3, interval_s=SOON_S)
    publisher.start()
    wait_until(lambda: publisher.stats.published >= 3)
    publisher.stop()
    assert {f.header.group_step for f in frames_at(store_url)} == {-1}


@pytest.mark.redis
def test_nothing_is_published_before_registration(store_url):
    """A frame without its run would mean nothing; the first one follows the registration."""
    rec = Recorder(pool(), 0, Kind.ROUTED)
    publisher = Publisher(rec, url=store_url, node=3, interval_s=SOON_S)
    publisher.start()
    time.sleep(5 * SOON_S)
    assert frames_at(store_url) == []
    rec.register(8, 41)
    wait_until(lambda: publisher.stats.published >= 1)
    publisher.stop()
    assert {(f.header.run_id, f.header.group_step) for f in frames_at(store_url)} == {(8, 41)}


@pytest.mark.redis
def test_entries_are_trimmed_by_the_store_s_time(store_url):
    """Entries older than the retention go; with one entry a node, trimming is exact."""
    with redis.Redis.from_url(store_url) as client:
        before = client.config_get("stream-node-max-entries")["stream-node-max-entries"]
        client.config_set("stream-node-max-entries", 1)
        try:
            publisher = Publisher(
                recorder(), url=store_url, node=3, interval_s=SOON_S, retention_s=2 * SOON_S
            )
            publisher.start()
            wait_until(lambda: publisher.stats.published >= 20)
            publisher.stop()
        finally:
            client.config_set("stream-node-max-entries", before)
    seqs = [f.header.seq for f in frames_at(store_url)]
    assert seqs[-1] == publisher.stats.published - 1
    assert len(seqs) < publisher.stats.published


@pytest.mark.redis
def test_a_store_that_goes_away_costs_frames_and_no_count(door, store_url):
    """Frames are dropped and counted while it is away; afterwards the totals are whole and closed rows arrive."""
    url, close, open_again = door
    rec = recorder(Kind.ROUTED_SLOTS, closed_keep_frames=1)
    publisher = Publisher(rec, url=url, node=3, interval_s=SOON_S)
    publisher.start()
    record(rec, 0)
    wait_until(lambda: publisher.stats.published >= 1)
    close()
    rec.switch({0: 201})
    record(rec, 1)
    wait_until(lambda: publisher.stats.dropped >= 3)
    assert "the totals are kept" in publisher.stats.last_error
    published = publisher.stats.published
    open_again()
    wait_until(lambda: publisher.stats.published > published)
    assert publisher.stop()
    frames = frames_at(store_url)
    assert frames[-1].totals[0].steps == 2
    assert {(c.layer, c.digest) for f in frames for c in f.closed} == {(0, 101)}
    assert not rec.refused


def test_a_store_that_was_never_there_is_counted(folder):
    """No server at all: dropped frames, a named error, a recorder that goes on, a stop that ends."""
    rec = recorder()
    publisher = Publisher(rec, url=f"unix://{folder}/nobody", node=3, interval_s=SOON_S)
    publisher.start()
    for step in range(50):
        record(rec, step)
    wait_until(lambda: publisher.stats.dropped >= 3)
    assert "ConnectionError" in publisher.stats.last_error
    assert publisher.stop(timeout_s=DEADLINE_S)
    assert (publisher.stats.published, publisher.stats.bytes) == (0, 0)
    assert rec.snapshot(0).totals[0].steps == 50


def test_a_store_that_never_answers_does_not_stop_recording(folder):
    """A server that accepts and stays silent costs a timeout in the publisher's thread only."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(folder / "s"))
        silent.listen()
        rec = recorder()
        publisher = Publisher(rec, url=f"unix://{folder}/s", node=3, interval_s=SOON_S)
        publisher.start()
        for step in range(200):
            record(rec, step)
        assert rec.group_step == 199
        wait_until(lambda: publisher.stats.dropped >= 1)
        assert "Timeout" in publisher.stats.last_error
        assert publisher.stop(timeout_s=DEADLINE_S)
    assert rec.snapshot(0).totals[0].steps == 200


@pytest.mark.redis
def test_the_budget_stretches_the_interval(store_url):
    """A frame larger than the budget of an interval makes the next one later; a stop does not wait for it."""
    rec = recorder()
    record(rec, 0)
    publisher = Publisher(rec, url=store_url, node=3, interval_s=SOON_S, publish_bytes_per_s=1.0)
    publisher.start()
    wait_until(lambda: publisher.stats.interval_s > SOON_S)
    assert publisher.stats.interval_s == publisher.stats.bytes * rec.facts.ranks / 1.0
    assert publisher.stats.published == 1
    record(rec, 1)
    assert publisher.stop(timeout_s=DEADLINE_S)
    assert publisher.stats.published == 2
    assert frames_at(store_url)[-1].totals[0].steps == 2


@pytest.mark.redis
def test_the_budget_stretches_the_stride(store_url):
    """Steps that come faster than samples may be sent make the stride a larger power of two."""
    rec = recorder()
    publisher = Publisher(rec, url=store_url, node=3, interval_s=SOON_S, publish_bytes_per_s=20_000.0)
    publisher.start()
    step = 0
    deadline_s = time.monotonic() + DEADLINE_S
    while rec.stride == 1 and time.monotonic() < deadline_s:
        record(rec, step)
        step += 1
        time.sleep(0.001)
    publisher.stop()
    assert rec.stride > 1
    assert rec.stride & (rec.stride - 1) == 0
    assert publisher.stats.stride == rec.stride


@pytest.mark.redis
def test_a_term_that_cannot_be_read_keeps_the_last_one(store_url):
    """The newest known term travels; a failing source costs no frame, and an older answer is not believed."""
    answers = iter([4, 3, RuntimeError("no term")])

    def term():
        answer = next(answers, None)
        if isinstance(answer, int):
            return answer
        raise answer or RuntimeError("no term")

    publisher = Publisher(recorder(), url=store_url, node=3, interval_s=SOON_S, term=term)
    publisher.start()
    wait_until(lambda: publisher.stats.published >= 4)
    publisher.stop()
    assert {f.header.term_seen for f in frames_at(store_url)} == {4}
    assert (publisher.stats.dropped, "term unknown" in publisher.stats.last_error) == (0, True)


@pytest.mark.redis
def test_a_key_of_another_type_is_an_error_that_is_counted(store_url):
    """Whatever the store answers stays inside the publisher's thread."""
    with redis.Redis.from_url(store_url) as client:
        client.set(KEY, "not a stream")
    publisher = Publisher(recorder(), url=store_url, node=3, interval_s=SOON_S)
    publisher.start()
    wait_until(lambda: publisher.stats.dropped >= 1)
    publisher.stop()
    assert "WRONGTYPE" in publisher.stats.last_error


@pytest.mark.parametrize(
    "url", ["", "http://localhost:6379", "localhost:6379", "redis://localhost:port/0", "unix://"]
)
def test_a_wrong_url_says_what_to_do(url):
    """A store URL that cannot work is named when the publisher is made."""
    with pytest.raises(CollectorError, match="use redis://host:port/0, rediss:// or unix:///path"):
        Publisher(recorder(), url=url, node=0)


def test_a_wrong_url_does_not_show_its_password():
    """What is logged may be read by others."""
    with pytest.raises(CollectorError) as error:
        Publisher(recorder(), url="http://user:secret@host/0", node=0)
    assert "host/0" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("numbers", [{"interval_s": 0}, {"retention_s": -1}, {"publish_bytes_per_s": 0}])
def test_numbers_must_be_positive(numbers):
    """An interval or a budget of nothing is a mistake of set-up."""
    with pytest.raises(CollectorError, match=next(iter(numbers))):
        Publisher(recorder(), url="redis://localhost", node=0, **numbers)


def test_stop_and_start_may_be_called_in_any_order(folder):
    """A publisher that never started stops at once, and does not start afterwards."""
    publisher = Publisher(recorder(), url=f"unix://{folder}/nobody", node=0)
    assert publisher.stop()
    publisher.start()
    assert publisher.stop()
    assert publisher.stats.dropped == 0
