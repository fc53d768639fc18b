"""One leader a pool, terms that only grow, and no write by a leader whose time is over."""

from __future__ import annotations

import pytest

from collectors.keys import desired_key, lease_key
from eplb.errors import ConfigError, StoreError, StoreFenced
from eplb.protocol import ALL_GUARDS, may_lead, may_write, next_term
from eplb.store.client import Store
from eplb.store.lease import Lease

pytestmark = pytest.mark.redis


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(store_url):
    with Store(store_url, "p") as store:
        yield store


def lease(store, owner, clock=None, ttl_s=30.0):
    return Lease(store, ttl_s, owner, clock=clock or Clock())


def expire(store):
    """The store lets the lease go, as it does when its time is over."""
    store.redis.delete(lease_key("p"))


def test_one_holds_it_and_the_other_waits(store):
    """The second is told None, not an error."""
    first, second = lease(store, "a"), lease(store, "b")
    assert first.acquire() == 1
    assert second.acquire() is None
    assert second.term is None
    first.release()
    assert second.acquire() == 2


def test_every_acquisition_has_a_higher_term_than_store_and_floor(store):
    """Term = 1 + max(store, floor); an emptied store does not set it back."""
    holder = lease(store, "a")
    assert holder.acquire(floor=41) == 42
    holder.release()
    assert holder.acquire() == 43
    holder.release()
    store.redis.delete(desired_key("p"))
    assert holder.acquire(floor=43) == 44


@pytest.mark.parametrize(("term", "fence"), [(1, 1), (2, 1), (1, 2), (5, 41)])
def test_the_store_refuses_what_the_protocol_refuses(store, term, fence):
    """The scripts and the functions of the model check are the same rules."""
    store.write_desired(fence, {"map": b"first"})
    refused = may_write(term, fence, guards=ALL_GUARDS) is not None
    try:
        store.write_desired(term, {"map": b"second"})
    except StoreFenced:
        assert refused
    else:
        assert not refused


def test_the_store_grants_a_lease_as_the_protocol_does(store):
    first, second = lease(store, "a"), lease(store, "b")
    assert first.acquire(floor=6) == next_term(0, 6)
    assert may_lead(2, 1, guards=ALL_GUARDS) is not None
    assert second.acquire() is None
    assert may_lead(1, 1, guards=ALL_GUARDS) is None
    assert first.acquire(floor=3) == next_term(7, 3)
    expire(store)
    assert may_lead(2, 0, guards=ALL_GUARDS) is None
    assert second.acquire() == next_term(8, 0)


def test_the_fence_rises_with_the_acquisition_itself(store):
    """The old leader cannot write although the new one has not written yet."""
    old, new = lease(store, "a"), lease(store, "b")
    old_term = old.acquire()
    expire(store)
    new.acquire()
    with pytest.raises(StoreFenced):
        store.write_desired(old_term, {"map": b"old"})


def test_a_leader_that_slept_through_the_loss_of_all_keys_cannot_write_beside_the_new_one(store):
    """The emptied store gives the new leader a lower term than the old one had: the lease tells them apart."""
    old, new = lease(store, "a"), lease(store, "b")
    old_term = old.acquire(floor=41)
    store.redis.flushall()
    assert new.acquire() == 1
    with pytest.raises(StoreFenced, match="term 1 leads, this process writes under 42"):
        store.write_desired(old_term, {"map": b"old"})
    store.write_desired(new.term, {"map": b"new"})
    assert store.read_desired()["map"] == b"new"
    assert store.read_desired()["term"] == b"1"


@pytest.mark.parametrize(
    "term", ["1e300", "-1e300", "nan", "inf", "many", "", "-5", "1.5", str(1 << 53), "9" * 400]
)
def test_a_spoiled_fence_locks_nobody_out_and_lets_nobody_lead_without_one(store, term):
    """A term that no store has granted counts as none; the next leader's is sound and above what ranks have seen."""
    store.redis.hset(desired_key("p"), "term", term)
    holder = lease(store, "a")
    assert holder.acquire(floor=6) == 7
    store.write_desired(7, {"map": b"new"})
    assert store.read_desired()["term"] == b"7"


@pytest.mark.parametrize("held", ["", ":", "5:", "many", "nobody:a", "5"])
def test_a_lease_that_nobody_took_is_free(store, held):
    store.redis.set(lease_key("p"), held)
    store.write_desired(3, {"map": b"new"})
    assert lease(store, "a").acquire() == 4


def test_a_daemon_writes_under_a_term_only(store):
    """A negative one is an operator's hand, which no daemon may borrow."""
    for write in (store.write_desired, lambda term, fields: store.write_control(fields, term)):
        with pytest.raises(StoreError, match="term -1 is nobody"):
            write(-1, {"map": b"new"})
    assert store.redis.hlen(desired_key("p")) == 0


def test_a_lost_lease_is_not_prolonged(store):
    """Renewing reports the loss and the term is gone."""
    old, new = lease(store, "a"), lease(store, "b")
    old.acquire()
    expire(store)
    new.acquire()
    assert old.renew() is False
    assert old.term is None
    assert new.renew() is True


def test_releasing_never_takes_the_lease_from_another(store):
    """Compare and delete."""
    old, new = lease(store, "a"), lease(store, "b")
    old.acquire()
    expire(store)
    new.acquire()
    old.release()
    assert store.redis.get(lease_key("p")) == b"2:b"


def test_the_holder_steps_down_by_its_own_clock_before_the_store_lets_go(store):
    """At ttl minus margin it does not lead, though the store still has the lease."""
    clock = Clock()
    holder = lease(store, "a", clock, ttl_s=30.0)
    holder.acquire()
    clock.now_s += 22.0
    assert holder.term == 1
    clock.now_s += 1.0
    assert holder.term is None
    assert store.redis.exists(lease_key("p"))
    assert holder.renew() is False


def test_renewing_prolongs_store_and_clock(store):
    """Both ends count anew."""
    clock = Clock()
    holder = lease(store, "a", clock, ttl_s=30.0)
    holder.acquire()
    store.redis.pexpire(lease_key("p"), 5_000)
    clock.now_s += 20.0
    assert holder.renew() is True
    assert store.redis.pttl(lease_key("p")) > 20_000
    clock.now_s += 20.0
    assert holder.term == 1


def test_an_owner_whose_answer_was_lost_can_acquire_again(store):
    """The same owner is not locked out by its own lease; the term grows."""
    holder = lease(store, "host:1:abc")
    assert holder.acquire() == 1
    assert lease(store, "host:1:abc").acquire() == 2


@pytest.mark.parametrize(("margin_s", "owner"), [(0.0, "a"), (30.0, "a"), (5.0, "")])
def test_a_lease_that_cannot_work_is_a_configuration_error(store, margin_s, owner):
    """Margin inside the lease, owner not empty."""
    with pytest.raises(ConfigError, match="lease"):
        Lease(store, 30.0, owner, margin_s=margin_s)
