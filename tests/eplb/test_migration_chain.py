"""The chain of one layer: sound and no slower than the start at every boundary, within staging, and no staging asked for in vain."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from migration_world import plans_with_loads, random_shares, sound

from collectors.shares import even_shares
from eplb.errors import NeedsStaging
from eplb.migration.align import aligned
from eplb.migration.chain import LINKS_MAX, links_of
from eplb.migration.parts import parts_of
from eplb.migration.row import RowChange


def change_of(facts, base, target, load=None, shares=(None, None)):
    rows, after = aligned(facts, base, target, shares[1])
    parts = (None, None) if after is None else (shares[0][0], after[0])
    width, experts = facts.slots_per_rank, facts.experts
    return RowChange(0, base[0], rows[0], *parts, width, experts, None if load is None else load[0])


def busiest(change, row, shares=None):
    """Tokens of the busiest rank, counted one by one."""
    shares = even_shares(row) if shares is None else shares
    load = [0.0] * (row.size // change.slots_per_rank)
    for slot, expert in enumerate(row.tolist()):
        if expert >= 0:
            load[slot // change.slots_per_rank] += change.load[expert] * shares[slot]
    return max(load)


def least_staging(facts, change):
    """All orders of all slots: the smallest wave with which some order stays sound and no slower than the start."""
    slots = change.changed
    ceiling = max(busiest(change, change.base), busiest(change, change.target)) * (1 + 1e-12)
    rows = [change.row([s for i, s in enumerate(slots) if m >> i & 1]) for m in range(1 << len(slots))]
    allowed = [sound(facts, row) and busiest(change, row) <= ceiling for row in rows]

    def arrivals(mask):
        ranks = [
            s // facts.slots_per_rank for i, s in enumerate(slots) if mask >> i & 1 and change.target[s] >= 0
        ]
        return max((ranks.count(r) for r in ranks), default=0)

    best = {0: 0}
    for mask in range(1, len(rows)):
        if allowed[mask]:
            cost = [max(best[b], arrivals(mask ^ b)) for b in best if b & mask == b]
            best[mask] = min(cost)
    return best[len(rows) - 1]


@settings(max_examples=200, deadline=None)
@given(plans_with_loads(), st.data())
def test_every_boundary_is_sound_and_no_slower_than_the_start_and_fits(pool, data):
    facts, base, target, load = pool
    change = change_of(facts, base, target, load)
    limit = data.draw(st.integers(1, facts.slots_per_rank))
    try:
        links = links_of(change, limit)
    except NeedsStaging as error:
        limit = error.slots
        links = links_of(change, limit)
    assert sorted(chain(*links)) == change.changed
    for end in range(1, len(links) + 1):
        row = change.row(list(chain(*links[:end])))
        assert sound(facts, row)
        assert busiest(change, row) <= max(busiest(change, base[0]), busiest(change, change.target)) * (
            1 + 1e-12
        )
        assert change.arrivals(links[end - 1]) <= limit


@settings(max_examples=300, deadline=None)
@given(plans_with_loads())
def test_a_refusal_names_the_least_staging_that_works(pool):
    """Against a search of all orders."""
    facts, base, target, load = pool
    change = change_of(facts, base, target, load)
    if not 0 < len(change.changed) <= 8:
        return
    try:
        links_of(change, 1)
        found = 1
    except NeedsStaging as error:
        found = error.slots
    assert found == max(1, least_staging(facts, change))


@settings(max_examples=200, deadline=None)
@given(plans_with_loads())
def test_parts_done_in_any_order_that_waits_are_sound(pool):
    facts, base, target, _ = pool
    change = change_of(facts, base, target)
    parts = parts_of(change.base, change.target, facts.experts, facts.slots_per_rank)
    assert sorted(chain(*(part.slots for part in parts))) == change.changed
    rng = np.random.default_rng(len(parts))
    done = []
    while len(done) < len(parts):
        ready = [
            i for i, part in enumerate(parts) if i not in done and (part.after < 0 or part.after in done)
        ]
        done.append(int(rng.choice(ready)))
        assert sound(facts, change.row(list(chain(*(parts[i].slots for i in done)))))


@settings(max_examples=100, deadline=None)
@given(plans_with_loads(), st.integers(0, 2**32 - 1))
def test_shares_add_up_at_every_boundary_and_end_as_they_are_wanted(pool, seed):
    facts, base, target, load = pool
    rng = np.random.default_rng(seed)
    change = change_of(facts, base, target, load, (random_shares(base, rng), random_shares(target, rng)))
    links = links_of(change, facts.slots_per_rank)
    for end in range(len(links) + 1):
        applied = list(chain(*links[:end]))
        row, shares = change.row(applied), change.shares(applied)
        for expert in range(facts.experts):
            assert shares[row == expert].sum() == pytest.approx(1.0)
        assert (shares[row < 0] == 0).all()
    assert np.array_equal(shares, change.target_shares)


def test_a_swap_of_only_copies_is_one_part_and_a_chain_of_them_is_not():
    swap = parts_of(np.array([0, 1, 2, 3]), np.array([1, 0, 2, 3]), 4, 1)
    assert [part.slots for part in swap] == [(0, 1)]
    chained = parts_of(np.array([0, 1, 2, -1]), np.array([-1, 0, 1, 2]), 3, 1)
    assert [part.slots for part in chained] == [(3,), (2,), (1,), (0,)]
    assert [part.after for part in chained] == [-1, 0, 1, 2]


def test_another_copy_that_leaves_too_opens_a_ring():
    """Expert 0 leaves slots 0 and 4: as long as one of them is there, the ring 0, 1, 2, 3 can be done slot by slot."""
    parts = parts_of(np.array([0, 1, 2, 3, 0]), np.array([1, 2, 3, 0, 1]), 4, 1)
    assert sorted(len(part.slots) for part in parts) == [1] * 5


def test_a_base_without_a_slot_for_an_expert_is_changed_in_one_part():
    parts = parts_of(np.array([0, 1, 1, -1]), np.array([0, 1, 2, 1]), 3, 1)
    assert [part.slots for part in parts] == [(2, 3)]


def test_what_relieves_the_busiest_rank_comes_first_and_alone():
    """Ranks of two slots: rank 0 is hot by expert 0; its new replica is a link before the swap of cold experts."""
    base = np.array([0, 1, 2, 3, 4, 1, 5, 2], dtype=np.int32)
    target = np.array([0, 1, 2, 4, 3, 1, 5, 0], dtype=np.int32)
    load = np.array([8.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    links = links_of(RowChange(0, base, target, None, None, 2, 6, load), 2)
    assert links[0] == (7,)
    assert sorted(links[1]) == [3, 4]


def test_a_large_change_has_few_links_of_which_the_first_are_fine():
    rng = np.random.default_rng(1)
    base = np.arange(64, dtype=np.int32)
    change = RowChange(
        0, base, rng.permutation(base).astype(np.int32), None, None, 4, 64, rng.pareto(1.5, 64)
    )
    links = links_of(change, 4)
    assert len(links) <= LINKS_MAX
