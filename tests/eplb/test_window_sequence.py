"""Frames of one incarnation: which are new, late, repeated or lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eplb.window.sequence import REMEMBERED, REORDER_FRAMES, Arrival, Sequence


def sequence_of(numbers):
    first, *others = numbers
    sequence = Sequence(first)
    return sequence, [sequence.arrive(number) for number in others]


def test_a_gap_counts_as_lost_once_newer_frames_have_come():
    """One reordered frame is not a lost one."""
    sequence, _ = sequence_of([0, 2])
    assert sequence.lost == 0
    sequence.arrive(1 + REORDER_FRAMES)
    assert sequence.lost == 1


def test_a_late_frame_is_told_from_a_repeated_one():
    """Also after it was given up; the counter never falls."""
    sequence, _ = sequence_of([0, 10, 20])
    lost = sequence.lost
    assert sequence.arrive(5) is Arrival.LATE
    assert sequence.arrive(5) is Arrival.REPEATED
    assert sequence.arrive(20) is Arrival.REPEATED
    assert sequence.lost == lost


@given(numbers=st.lists(st.integers(0, 60), min_size=1, max_size=80))
def test_every_number_is_new_exactly_once_in_any_order(numbers):
    """Each number is taken once, whatever the order and however often it comes."""
    sequence, arrivals = sequence_of(numbers)
    taken = 1 + sum(arrival is not Arrival.REPEATED for arrival in arrivals)
    assert taken == len(set(numbers))
    settled = [n for n in range(min(numbers), max(numbers) - REORDER_FRAMES + 1) if n not in numbers]
    assert sequence.lost >= len(settled)


@given(jump=st.integers(10**6, 2**63))
def test_a_damaged_number_does_not_fill_the_memory(jump):
    """A jump of 2**60 is counted and not remembered."""
    sequence, _ = sequence_of([0, jump])
    assert sequence.lost >= jump - 1 - REORDER_FRAMES
    assert len(sequence._missing) + len(sequence._given_up) <= REMEMBERED
