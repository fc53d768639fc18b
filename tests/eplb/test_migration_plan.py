"""Plans and waves: what changes, what it costs, and that every boundary is a sound map."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, RUN_ID, model_digest, refused, rotated, start_map
from hypothesis import given, settings
from hypothesis import strategies as st
from test_agent_rounds import pools_with_two_maps

from collectors.digests import layer_map_digests
from collectors.facts import PoolFacts
from collectors.shares import even_shares
from eplb.agent.live import LiveMap
from eplb.agent.wire import Offer
from eplb.errors import OfferError, PlanError, PlanStale
from eplb.migration import make_plan, waves
from eplb.migration.plan import decode_plan, encode_plan

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


@settings(max_examples=50)
@given(pools_with_two_maps())
def test_a_plan_is_read_as_it_was_written(pool):
    facts, base, target = pool
    plan = make_plan(facts, base, target, created_ms=5, gain_ratio=0.25, reasons=[("gain", "it pays")])
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


@settings(max_examples=100)
@given(pools_with_two_maps(), st.integers(min_value=1, max_value=9))
def test_every_wave_fits_staging_and_every_boundary_is_a_sound_map(pool, staging_slots):
    """Applying waves in order leads from base to target; each offer is one that a rank would stage."""
    facts, base, target = pool
    plan = make_plan(facts, base, target, created_ms=5)
    limit = max(staging_slots, facts.slots_per_rank)
    live = LiveMap(facts, base, None, 0)
    parts = waves(facts, plan, base, staging_slots=limit)
    for wave, changes in enumerate(parts):
        offer = Offer(facts.pool, RUN_ID, model_digest(), 1, plan.plan_id, wave, len(parts), 1, 30.0, changes)
        assert refused(facts, live, offer, 1) is None
        before = live.rows.copy()
        live.replace(changes, (), 1)
        fresh = ((live.rows != before) & (live.rows >= 0)).reshape(facts.layers, facts.ranks, -1)
        assert int(fresh.sum(axis=(0, 2)).max()) <= limit
    assert np.array_equal(live.rows, target)


@settings(max_examples=50)
@given(pools_with_two_maps(), st.data())
def test_waves_seen_from_any_boundary_are_the_rest_of_the_plan(pool, data):
    facts, base, target = pool
    plan = make_plan(facts, base, target, created_ms=5)
    parts = waves(facts, plan, base)
    done = data.draw(st.integers(min_value=0, max_value=len(parts)))
    live = LiveMap(facts, base, None, 0)
    for changes in parts[:done]:
        live.replace(changes, (), None)
    assert waves(facts, plan, live.rows) == parts[done:]


def test_a_layer_is_never_cut_so_swaps_stay_whole():
    parts = waves(FACTS, plan_of(), BASE, staging_slots=6)
    assert [[change.layer for change in part] for part in parts] == [[0, 1], [2]]
    assert [[c.layer for c in part] for part in waves(FACTS, plan_of(), BASE)] == [[0], [1], [2]]


def test_a_layer_that_does_not_fit_is_refused_with_the_staging_it_needs():
    with pytest.raises(PlanError, match=r"needs_staging\(3\)"):
        waves(FACTS, plan_of(), BASE, staging_slots=2)


def test_MIG_05_the_byte_budget_of_a_rank_cuts_the_plan_into_waves():  # noqa: N802
    """58 layers of 9 arrivals x 44,040,192 bytes a rank; 100 ms at 20 GB/s hold 5 layers: 12 waves."""
    layers, width = 58, 9
    facts = PoolFacts("p", 2, 1, width, 18, 8, tuple(range(layers)), bytes_per_expert=44_040_192)
    base = np.tile(np.arange(18, dtype=np.int32), (layers, 1))
    target = np.roll(base, width, axis=1)
    plan = make_plan(facts, base, target, created_ms=1)
    parts = waves(facts, plan, base, staging_slots=layers * width, bytes_per_rank=2_000_000_000)
    assert [len(part) for part in parts] == [5] * 11 + [3]


def test_a_live_map_that_is_neither_base_nor_target_makes_the_plan_stale():
    other = BASE.copy()
    other[1] = np.roll(BASE[1], 6)
    with pytest.raises(PlanStale, match="layer 1"):
        waves(FACTS, plan_of(), other)


def test_a_plan_cannot_be_changed():
    with pytest.raises(AttributeError):
        plan_of().moves = 3
    assert replace(plan_of(), moves=3).moves == 3
