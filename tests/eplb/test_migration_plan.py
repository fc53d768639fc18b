"""Plans and waves: what changes, what it costs, and that every boundary is a sound map."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, RUN_ID, model_digest, refused, rotated, start_map
from hypothesis import given, settings
from hypothesis import strategies as st
from migration_world import plans_with_loads, random_shares, sound

from collectors.digests import layer_map_digests
from collectors.facts import PoolFacts
from collectors.shares import all_shares, even_shares
from eplb.agent.live import LiveMap
from eplb.agent.wire import Offer
from eplb.errors import NeedsStaging, OfferError, PlanError, PlanStale
from eplb.migration import make_plan, plan_is_live, remaining, waves
from eplb.migration.align import aligned
from eplb.migration.duration import layers_in_budget
from eplb.migration.plan_wire import decode_plan, encode_plan

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])
PRICED = PoolFacts("p", 4, 2, 3, 8, 2, (3, 4, 7), bytes_per_expert=44_040_192)


def plan_of(facts=FACTS, base=BASE, target=TARGET, **fields):
    return make_plan(facts, base, target, created_ms=1000, **fields)


def test_a_plan_names_the_layers_that_change_and_counts_arrivals_and_bytes():
    target = BASE.copy()
    target[1] = TARGET[1]
    plan = plan_of(PRICED, target=target)
    assert [change.layer for change in plan.changes] == [1]
    new = [set(TARGET[1, 3 * r : 3 * r + 3]) - set(BASE[1, 3 * r : 3 * r + 3]) for r in range(4)]
    assert plan.moves == sum(len(x) for x in new)
    assert plan.bytes == plan.moves * 44_040_192
    assert plan.base_digests == tuple(layer_map_digests((3, 4, 7), BASE).tolist())


def test_the_same_map_makes_a_plan_without_changes():
    plan = plan_of(target=BASE)
    assert (plan.changes, plan.moves, plan.bytes) == ((), 0, 0)


def test_new_shares_on_the_same_map_are_a_change_without_a_move():
    shares = np.stack([even_shares(row) for row in BASE])
    changed = shares.copy()
    changed[2, [0, 8]] = (0.9, 0.1)
    plan = plan_of(target=BASE, shares=changed, base_shares=shares)
    assert [change.layer for change in plan.changes] == [2]
    assert plan.moves == 0


def test_the_same_proposal_made_again_is_another_plan():
    again = make_plan(FACTS, BASE, TARGET, created_ms=1001)
    assert plan_of().plan_id == plan_of().plan_id
    assert plan_of().plan_id != again.plan_id


def test_maps_of_another_shape_are_a_named_error():
    with pytest.raises(PlanError, match="target is"):
        plan_of(target=TARGET[:, :-1])


@settings(max_examples=100, deadline=None)
@given(plans_with_loads())
def test_a_plan_is_read_as_it_was_written(pool):
    facts, base, target, load = pool
    plan = make_plan(
        facts, base, target, created_ms=5, gain_ratio=0.25, reasons=[("gain", "it pays")], load=load
    )
    assert decode_plan(encode_plan(plan)) == plan


@given(st.data())
def test_a_plan_damaged_in_any_byte_is_refused_or_means_the_same(data):
    raw = bytearray(encode_plan(plan_of()))
    raw[data.draw(st.integers(min_value=0, max_value=len(raw) - 1))] ^= data.draw(
        st.integers(min_value=1, max_value=255)
    )
    try:
        read = decode_plan(bytes(raw))
    except OfferError:
        return
    assert read == plan_of()


def walk(facts, base, parts, plan):
    """Serve waves as ranks would: each offer is one that a rank stages; yields the live map after each."""
    live = LiveMap(facts, base, None, 0)
    for wave, changes in enumerate(parts):
        offer = Offer(facts.pool, RUN_ID, model_digest(), 1, plan.plan_id, wave, len(parts), 1, 30.0, changes)
        assert refused(facts, live, offer, 1) is None
        live.replace(changes, (), 1)
        yield live


@settings(max_examples=150, deadline=None)
@given(plans_with_loads(), st.integers(min_value=1, max_value=9), st.booleans())
def test_every_wave_fits_staging_and_every_boundary_is_a_sound_map(pool, staging_slots, loaded):
    """Applying waves in order leads from base to target, whatever the order within the ranks was."""
    facts, base, target, load = pool
    limit = min(staging_slots, facts.slots_per_rank)
    given_load = load if loaded else None
    try:
        plan = make_plan(facts, base, target, created_ms=5, load=given_load, wave_slots=limit)
    except NeedsStaging as error:
        limit = max(error.slots, limit + 1)
        plan = make_plan(facts, base, target, created_ms=5, load=given_load, wave_slots=facts.slots_per_rank)
        limit = facts.slots_per_rank
    before = base
    parts = waves(facts, plan, base, plan.base_digests, staging_slots=limit)
    for live in walk(facts, base, parts, plan):
        fresh = ((live.rows != before) & (live.rows >= 0)).reshape(facts.layers, facts.ranks, -1)
        assert int(fresh.sum(axis=(0, 2)).max()) <= limit
        assert all(sound(facts, row) for row in live.rows)
        before = live.rows.copy()
    wanted, _ = aligned(facts, base, target)
    assert np.array_equal(before, wanted)
    assert plan_is_live(plan, layer_map_digests(facts.model_layers, before).tolist())


@settings(max_examples=100, deadline=None)
@given(plans_with_loads(), st.data())
def test_waves_seen_from_any_boundary_are_the_rest_of_the_plan(pool, data):
    facts, base, target, load = pool
    plan = make_plan(facts, base, target, created_ms=5, load=load)
    parts = waves(facts, plan, base, plan.base_digests)
    done = data.draw(st.integers(min_value=0, max_value=len(parts)))
    live = LiveMap(facts, base, None, 0)
    for changes in parts[:done]:
        live.replace(changes, (), None)
    assert waves(facts, plan, live.rows, live.wire_digests) == parts[done:]
    assert plan_is_live(plan, live.wire_digests) == (done == len(parts))
    assert len(remaining(plan, live.wire_digests)) == 0 or done < len(parts)


@settings(max_examples=100, deadline=None)
@given(plans_with_loads(), st.integers(0, 2**32 - 1))
def test_a_plan_with_weighted_dispatch_leads_to_the_wanted_shares(pool, seed):
    facts, base, target, load = pool
    rng = np.random.default_rng(seed)
    before, after = (all_shares(rows, random_shares(rows, rng)) for rows in (base, target))
    plan = make_plan(facts, base, target, created_ms=5, base_shares=before, shares=after, load=load)
    live = LiveMap(facts, base, before, 0)
    assert live.wire_digests == plan.base_digests
    for number, changes in enumerate(waves(facts, plan, live.rows, live.wire_digests)):
        offer = Offer(facts.pool, RUN_ID, model_digest(), 1, plan.plan_id, number, 99, 1, 30.0, changes)
        assert refused(facts, live, offer, 1) is None
        live.replace(changes, (), 1)
    rows, shares = aligned(facts, base, target, after)
    assert np.array_equal(live.rows, rows)
    assert np.array_equal(live.shares, all_shares(rows, shares))
    assert decode_plan(encode_plan(plan)) == plan


def test_links_of_one_layer_in_a_wave_are_one_change_and_links_too_many_wait():
    """Two chains of two links with room for three arrivals: the first chain is merged, the second is cut."""
    facts = PoolFacts("p", 2, 1, 4, 4, 1, (0, 1))
    base = np.tile(np.array([0, 1, -1, -1, 2, 3, -1, -1], dtype=np.int32), (2, 1))
    target = np.tile(np.array([0, 1, 2, 3, 2, 3, -1, -1], dtype=np.int32), (2, 1))
    plan = make_plan(facts, base, target, created_ms=1, wave_slots=1)
    assert [change.layer for change in plan.changes] == [0, 0, 1, 1]
    parts = waves(facts, plan, base, plan.base_digests, staging_slots=3)
    assert [[change.layer for change in part] for part in parts] == [[0, 1], [1]]
    assert parts[0][0].base_digest == plan.base_digests[0]
    assert parts[0][0].target_digest == plan.changes[1].target_digest


def test_a_layer_whose_experts_have_one_copy_each_is_never_cut():
    base = np.arange(12, dtype=np.int32)[None, :].repeat(3, axis=0)
    facts = replace(FACTS, experts=12)
    plan = make_plan(facts, base, np.roll(base, 3, axis=1), created_ms=1)
    six = waves(facts, plan, base, plan.base_digests, staging_slots=6)
    assert [[change.layer for change in part] for part in six] == [[0, 1], [2]]
    assert [[c.layer for c in part] for part in waves(facts, plan, base, plan.base_digests)] == [
        [0],
        [1],
        [2],
    ]


def test_a_change_that_does_not_fit_is_refused_with_the_staging_it_needs():
    """Two ranks exchange all they hold; either of the two swaps alone would load a rank with more than 5."""
    facts = PoolFacts("p", 2, 1, 2, 4, 1, (0,))
    base, target = np.array([[0, 1, 2, 3]], dtype=np.int32), np.array([[2, 3, 0, 1]], dtype=np.int32)
    load = np.array([[4.0, 1.0, 2.0, 3.0]])
    with pytest.raises(NeedsStaging, match=r"needs_staging\(2\)"):
        make_plan(facts, base, target, created_ms=1, wave_slots=1, load=load)
    assert len(make_plan(facts, base, target, created_ms=1, wave_slots=2, load=load).changes) == 1
    assert len(make_plan(facts, base, target, created_ms=1, wave_slots=1).changes) == 2


def test_a_link_larger_than_a_limit_is_refused_and_larger_than_the_pace_goes_alone():
    facts = PoolFacts("p", 2, 1, 2, 4, 1, (0,), bytes_per_expert=10)
    base, target = np.array([[0, 1, 2, 3]], dtype=np.int32), np.array([[2, 3, 0, 1]], dtype=np.int32)
    plan = make_plan(facts, base, target, created_ms=1)
    with pytest.raises(NeedsStaging, match=r"needs_staging\(2\)"):
        waves(facts, plan, base, plan.base_digests, bytes_per_rank=10)
    assert waves(facts, plan, base, plan.base_digests, pace_bytes=10) == [plan.changes]


def test_what_gains_most_for_each_expert_that_moves_comes_first():
    """Both layers get a replica of expert 0, which is hotter in layer 1."""
    facts = PoolFacts("p", 2, 1, 3, 4, 1, (0, 1))
    base = np.tile(np.array([0, 1, -1, 2, 3, -1], dtype=np.int32), (2, 1))
    target = base.copy()
    target[:, 5] = 0
    load = np.array([[3.0, 2.0, 1.0, 1.0], [9.0, 1.0, 1.0, 1.0]])
    plan = make_plan(facts, base, target, created_ms=1, load=load)
    assert [change.layer for change in plan.changes] == [1, 0]


def test_MIG_05_the_byte_budget_of_a_rank_cuts_the_plan_into_waves():  # noqa: N802
    """58 layers of 9 arrivals x 44,040,192 bytes a rank; 100 ms at 20 GB/s hold 5 layers: 12 waves."""
    layers, width, each = 58, 9, 44_040_192
    facts = PoolFacts("p", 2, 1, width, 18, 8, tuple(range(layers)), bytes_per_expert=each)
    base = np.tile(np.arange(18, dtype=np.int32), (layers, 1))
    plan = make_plan(facts, base, np.roll(base, width, axis=1), created_ms=1)
    budget = int(0.1 * 20e9)
    assert layers_in_budget(width * each, link_bytes_per_s=20e9, budget_s=0.1) == 5
    parts = waves(facts, plan, base, plan.base_digests, staging_slots=layers * width, bytes_per_rank=budget)
    assert [len(part) for part in parts] == [5] * 11 + [3]


def test_a_live_map_that_is_nowhere_in_the_chain_makes_the_plan_stale():
    other = BASE.copy()
    other[1] = np.roll(BASE[1], 6)
    with pytest.raises(PlanStale, match="layer 1"):
        remaining(plan_of(), layer_map_digests(FACTS.model_layers, other).tolist())


def test_shares_alone_are_waves_without_arrivals():
    shares = np.stack([even_shares(row) for row in BASE])
    shares[:, [0, 8]] = (0.9, 0.1)
    plan = plan_of(target=BASE, shares=shares)
    (wave,) = waves(FACTS, plan, BASE, plan.base_digests, staging_slots=1)
    assert [change.layer for change in wave] == [0, 1, 2]
    assert (plan.moves, plan.bytes) == (0, 0)


def test_a_plan_cannot_be_changed():
    with pytest.raises(AttributeError):
        plan_of().moves = 3
    assert replace(plan_of(), moves=3).moves == 3
