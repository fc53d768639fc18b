"""Accounts, reckoned by hand."""

import numpy as np
import pytest

from eplb.replay.ledger import Ledger, Price, Terms
from eplb.replay.presets import MACHINES
from eplb.replay.schedule import Steps
from placement import Roofline, Topology

TOPOLOGY = Topology.uniform(ranks=2, slots_per_rank=2)
PRICE = Price(MACHINES["H800"], Roofline(10.0, 0.0, 1.0), bytes_per_expert=30, link_bytes_per_s=60.0)
START = np.array([[0, 1, 2, 3]], dtype=np.int32)
SWAPPED = np.array([[0, 2, 1, 3]], dtype=np.int32)


def ledger(**given):
    return Ledger("p", 0, START, Terms(TOPOLOGY, 4, (PRICE,), undone_within=5), **given)


def steps(index, *counts):
    tokens = np.array(counts, dtype=np.int64)[:, None, None, :]
    return Steps(index, index, tokens, tokens.sum(axis=(2, 3)), np.arange(len(counts)))


def test_a_step_costs_what_its_hottest_rank_costs():
    """Loads 12 and 4, then 8 and 8: 22 + 18 us, ratios 1.5 and 1."""
    book = ledger()
    book.serve(steps(0, [8, 4, 2, 2], [4, 4, 4, 4]))
    account = book.account()
    assert account.bills[0].serving_s == pytest.approx(40e-6)
    assert account.ratio == pytest.approx(1.25)
    assert (account.steps, account.tokens, account.moves, account.bills[0].stall_s) == (2, 32, 0, 0.0)


def test_a_change_costs_its_moves_and_serves_from_then_on():
    """Experts 1 and 2 change ranks: one arrives on each, half a second; loads 12 and 4 become 10 and 6."""
    book = ledger()
    book.serve(steps(0, [8, 4, 2, 2]))
    book.change(1, SWAPPED)
    book.serve(steps(1, [8, 4, 2, 2]))
    account = book.account()
    assert (account.changes, account.moves, account.bytes) == (1, 2, 60)
    assert account.bills[0].stall_s == pytest.approx(0.5)
    assert account.bills[0].serving_s == pytest.approx(22e-6 + 20e-6)
    assert account.bills[0].total_s == pytest.approx(0.5 + 42e-6)
    assert account.ratio_by_window == pytest.approx((1.5, 1.25))


def test_the_same_map_again_is_no_change_and_another_order_of_slots_moves_nothing():
    """Only experts that are new to a rank travel."""
    book = ledger()
    book.change(1, START.copy())
    book.change(2, np.array([[1, 0, 3, 2]], dtype=np.int32))
    assert (book.account().changes, book.account().moves) == (0, 0)


def test_free_moves_are_not_counted():
    """The oracle pays for nothing but serving."""
    book = ledger(free=True)
    book.change(1, SWAPPED)
    account = book.account()
    assert (account.moves, account.undone, account.bills[0].stall_s) == (0, 0, 0.0)
