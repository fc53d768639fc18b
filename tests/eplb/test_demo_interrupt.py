"""Ctrl+C ends a run wherever it is heard."""

import signal
import sys
import threading

import pytest

from eplb.demo.interrupt import Interrupt


class Finalized:
    """An exception in a finalizer is reported, and lost."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_lost_in_a_finalizer_is_raised_at_the_next_check(monkeypatch):
    """Otherwise the run goes on to its end and exits with 0."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    with Interrupt() as interrupt:
        interrupt.check()
        one = Finalized()
        del one
        assert [found.exc_type for found in lost] == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_an_interrupt_is_raised_where_it_comes_and_sigint_is_given_back():
    """As without it; afterwards who answered before answers again."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupt():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_nothing_is_changed():
    """Only the main thread may set handlers."""
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter():
        with Interrupt() as interrupt:
            interrupt.check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
