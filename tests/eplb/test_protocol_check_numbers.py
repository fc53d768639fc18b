"""Rows have one number each, in the order in which they come; a state is new unless one like it had as much left of all kinds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.errors import ProtocolError
from eplb.protocol.check.budget import SPENDS, Budget
from eplb.protocol.check.known import Known
from eplb.protocol.check.layout import LEFT
from eplb.protocol.check.numbers import Memo, Numbers, Rows, each
from eplb.protocol.check.parts import BITS, Parts
from eplb.protocol.check.world import Bounds, Left, start


def columns(rows, width):
    return list(np.array(rows, np.int32).reshape(-1, width).T)


@pytest.mark.parametrize("bits", [(3,), (3, 3), (30, 30, 30), (20, 20, 20, 20, 20, 20, 20)])
@given(data=st.data())
def test_equal_rows_have_one_number_in_the_order_of_their_first_place(bits, data):
    row = st.tuples(*(st.integers(0, min(7, 2**width - 1)) for width in bits))
    batches = data.draw(st.lists(st.lists(row, max_size=30), max_size=5))
    known, rows = {}, Rows(bits)
    for batch in batches:
        new = [n for n, found in enumerate(batch) if found not in batch[:n] and found not in known]
        for found in batch:
            known.setdefault(found, len(known))
        numbers, fresh = rows.of(columns(batch, len(bits)))
        assert numbers.tolist() == [known[found] for found in batch]
        assert fresh.tolist() == new
        assert rows.count == len(known)


def test_many_words_keep_their_numbers_while_the_table_grows():
    words = np.random.default_rng(5).choice(2**61, 50_000, replace=False).astype(np.int64)
    numbers = Numbers()
    for part in np.split(words, 10):
        numbers.of(part)
    assert np.array_equal(numbers.of(words)[0], np.arange(len(words)))
    assert not numbers.of(words)[1].size


def test_a_function_is_worked_out_once_for_each_row():
    asked = []

    def both(one, two):
        asked.append((one, two))
        return one + two, one * two

    memo = Memo((4, 4), 2, each(both))
    for _ in range(2):
        found = memo.of(*columns([(1, 2), (3, 4), (1, 2)], 2))
        assert found.T.tolist() == [[3, 2], [7, 12], [3, 2]]
    assert asked == [(1, 2), (3, 4)]


def test_more_parts_than_keys_are_refused():
    parts = Parts()
    for number in range(1 << BITS):
        parts.key((number,))
    with pytest.raises(ProtocolError, match="raise BITS"):
        parts.key((1 << BITS,))


BOUNDS = Bounds(crashes=2, losses=1, messages=2, faults=4)


def test_a_budget_knows_what_each_fault_leaves_and_how_many_were_spent():
    parts, first = Parts(), start(BOUNDS).left
    budget = Budget(first, parts)
    for key, left in enumerate(parts.all(Left)):
        assert budget.spent[key] == first.faults - left.faults
        for number, kind in enumerate(SPENDS):
            after, less = budget.after[key, number], left
            for one in kind.split("+") if kind and kind != "plans" else ():
                less = less and less.spend(one)
            if kind == "plans":
                less = left._replace(plans=left.plans - 1) if left.plans else None
            assert (None if after < 0 else parts.part(Left, int(after))) == less
    assert sum(parts.part(Left, budget.nothing)[:-1]) == 0


@given(data=st.data())
def test_a_state_is_new_unless_one_like_it_had_as_much_left_of_all_kinds(data):
    parts = Parts()
    budget = Budget(start(BOUNDS).left, parts)
    lefts = parts.all(Left)
    known, met = Known(budget), []
    row = st.tuples(st.integers(0, 2), st.just(1), st.just(1), st.integers(0, len(lefts) - 1))
    for batch in data.draw(st.lists(st.lists(row, min_size=1, max_size=20), max_size=5)):
        new = []
        for place, state in enumerate(batch):
            like = [other[LEFT] for other in met if other[:LEFT] == state[:LEFT]]
            if not any(
                all(has >= asked for has, asked in zip(lefts[other], lefts[state[LEFT]], strict=True))
                for other in like
            ):
                new.append(place)
                met.append(state)
        assert known.add(np.array(batch, np.int32).T).tolist() == new


def test_likenesses_are_kept_while_the_table_grows():
    parts = Parts()
    known = Known(Budget(start(BOUNDS).left, parts))
    rng = np.random.default_rng(3)
    states = np.stack([rng.permutation(30_000), *np.zeros((3, 30_000), int)]).astype(np.int32)
    for part in np.split(states, 10, axis=1):
        assert known.add(part).tolist() == list(range(3000))
    assert known.count == 30_000
    assert not known.add(states).size
