"""Experts that no living rank holds get a slot: never a last copy's, never a second copy's on a rank, with as few copies lost as can be."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.facts import PoolFacts
from eplb.agent.emergency import emergency_rows, living_copies
from eplb.errors import GroupTooSmall

PLN_09 = PoolFacts("p", ranks=4, nodes=1, slots_per_rank=3, experts=8, top_k=2, model_layers=(0,))


def survivors(facts, row, members):
    """One layer's row after the other ranks are gone."""
    parts = np.array(row, dtype=np.int32).reshape(facts.ranks, facts.slots_per_rank)
    dead = [rank for rank in range(facts.ranks) if rank not in members]
    parts[dead] = -1
    return parts.reshape(1, -1)


def least_copies_lost(facts, members, row):
    """Copies that must go, by trying every order of every choice of slots: for small cases only."""
    missing = [e for e in range(facts.experts) if e not in row]
    own = [
        s for rank in members for s in range(rank * facts.slots_per_rank, (rank + 1) * facts.slots_per_rank)
    ]
    best = None
    for slots in permutations(own, len(missing)):
        after = row.copy()
        after[list(slots)] = missing
        if set(range(facts.experts)) <= set(after.tolist()):
            lost = sum(row[slot] >= 0 for slot in slots)
            best = lost if best is None else min(best, lost)
    return best


@st.composite
def broken_groups(draw):
    facts = PoolFacts(
        "p", ranks=3, nodes=1, slots_per_rank=2, experts=draw(st.integers(1, 4)), top_k=1, model_layers=(0, 1)
    )
    members = tuple(sorted(draw(st.sets(st.integers(0, 2), min_size=1))))
    rows = []
    for _ in range(facts.layers):
        ids = st.integers(-1, facts.experts - 1)
        rank = st.tuples(ids, ids).map(lambda pair: pair if pair[0] != pair[1] else (pair[0], -1))
        rows.append(
            survivors(facts, [x for part in draw(st.tuples(rank, rank, rank)) for x in part], members)[0]
        )
    return facts, members, np.stack(rows)


def test_pln_09_a_dead_ranks_last_copy_is_marked_for_reload_and_nothing_touches_the_dead_rank():
    row = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 3, 6]
    members = (0, 1, 3)
    rows = survivors(PLN_09, row, members)
    after, loads = emergency_rows(PLN_09, members, rows)
    assert [expert for _, _, expert in loads] == [7]
    assert all(slot // PLN_09.slots_per_rank in members for _, slot, _ in loads)
    assert (after[0, 6:9] == -1).all()
    assert living_copies(PLN_09, after).min() >= 1
    ((_, slot, _),) = loads
    assert rows[0, slot] in {1, 3}, "a copy of an expert that has another one makes room"


def test_empty_slots_are_taken_first_and_ranks_in_turn():
    facts = PoolFacts("p", ranks=3, nodes=1, slots_per_rank=4, experts=8, top_k=1, model_layers=(0,))
    rows = np.array([[0, 1, -1, -1, 2, 3, -1, -1, -1, -1, -1, -1]], dtype=np.int32)
    after, loads = emergency_rows(facts, (0, 1), rows)
    assert sorted(slot // 4 for _, slot, _ in loads) == [0, 0, 1, 1]
    assert all(after[0, slot] == expert for _, slot, expert in loads)


def test_layers_share_the_reading_among_the_ranks():
    facts = PoolFacts("p", ranks=2, nodes=1, slots_per_rank=3, experts=3, top_k=1, model_layers=(0, 1))
    rows = np.array([[0, 1, -1, -1, 0, 1], [0, 1, -1, -1, 0, 1]], dtype=np.int32)
    _, loads = emergency_rows(facts, (0, 1), rows)
    assert sorted(slot // 3 for _, slot, _ in loads) == [0, 1]


def test_a_group_with_too_few_slots_is_told_how_many_ranks_must_live():
    facts = PoolFacts("p", ranks=4, nodes=1, slots_per_rank=2, experts=5, top_k=1, model_layers=(0,))
    with pytest.raises(GroupTooSmall, match=r"5 experts need 1 more; at least 3 ranks must live"):
        emergency_rows(facts, (1, 3), np.full((1, 8), -1, dtype=np.int32))


@settings(max_examples=150, deadline=None)
@given(broken_groups())
def test_every_expert_has_a_slot_no_rank_a_twin_and_no_more_copies_go_than_must(group):
    facts, members, rows = group
    if len(members) * facts.slots_per_rank < facts.experts:
        with pytest.raises(GroupTooSmall):
            emergency_rows(facts, members, rows)
        return
    after, loads = emergency_rows(facts, members, rows)
    assert living_copies(facts, after).min() >= 1
    for layer, row in enumerate(after):
        lost = sum(rows[at, slot] >= 0 for at, slot, _ in loads if at == layer)
        assert lost == least_copies_lost(facts, members, rows[layer])
        for rank in range(facts.ranks):
            held = [x for x in row[rank * 2 : rank * 2 + 2].tolist() if x >= 0]
            assert len(set(held)) == len(held)
            assert rank in members or not held
    changed = {(int(layer), int(slot)) for layer, slot in np.argwhere(after != rows)}
    assert changed == {(layer, slot) for layer, slot, _ in loads}
