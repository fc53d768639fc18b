"""Rules of what a person on call reads: who leads, which ranks do what, what was decided when; nothing written by others breaks it."""

import json

import pytest
from pool_world import FACTS

from collectors.keys import log_key
from eplb.agent.wire import LiveRecord, encode_live
from eplb.status import UNREADABLE, decision_lines, read_decision, read_status, status_text
from eplb.store.client import Store
from eplb.store.lease import Lease

NOON_MS = 1_800_014_400_000


@pytest.fixture
def store(embedded_store_url):
    with Store(embedded_store_url, FACTS.pool) as store:
        store.redis.flushall()
        yield store


def decision(**changes):
    body = {
        "pool": FACTS.pool, "time_ms": NOON_MS, "cycle": 7, "term": 2, "map_version": 3, "state": "observing", "code": "balanced",
        "sentence": "all is well", "would_change": "load", "excess": 0.25,
    }  # fmt: skip
    return json.dumps({**body, **changes}).encode()


def report(store, rank, **changes):
    facts = {
        "pool": FACTS.pool, "rank": rank, "incarnation": rank, "run_id": 5, "term_seen": 2, "map_version": 3, "group_step": 40,
        "state": "serving", "offer": "", "digests": (1, 2, 3),
    }  # fmt: skip
    store.redis.hset(
        f"eplb:{{{FACTS.pool}}}:live", str(rank), encode_live(LiveRecord(**{**facts, **changes}))
    )


def shown(store):
    return status_text(read_status(store, FACTS))


def test_an_empty_store_says_that_nobody_leads_and_no_rank_reports(store):
    """Not an error: it is what a person finds after the store lost its data."""
    assert "NOBODY LEADS" in shown(store)
    assert "no record of ranks 0, 1, 2, 3" in shown(store)
    assert "no decision yet" in shown(store)


def test_the_leader_is_named_while_it_holds_the_lease(store):
    """By host and process, which is what a person needs to read its log."""
    lease = Lease(store, 30.0, "host:12:ab")
    lease.acquire()
    assert "led by host:12:ab" in shown(store)
    lease.release()
    assert "NOBODY LEADS" in shown(store)


def test_every_rank_that_does_not_just_serve_has_a_line_with_what_it_reports(store):
    """So that the ranks that a stalled plan waits for can be looked at, and the silent ones are known."""
    report(store, 0, state="refused", offer="p/0@2", refusals=((2, "weights_differ", "layer 4 expert 1"),))
    report(store, 1)
    report(store, 2, state="stuck")
    text = shown(store)
    assert "ranks reporting 3 of 4 (1 refused, 1 serving, 1 stuck)" in text
    assert "rank 0: refused p/0@2" in text
    assert "rank 2 refused, weights_differ: layer 4 expert 1" in text
    assert "rank 2: stuck" in text
    assert "no record of ranks 3" in text
    assert "rank 1:" not in text


def test_the_last_decision_has_its_age_so_that_a_daemon_that_is_gone_shows(store):
    """The log outlives the daemon that wrote it."""
    store.append_log(decision(time_ms=store.time_ms() - 90_000))
    assert "balanced: all is well [would change: load] (9" in shown(store)
    assert read_status(store, FACTS)["decision_age_s"] >= 90.0


def test_decisions_of_one_code_in_a_row_are_one_line_with_the_times_of_the_first_and_the_newest():
    """A person looks for what changed, and when."""
    raw = [decision(time_ms=NOON_MS + 5000 * cycle, cycle=cycle) for cycle in range(12)]
    lines = list(decision_lines([*raw, decision(code="planning", time_ms=NOON_MS + 60_000)]))
    assert len(lines) == 2
    assert lines[0].startswith("2027-01-15 12:00:55 cycle    11 term 2 observing")
    assert lines[0].endswith("(x12 since 2027-01-15 12:00:00)")
    assert "planning" in lines[1]


def test_a_former_leaders_decisions_are_marked():
    """They may come late."""
    lines = list(decision_lines([decision(term=3), decision(term=2), decision(term=3)]))
    assert ["former leader" in line for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[1]", b"null", b"\xff", b"[" * 100_000, b'{"cycle": 1}', decision(time_ms="now"), decision(time_ms=1 << 80),
        decision(time_ms=-1), decision(term=None), decision(sentence=5),
    ],
)  # fmt: skip
def test_a_record_that_is_no_decision_is_said_and_ends_nothing(store, raw):
    """Whoever has the daemon's password can write into the log."""
    assert read_decision(raw) is None
    assert list(decision_lines([decision(), raw, decision()]))[1] == f"({UNREADABLE})"
    store.redis.xadd(log_key(FACTS.pool), {b"r": raw})
    assert UNREADABLE in shown(store)


def test_all_that_cannot_be_read_is_named(store):
    """It counts as absent, and a person must know that it is not; one problem does not hide another."""
    store.redis.hset(f"eplb:{{{FACTS.pool}}}:desired", mapping={"term": "many", "map": "x", "offer": "y"})
    store.redis.hset(f"eplb:{{{FACTS.pool}}}:live", "2", "z")
    text = shown(store)
    assert "PROBLEM: of what the daemon asked for, term, map, offer cannot be read" in text
    assert "PROBLEM: the live record of rank 2 is refused" in text


def test_control_characters_do_not_reach_the_terminal(store):
    """A rank's sentence, a decision's sentence and a leader's name are other people's text."""
    report(store, 0, state="stuck", refusals=((0, "x", "\x1b]0;owned\x07"),))
    store.append_log(decision(sentence="\x1b[2J"))
    store.redis.set(f"eplb:{{{FACTS.pool}}}:lease", "1:\x1b[31mme")
    assert "\x1b" not in shown(store)
    assert "\x1b" not in "".join(decision_lines(store.read_log(1)))
