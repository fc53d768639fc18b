"""What the daemon reads and writes in the store, on Valkey and on Redis."""

from __future__ import annotations

import pytest
import redis
from redis.exceptions import ResponseError

from collectors.keys import FRAME_FIELD, live_key, load_key
from eplb.errors import ConfigError, StoreError, StoreFenced, StoreUnavailable
from eplb.store.client import Store

pytestmark = pytest.mark.redis


@pytest.fixture
def store(store_url):
    with Store(store_url, "p", window_s=10.0) as store:
        yield store


def append(store: Store, node: int, payload: bytes, entry_id: str = "*", field: bytes = FRAME_FIELD) -> bytes:
    return store.redis.xadd(load_key(store.pool, node), {field: payload}, id=entry_id)


# --- URL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["localhost:6379", "http://localhost", "", "redis://localhost:port", "redis://h:1/notanumber"]
)
def test_a_malformed_url_is_a_configuration_error_with_an_example(url):
    """Nothing is connected; the message shows how a URL looks."""
    with pytest.raises(ConfigError, match=r"redis://.*6379"):
        Store(url, "p")


@pytest.mark.parametrize("url", ["redis://user:secret@127.0.0.1:1/0", "unix:///nowhere/at/all.sock"])
def test_a_store_that_is_not_there_is_named_with_what_to_do_and_without_the_password(url):
    """A refused connection fails as StoreUnavailable."""
    with Store(url, "p") as store, pytest.raises(StoreUnavailable, match="check that it runs") as caught:
        store.time_ms()
    assert "secret" not in str(caught.value)


def test_waiting_for_an_absent_store_is_bounded_by_few_short_retries():
    """At most four attempts and 0.14 s of backoff, unlike the library's ten attempts and 4.45 s."""
    with Store("redis://127.0.0.1:1", "p") as store:
        retry = store.redis.connection_pool.connection_kwargs["retry"]
        assert retry.get_retries() == 3
        assert sum(retry._backoff.compute(attempt) for attempt in (1, 2, 3)) < 0.5


def test_a_wrong_password_is_an_error_of_its_own(store_url):
    """A store that answers but refuses the user is not called away."""
    with (
        Store(store_url.replace("unix://", "unix://nobody:wrong@"), "p") as store,
        pytest.raises(StoreError, match=r"users\.acl"),
    ):
        store.time_ms()


# --- desired, control, live ---------------------------------------------------------------------------------------


def test_what_is_written_under_a_term_is_read_back_with_the_term(store):
    """Fields are bytes; the term stands beside them."""
    store.write_desired(3, {"map": b"\x00\xff", "offer": b"{}"})
    assert store.read_desired() == {"term": b"3", "map": b"\x00\xff", "offer": b"{}"}


def test_an_older_term_writes_nothing(store):
    """The fence holds for desired and for control alike, whichever was written last."""
    store.write_desired(5, {"map": b"new"})
    with pytest.raises(StoreFenced, match="term 5 leads"):
        store.write_desired(4, {"map": b"old"})
    with pytest.raises(StoreFenced):
        store.write_control({"mode": b"auto"}, term=4)
    assert store.read_desired()["map"] == b"new"
    assert store.read_control() == {}
    store.write_desired(5, {"map": b"again"})
    assert store.read_desired()["map"] == b"again"


def test_an_operators_switch_holds_under_any_term_and_leaves_the_fence(store):
    """`eplb pause` needs no lease."""
    store.write_desired(5, {"map": b"m"})
    store.write_control({"paused": b"1"})
    assert store.read_control() == {"paused": b"1"}
    assert store.read_desired()["term"] == b"5"


def test_the_fence_itself_cannot_be_written_as_a_field(store):
    """A field named term would lift the fence."""
    with pytest.raises(StoreError, match="fence"):
        store.write_desired(1, {"term": b"99"})


def test_many_fields_fit_in_one_fenced_write(store):
    """More fields than Lua can unpack at once are written completely."""
    fields = {f"layer{i}": b"%d" % i for i in range(5000)}
    store.write_desired(1, fields)
    assert {name: value for name, value in store.read_desired().items() if name != "term"} == fields


def test_live_records_are_keyed_by_rank(store):
    """A field that is not a rank is left out."""
    store.redis.hset(live_key("p"), mapping={"0": b"a", "17": b"b", "x": b"c"})
    assert store.read_live() == {0: b"a", 17: b"b"}


def test_a_field_whose_name_is_no_text_hides_no_other(store):
    """Anybody with the daemon's password can write one; `eplb pause` and every cycle read these hashes."""
    store.redis.hset("eplb:{p}:desired", mapping={b"\xff": b"1", b"term": b"4"})
    store.redis.hset("eplb:{p}:control", mapping={b"\xfe": b"1", b"paused": b"1"})
    store.redis.hset(live_key("p"), mapping={b"\xfd": b"1", b"3": b"r"})
    assert store.read_desired()["term"] == b"4"
    assert store.read_control()["paused"] == b"1"
    assert store.read_live() == {3: b"r"}


def test_pools_do_not_see_each_other(store, store_url):
    """Everything is keyed by pool."""
    store.write_desired(1, {"map": b"p"})
    with Store(store_url, "other") as other:
        assert other.read_desired() == {}


def test_the_log_keeps_its_order_and_its_cap(store):
    """The newest records are read, oldest first; old ones are trimmed."""
    for i in range(1000):
        store.append_log(b"%d" % i, keep=100)
    assert store.read_log(3) == [b"997", b"998", b"999"]
    assert len(store.read_log(2000)) < 1000


