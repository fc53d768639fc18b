"""A group re-forms in the model check as it does in service: the same rows, the same loads, the same cases that cannot be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.facts import PoolFacts
from eplb.agent.emergency import emergency_rows
from eplb.errors import GroupTooSmall
from eplb.protocol.check.lives import joint_rows, reforms
from eplb.protocol.check.world import EMPTY, SHAPES, WRONG, Group, Rank

LAYERS = 2


def facts(shape, ranks):
    return PoolFacts(
        "p",
        ranks=ranks,
        nodes=1,
        slots_per_rank=shape.width,
        experts=shape.experts,
        top_k=1,
        model_layers=(0, 1),
    )


@st.composite
def crews(draw):
    """Ranks that hold any experts, damaged slots included, and who of them is alive and who a member."""
    size = draw(st.sampled_from(sorted(SHAPES)))
    shape = SHAPES[size]
    slot = st.integers(WRONG, shape.experts - 1)
    row = st.tuples(*[slot] * shape.width)
    ranks = [
        Rank(draw(st.tuples(*[row] * LAYERS)), (), alive=draw(st.booleans()) or n == 0) for n in range(size)
    ]
    others = [n for n in range(1, size) if draw(st.booleans())]
    return shape, tuple(ranks), (0, *others)


@given(crews())
def test_the_joint_map_is_the_agents(crew):
    shape, ranks, members = crew
    held = np.full((LAYERS, len(shape.base)), EMPTY, dtype=np.int32)
    for number in members:
        for layer, row in enumerate(ranks[number].holds if ranks[number].alive else ()):
            held[layer, number * shape.width : (number + 1) * shape.width] = np.maximum(row, EMPTY)
    found = joint_rows(shape, LAYERS, ranks, members)
    try:
        rows, _ = emergency_rows(facts(shape, len(ranks)), members, held)
    except GroupTooSmall:
        assert found is None
    else:
        assert found == tuple(map(tuple, rows.tolist()))


def lost(*, term):
    shape = SHAPES[2]
    alive = Rank((shape.base[:2],) * LAYERS, (shape.base,) * LAYERS, term=term)
    return shape, (alive, Rank((), (), alive=False)), Group(4, (0, 1))


def test_a_new_life_has_the_next_run_and_the_highest_term_that_a_survivor_has_seen():
    shape, ranks, group = lost(term=3)
    ways = {name: (now, life) for name, now, life in reforms(shape, LAYERS, ranks, group)}
    now, life = ways["re-form with"]
    assert life == Group(5, (0, 1))
    assert [rank.term for rank in now] == [3, 3]
    assert [rank.term for rank in ways["start anew"][0]] == [0, 0]


def test_without_a_survivor_the_engine_can_only_start_anew():
    shape, ranks, group = lost(term=3)
    gone = (ranks[1], ranks[1])
    assert [name for name, _, _ in reforms(shape, LAYERS, gone, group)] == ["start anew"]


@pytest.mark.parametrize("size", sorted(SHAPES))
def test_survivors_with_too_few_slots_wait_for_the_lost(size):
    shape = SHAPES[size]
    ranks = (Rank((shape.base[: shape.width],) * LAYERS, ()), *[Rank((), (), alive=False)] * (size - 1))
    names = [name for name, _, _ in reforms(shape, LAYERS, ranks, Group(1, tuple(range(size))))]
    assert names == ["re-form with", "start anew"]
