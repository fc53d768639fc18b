"""The store's scripts decide as the protocol's functions do, whatever was there before: the model check knows only the functions."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.keys import desired_key, lease_key
from eplb.errors import StoreFenced
from eplb.protocol import ALL_GUARDS, may_lead, may_write, next_term
from eplb.store.client import Store
from eplb.store.lease import Lease

pytestmark = pytest.mark.redis
OWNERS = {1: "a", 2: "b"}
TERMS = st.integers(0, 1 << 52)


@pytest.fixture
def store(store_url):
    with Store(store_url, "p") as store:
        yield store


def set_up(store, fence, holder):
    store.redis.delete(desired_key("p"), lease_key("p"))
    if fence:
        store.redis.hset(desired_key("p"), "term", str(fence))
    if holder:
        store.redis.set(lease_key("p"), f"{fence}:{OWNERS[holder]}")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TERMS, TERMS, st.integers(0, 2))
def test_a_lease_is_given_to_whom_the_protocol_lets_lead_and_under_its_next_term(store, fence, floor, holder):
    set_up(store, fence, holder)
    term = Lease(store, 30.0, OWNERS[1]).acquire(floor=floor)
    allowed = may_lead(1, holder, guards=ALL_GUARDS) is None
    assert term == (next_term(fence, floor) if allowed else None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.tuples(TERMS, TERMS), TERMS.map(lambda term: (term, term))),
    st.sampled_from(["nobody", "the writer", "the fence's", "another"]),
)
def test_a_write_is_made_under_every_term_that_the_protocol_lets_write_and_raises_the_fence(
    store, terms, holder
):
    term, fence = terms
    held = {"nobody": 0, "the writer": term, "the fence's": fence, "another": term // 2 + 1}[holder]
    set_up(store, fence, 0)
    if held:
        store.redis.set(lease_key("p"), f"{held}:{OWNERS[2]}")
    allowed = may_write(term, fence, held, guards=ALL_GUARDS) is None
    try:
        store.write_desired(term, {"map": b"new"})
        written = True
    except StoreFenced:
        written = False
    assert written == allowed
    found = store.read_desired()
    assert (found.get("map") == b"new") == allowed
    assert int(found.get("term") or 0) == (max(term, fence) if allowed else fence)
