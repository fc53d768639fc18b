"""Small pools with two maps, loads and shares, for tests of plans."""

import numpy as np
from hypothesis import strategies as st
from test_agent_rounds import pools_with_two_maps


def ranks_of(facts, row):
    """The experts of each rank: int32 [slots] -> list of lists, empty slots left out."""
    return [[x for x in part if x >= 0] for part in row.reshape(facts.ranks, -1).tolist()]


def sound(facts, row):
    held = ranks_of(facts, row)
    return {x for part in held for x in part} == set(range(facts.experts)) and all(
        len(set(part)) == len(part) for part in held
    )


def emptied(facts, row, rng):
    """The row with some spare replicas taken out, so that it has empty slots."""
    row = row.copy()
    for slot in rng.permutation(row.size)[: row.size // 4]:
        if (row == row[slot]).sum() > 1:
            row[slot] = -1
    return row


@st.composite
def plans_with_loads(draw):
    """A pool, two sound maps that may have empty slots, and loads."""
    facts, base, target = draw(pools_with_two_maps())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        base = np.stack([emptied(facts, row, rng) for row in base])
        target = np.stack([emptied(facts, row, rng) for row in target])
    load = rng.pareto(1.5, (facts.layers, facts.experts)).round(3) + 0.01
    return facts, base, target, load


def random_shares(rows, rng):
    """Shares that add up to 1 for every expert: int32 [layers, slots] -> float64 [layers, slots]."""
    shares = np.where(rows >= 0, rng.uniform(0.1, 1.0, rows.shape), 0.0)
    for layer, row in enumerate(rows):
        for expert in set(row.tolist()) - {-1}:
            shares[layer, row == expert] /= shares[layer, row == expert].sum()
    return shares
