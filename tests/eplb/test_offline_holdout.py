"""Which slices are held out: a part of each kind, spread evenly, never all and never none."""

from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eplb.errors import FileError
from eplb.offline.holdout import check_fraction, part, seen_kinds, split
from placement import LoadTrace, Routes


def numbered(slices):
    """A trace in which slice i holds i + 1 tokens."""
    return LoadTrace(np.arange(1, slices + 1).reshape(-1, 1, 1))


def numbers(trace):
    return trace.tokens[:, 0, 0].tolist()


def test_the_literal_split():
    """Every fourth slice, counted kind by kind: law stands at 1, 3, 5, 7, code at 2, 4, 6, 8."""
    kinds = (("law", ""), ("code", "")) * 4
    parts = split(numbered(8), kinds, 0.25)
    assert numbers(parts.unseen) == [7, 8]
    assert numbers(parts.seen) == [1, 2, 3, 4, 5, 6]
    assert seen_kinds(kinds, 0.25) == (("law", ""), ("code", "")) * 3


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "decode"])), min_size=2, max_size=60),
    st.floats(0.01, 0.9),
)
def test_every_slice_is_on_one_side_and_each_kind_gives_its_part(kinds, fraction):
    """A kind gives its part to within one slice, and neither side is empty."""
    parts = split(numbered(len(kinds)), tuple(kinds), fraction)
    seen, unseen = numbers(parts.seen), numbers(parts.unseen)
    assert sorted(seen + unseen) == list(range(1, len(kinds) + 1))
    assert seen
    assert unseen
    if floor(len(kinds) * fraction) >= 1:
        for kind in set(kinds):
            out = sum(kinds[at - 1] == kind for at in unseen)
            assert abs(out - kinds.count(kind) * fraction) < 1 + 1e-6
    assert list(seen_kinds(tuple(kinds), fraction)) == [kinds[at - 1] for at in seen]


def test_nothing_is_held_out_of_one_slice_or_with_0():
    """And asking for it by name is refused with the cure."""
    assert split(numbered(1), (("", ""),), 0.5) is None
    assert split(numbered(4), (("", ""),) * 4, 0.0) is None
    check_fraction(0.5, 2)
    check_fraction(0.0, 1)
    with pytest.raises(FileError, match="at least 2 slices"):
        check_fraction(0.5, 1)


def test_a_part_keeps_what_is_known_of_its_slices():
    """Weights, steps and batches by slice; routes and sources of the whole."""
    routes = Routes(np.array([[[0]], [[0]]]), np.array([0, 1]))
    whole = LoadTrace(
        np.ones((3, 1, 2), dtype=int),
        [1.0, 2.0, 3.0],
        [4, 5, 6],
        routes=routes,
        source_tokens=np.ones((2, 1, 2), dtype=int),
        batch_tokens=[7.0, 8.0, 9.0],
    )
    some = part(whole, np.array([True, False, True]))
    assert (some.weights.tolist(), some.steps_per_slice.tolist()) == ([1, 3], [4, 6])
    assert some.batch_tokens.tolist() == [7, 9]
    assert some.routes is routes
    assert some.source_tokens.tolist() == whole.source_tokens.tolist()
