"""Rules of what is told: a fault that lasts has one traceback, and a log that takes nothing is said once."""

import structlog

from eplb.errors import StoreError
from eplb.journal import Journal


def fail(journal, sentence):
    try:
        int(sentence)
    except ValueError as error:
        return journal.fault(error)


def test_a_fault_has_its_traceback_once_however_many_cycles_it_lasts():
    """Another fault is news, and the same one again after a cycle that was well."""
    with structlog.testing.capture_logs() as events:
        journal = Journal(structlog.get_logger(), lambda _: None)
        for sentence in ("a", "a", "a", "b"):
            fail(journal, sentence)
        journal.well()
        told = fail(journal, "b")
    assert told.startswith("ValueError: invalid literal")
    assert [event["event"] for event in events] == ["cycle_failed"] * 3
    assert all(event["exc_info"] for event in events)


def test_decisions_wait_while_the_log_takes_none():
    """In their order, and at most so many that a day of it does not fill the memory."""
    sent, refuses = [], [True]

    def append(raw):
        if refuses:
            raise StoreError("full")
        sent.append(raw)

    with structlog.testing.capture_logs() as events:
        journal = Journal(structlog.get_logger(), append)
        journal._unsent.extend(b"%d" % number for number in range(150))
        journal.send()
        journal.send()
        refuses.clear()
        journal.send()
    assert sent == [b"%d" % number for number in range(50, 150)]
    assert [event["event"] for event in events] == ["decisions_not_logged", "decisions_logged_again"]