def test_a_key_of_another_type_is_an_error_and_not_a_missing_store(store):
    """Only a store that does not answer is called unavailable."""
    store.redis.set("eplb:{p}:desired", "text")
    with pytest.raises(StoreError, match="WRONGTYPE") as caught:
        store.read_desired()
    assert not isinstance(caught.value, StoreUnavailable)


# --- load ---------------------------------------------------------------------------------------------------------


def test_tailing_gives_each_entry_once_in_time_order_over_nodes(store):
    """Streams are merged by the store's time; the next call gives only what is new."""
    now = store.time_ms()
    append(store, 0, b"a", f"{now - 30}-0")
    append(store, 1, b"b", f"{now - 20}-0")
    append(store, 0, b"c", f"{now - 10}-0")
    assert store.tail_load([0, 1]) == [(now - 30, 0, b"a"), (now - 20, 1, b"b"), (now - 10, 0, b"c")]
    assert store.tail_load([0, 1]) == []
    append(store, 1, b"d")
    assert [payload for _, _, payload in store.tail_load([0, 1])] == [b"d"]


def test_a_limited_call_is_continued_by_the_next(store):
    """A long backlog is read in pieces and nothing is skipped."""
    for i in range(25):
        append(store, 0, b"%d" % i)
    pieces = [store.tail_load([0], limit=10) for _ in range(4)]
    assert [len(piece) for piece in pieces] == [10, 10, 5, 0]
    assert [payload for piece in pieces for _, _, payload in piece] == [b"%d" % i for i in range(25)]


def test_a_blocking_read_returns_without_an_error_when_nothing_comes(store):
    """The wait stays below the socket timeout whatever is asked for."""
    append(store, 0, b"a")
    store.tail_load([0])
    assert store.tail_load([0], block_ms=20) == []
    short = Store(store.url, "p", socket_timeout_s=2.0)
    assert short.tail_load([5], block_ms=60_000) == []
    short.close()


def test_an_entry_without_a_frame_is_given_as_none(store):
    """The reader goes on; the window counts it."""
    append(store, 0, b"x", field=b"other")
    append(store, 0, b"a")
    assert [payload for _, _, payload in store.tail_load([0])] == [None, b"a"]


def test_a_stream_without_entries_and_a_pool_without_nodes_are_no_error(store):
    """Nothing is there yet."""
    assert store.tail_load([0, 1, 2]) == []
    assert store.tail_load([]) == []
    assert store.backlog_ms([0]) == 0


def test_win_07_backlog_is_zero_when_all_is_read_whatever_was_trimmed(store):
    """WIN-07: trimming leaves no phantom backlog behind."""
    for i in range(5):
        append(store, 0, b"%d" % i, f"{store.time_ms() + i}-{i}")
    store.tail_load([0], limit=1)
    assert store.backlog_ms([0]) > 0
    store.redis.xtrim(load_key("p", 0), maxlen=1, approximate=False)
    assert [payload for _, _, payload in store.tail_load([0])] == [b"4"]
    assert store.backlog_ms([0]) == 0


def test_win_09_an_entry_after_a_clock_step_back_is_stored_and_read_in_order(store):
    """WIN-09: the store gives ids that grow, although its clock is behind the newest entry."""
    ahead = store.time_ms() + 10_000
    append(store, 0, b"before", f"{ahead}-0")
    second = append(store, 0, b"after")
    assert second == f"{ahead}-1".encode()
    assert [payload for _, _, payload in store.tail_load([0])] == [b"before", b"after"]


def test_win_10_the_first_read_starts_one_window_before_the_stores_own_time(store, monkeypatch):
    """WIN-10: a skewed local clock neither hides samples nor brings older ones."""
    now = store.time_ms()
    append(store, 0, b"too old", f"{now - 11_000}-0")
    append(store, 0, b"in", f"{now - 9_000}-0")
    monkeypatch.setattr("time.time", lambda: now / 1000 + 30)
    assert [payload for _, _, payload in store.tail_load([0])] == [b"in"]


def test_a_quiet_stream_older_than_the_window_is_not_taken_for_a_loss(store):
    """Its newest entry lies before our start, not before something we read."""
    append(store, 0, b"old", f"{store.time_ms() - 60_000}-0")
    assert store.tail_load([0]) == []
    assert store.tail_load([0]) == []
    assert store.key_losses == 0


@pytest.mark.parametrize("begun_anew", [True, False])
def test_a_stream_that_was_lost_is_counted_and_read_from_its_new_beginning(store, begun_anew):
    """An emptied store whose clock is behind the old ids does not blind the reader."""
    append(store, 0, b"a", f"{store.time_ms() + 60_000}-0")
    store.tail_load([0])
    store.redis.delete(load_key("p", 0))
    if begun_anew:
        append(store, 0, b"b")
    assert store.tail_load([0]) == []
    assert store.key_losses == 1
    append(store, 0, b"c")
    expected = [b"b", b"c"] if begun_anew else [b"c"]
    assert [payload for _, _, payload in store.tail_load([0])] == expected
    assert store.tail_load([0]) == []
    assert store.key_losses == 1


def test_the_reply_shape_is_pinned(store):
    """The protocol is fixed, so that XREAD gives lists and not a mapping."""
    append(store, 0, b"a")
    reply = store.redis.xread({load_key("p", 0): b"0-0"})
    assert isinstance(reply, list)
    assert store.redis.connection_pool.connection_kwargs["protocol"] == 2


def test_a_script_error_does_not_pass_as_success(store):
    """The raw client raises what the server says."""
    with pytest.raises(ResponseError), redis.Redis.from_url(store.url) as client:
        client.eval("return redis.call('NOPE')", 0)
