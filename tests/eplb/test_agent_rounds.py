"""Sources and rounds: everything arrives once, from a holder, and nobody is asked twice in a round."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from agent_crew import FACTS, change, rotated, start_map
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.facts import PoolFacts
from eplb.agent.rounds import (
    Arrival,
    Copy,
    contention_free_rounds,
    fewest_rounds,
    node_of_rank,
    own_arrivals,
    wave_copies,
)
from eplb.errors import OfferError


@st.composite
def pools_with_two_maps(draw):
    """A pool and two maps of it without twins, each covering all experts."""
    ranks = draw(st.integers(min_value=1, max_value=6))
    per_rank = draw(st.integers(min_value=1, max_value=4))
    experts = draw(st.integers(min_value=per_rank, max_value=ranks * per_rank))
    layers = draw(st.integers(min_value=1, max_value=3))
    nodes = draw(st.sampled_from([n for n in (1, 2, 3) if n <= ranks]))
    facts = PoolFacts("p", ranks, nodes, per_rank, experts, 1, tuple(range(layers)))
    rng = np.random.default_rng(draw(st.integers(min_value=0, max_value=2**32)))
    return facts, *(np.stack([random_row(facts, rng) for _ in range(layers)]) for _ in range(2))


def random_row(facts: PoolFacts, rng: np.random.Generator) -> np.ndarray:
    # Dealing experts in a shuffled cycle gives a rank the same one twice only if it has more slots than experts.
    order = rng.permutation(facts.experts)
    return order[np.arange(facts.slots) % facts.experts].astype(np.int32)


def all_copies(facts, base, target):
    return wave_copies(
        facts, base, [change(facts, layer, base[layer], target[layer]) for layer in range(facts.layers)]
    )


def rank_of(facts, slot):
    return slot // facts.slots_per_rank


@settings(max_examples=150)
@given(pools_with_two_maps())
def test_every_changed_slot_gets_its_expert_from_a_slot_that_holds_it(pool):
    facts, base, target = pool
    copies = all_copies(facts, base, target)
    assert all(base[c.layer, c.source] == c.expert == target[c.layer, c.destination] for c in copies)
    changed = {(int(layer), int(slot)) for layer, slot in np.argwhere(base != target)}
    assert {(c.layer, c.destination) for c in copies} == changed
    assert len(copies) == len(changed)


@settings(max_examples=150)
@given(pools_with_two_maps(), st.randoms())
def test_a_rank_makes_room_for_just_what_the_copies_bring_it(pool, random):
    facts, base, target = pool
    target = np.where(np.random.default_rng(random.getrandbits(32)).random(target.shape) < 0.2, -1, target)
    changes = [change(facts, layer, base[layer], target[layer]) for layer in range(facts.layers)]
    random.shuffle(changes)
    copies = wave_copies(facts, base, changes)
    for rank in range(facts.ranks):
        wanted = [Arrival(c.index, c.layer, c.expert, c.destination) for c in copies]
        wanted = [arrival for arrival in wanted if rank_of(facts, arrival.destination) == rank]
        assert list(own_arrivals(facts, rank, base, changes)) == wanted


@settings(max_examples=150)
@given(pools_with_two_maps())
def test_a_rank_sends_an_expert_once_to_a_destination_and_never_what_is_there_already(pool):
    facts, base, target = pool
    copies = all_copies(facts, base, target)
    sent = Counter((c.layer, c.expert, rank_of(facts, c.destination)) for c in copies)
    assert max(sent.values(), default=1) == 1
    for copy in copies:
        goal = rank_of(facts, copy.destination)
        held = base[copy.layer, goal * facts.slots_per_rank : (goal + 1) * facts.slots_per_rank]
        assert (rank_of(facts, copy.source) == goal) == (copy.expert in held)


@settings(max_examples=150)
@given(pools_with_two_maps(), st.integers(min_value=1, max_value=6))
def test_rounds_are_as_few_as_busiest_end_and_batch_size_allow_and_free_of_contention(pool, limit):
    facts, base, target = pool
    copies = all_copies(facts, base, target)
    rounds = contention_free_rounds(facts, copies, limit)
    between = [c for c in copies if rank_of(facts, c.source) != rank_of(facts, c.destination)]
    assert sorted((c for part in rounds for c in part), key=lambda c: c.index) == between
    busiest = Counter(("out", rank_of(facts, c.source)) for c in between)
    busiest += Counter(("in", rank_of(facts, c.destination)) for c in between)
    assert len(rounds) == max(max(busiest.values(), default=0), -(-len(between) // limit))
    assert fewest_rounds(facts, copies, limit) == len(rounds)
    for part in rounds:
        assert len(part) <= limit
        assert len({rank_of(facts, c.source) for c in part}) == len(part)
        assert len({rank_of(facts, c.destination) for c in part}) == len(part)


@settings(max_examples=150, deadline=None)
@given(pools_with_two_maps())
def test_the_busiest_sender_sends_no_more_than_in_the_best_of_all_choices(pool):
    """Against all choices among the nearest holders."""
    facts, base, target = pool
    between = [
        c
        for c in all_copies(facts, base, target)
        if rank_of(facts, c.source) != rank_of(facts, c.destination)
    ]
    choices = []
    for copy in between:
        holders = {rank_of(facts, int(slot)) for slot in np.flatnonzero(base[copy.layer] == copy.expert)}
        node = node_of_rank(facts, rank_of(facts, copy.destination))
        near = {rank for rank in holders if node_of_rank(facts, rank) == node}
        assert rank_of(facts, copy.source) in (near or holders)
        choices.append(sorted(near or holders))
    if not between or np.prod([len(x) for x in choices], dtype=float) > 3000:
        return
    best = min(max(Counter(choice).values()) for choice in product(*choices))
    assert max(Counter(rank_of(facts, c.source) for c in between).values()) == best


@settings(max_examples=50)
@given(pools_with_two_maps(), st.randoms())
def test_every_rank_computes_the_same_rounds_whatever_order_the_offer_has(pool, random):
    facts, base, target = pool
    changes = [change(facts, layer, base[layer], target[layer]) for layer in range(facts.layers)]
    first = contention_free_rounds(facts, wave_copies(facts, base, changes))
    random.shuffle(changes)
    assert contention_free_rounds(facts, wave_copies(facts, base.copy(), changes)) == first


def test_a_rank_that_left_neither_sends_nor_receives():
    facts = PoolFacts("p", 3, 1, 2, 4, 1, (0,))
    base = np.array([[0, 1, 2, 3, 0, 1]], dtype=np.int32)
    target = base.copy()
    target[0, 2] = 0
    asked = [change(facts, 0, base[0], target[0])]
    assert {c.source for c in wave_copies(facts, base, asked, members=(1, 2))} == {4}
    with pytest.raises(OfferError, match="has left the group"):
        wave_copies(facts, base, asked, members=(0, 2))
    with pytest.raises(OfferError, match="expert 0: no slot"):
        wave_copies(facts, base, asked, members=(1,))


def test_MIG_04_a_large_batch_is_cut_by_global_order_the_same_on_both_ends():  # noqa: N802
    """100 moves between 200 ranks, at most 32 in a batch: 32, 32, 32, 4, and no pair is split over two batches."""
    facts = PoolFacts("p", 200, 1, 1, 100, 1, (0,))
    copies = tuple(Copy(i, 0, i, i, 100 + i) for i in range(100))
    rounds = contention_free_rounds(facts, copies)
    assert [len(part) for part in rounds] == [32, 32, 32, 4]
    assert [c.index for part in rounds for c in part] == list(range(100))


def test_a_source_on_the_same_node_comes_first_and_load_is_spread_over_equal_holders():
    facts = PoolFacts("p", 4, 2, 3, 8, 1, (0,))
    base = np.array([[0, 1, 2, 3, 4, 5, 6, 0, 1, 7, 0, 2]], dtype=np.int32)
    target = base.copy()
    target[0, 3] = 0  # rank 1 (node 0) wants expert 0: ranks 0, 2 and 3 hold it
    (copy,) = all_copies(facts, base, target)
    assert copy.source == 0
    one_node = PoolFacts("p", 4, 1, 3, 8, 1, (0, 1))
    both = all_copies(one_node, np.vstack([base, base]), np.vstack([target, target]))
    assert len({rank_of(one_node, c.source) for c in both}) == 2


def test_a_kept_expert_keeps_its_slot_and_moves_nothing():
    rows = start_map()
    assert all_copies(FACTS, rows, rows) == ()


def test_an_expert_that_nobody_holds_is_a_named_error():
    rows = start_map()
    broken = rows.copy()
    broken[0, 5] = -1
    with pytest.raises(OfferError, match="layer 0 expert 5"):
        all_copies(FACTS, broken, np.stack([rotated(row) for row in rows]))
