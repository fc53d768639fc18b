"""Recordings: what is taken from a trace and what is refused."""

import numpy as np
import pytest

from eplb.errors import ReplayError
from eplb.formats.facts import Sequence
from eplb.replay.recording import Recording


def picks(*rows):
    return np.array(rows, dtype=np.int64)[:, None, :]


def test_sequences_lie_one_after_the_other_and_empty_ones_are_left_out():
    """Offsets bound each sequence; the highest pick names the number of experts."""
    held = Recording.of(
        [
            Sequence(picks([0, 1], [2, 3]), "law"),
            Sequence(np.zeros((0, 1, 2)), "law"),
            Sequence(picks([4, 0]), "math"),
        ]
    )
    assert held.offsets.tolist() == [0, 2, 3]
    assert (held.experts, held.layers, held.top_k, held.sequences) == (5, 1, 2, 2)
    assert held.domains() == ("law", "math")
    assert held.of_domains(("math",)) == (1,)


@pytest.mark.parametrize(
    ("sequences", "experts", "words"),
    [
        ([], None, "no sequence with a token"),
        ([Sequence(picks([0, -1]))], None, r"picks\[token 0, layer 0, 1\] is -1, expected 0..0"),
        ([Sequence(picks([0, 1]), "law"), Sequence(picks([0, 9]))], 8, r"picks\[token 1, layer 0, 1\] is 9"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_place(sequences, experts, words):
    """Every pick of every token is needed: the message names the first that is missing or too high."""
    with pytest.raises(ReplayError, match=words):
        Recording.of(sequences, experts)


def test_an_unknown_domain_is_refused_with_those_that_there_are():
    """A slip in a domain's name must not replay nothing."""
    with pytest.raises(ReplayError, match="no domain 'physics'; it has 'law'"):
        Recording.of([Sequence(picks([0, 1]), "law")]).of_domains(("physics",))
