"""Rules of engines without empty slots: what rows can stand for, and what no such engine can serve."""

import numpy as np
import pytest

from eplb.errors import FileError
from eplb.formats.facts import Layers, MapFacts
from eplb.formats.map_rules import check_sound, map_of, uneven_shares
from eplb.formats.neutral import NeutralMap
from eplb.start_map import start_map
from placement import Placement

ROWS = np.array([[3, 1, 2, 0, 3, 1]])


def neutral(rows, experts=4, shares=None, layers=(7,)):
    table = np.array(rows)
    return NeutralMap(2, 1, table.shape[1] // 2, experts, layers, Placement(table, shares))


def refused(action, *arguments):
    with pytest.raises(FileError) as caught:
        action(*arguments)
    return str(caught.value)


def test_rows_and_facts_make_a_map():
    """Experts are those that are named, unless it is said; layers of a draft model pass through."""
    found = map_of(ROWS, MapFacts(ranks=2, layers=Layers((7,), 9, (9,))), "rows")
    assert (found.ranks, found.nodes, found.slots_per_rank, found.experts) == (2, 1, 3, 4)
    assert found.layers == Layers((7,), 9, (9,))
    assert map_of(ROWS, MapFacts(ranks=2, experts=6), "rows").experts == 6


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        (MapFacts(), "give --ranks"),
        (MapFacts(ranks=4), "6 slots a layer cannot be shared evenly by 4 ranks"),
        (MapFacts(ranks=2, nodes=3), "3 nodes for 2 ranks"),
        (MapFacts(ranks=2, experts=3), "rows of layer 0, slot 0 is 3, expected an expert, 0..2"),
        (MapFacts(ranks=2, experts=7), "7 experts (highest id 3) do not fit into 6 slots"),
        (MapFacts(ranks=2, experts=0), "0 experts"),
    ],
)
def test_facts_that_do_not_fit_are_refused(facts, part):
    """With both numbers, or the place."""
    assert part in refused(map_of, ROWS, facts, "rows")


def test_a_wild_id_is_refused_before_experts_are_counted():
    """One id of 2^40 would be that many experts; more than slots there cannot be."""
    for wild in (6, 2**40, -1):
        rows = np.array([[3, 1, 2, 0, 3, wild]])
        assert "slot 5" in refused(map_of, rows, MapFacts(ranks=2, layers=Layers((7,))), "rows")
    too_wide = np.zeros((1, 2**20 + 2), dtype=np.int64)
    assert "more than any pool" in refused(map_of, too_wide, MapFacts(ranks=2), "rows")


@pytest.mark.parametrize(
    ("what", "part"),
    [
        (neutral([[0, 1, 2, 3, -1, 1]]), "slot 4 of model layer 7 is empty"),
        (neutral([[0, 1, 2, 3, -1, 1]], layers=None), "slot 4 of row 0 is empty"),
        (neutral([[0, 1, 2, 2, 0, 1]]), "expert 3 has no slot"),
        (neutral([[0, 0, 2, 3, 0, 1]]), "second time on its rank"),
        (neutral([[0, 1, 2, 3, 0, 1]], experts=7), "7 experts (highest id 3) do not fit"),
    ],
)
def test_what_no_engine_can_serve_is_not_sound(what, part):
    """Each with its place."""
    assert part in refused(check_sound, what)


def test_a_sound_map_passes():
    """And so does the row that engines start with."""
    check_sound(neutral(ROWS))
    check_sound(neutral(start_map(1, 4, 6)))
    assert start_map(1, 4, 6).tolist() == [[0, 1, 2, 3, 0, 1]]


def test_even_shares_say_nothing():
    """1 / copies is what an engine does without being told; an empty slot has none."""
    even = [[0.5, 0.5, 1.0, 1.0, 0.5, 0.5]]
    assert not uneven_shares(neutral(ROWS))
    assert not uneven_shares(neutral(ROWS, shares=even))
    assert uneven_shares(neutral(ROWS, shares=[[0.25, 0.5, 1.0, 1.0, 0.75, 0.5]]))
    assert not uneven_shares(neutral([[0, 1, 2, 3, -1, -1]], shares=[[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]]))
