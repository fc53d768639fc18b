"""A wave that an engine committed wrong on one rank is answered by a plan that writes the wrong slot anew; nothing else reaches that rank."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, start_map

from collectors.digests import layer_map_digests
from eplb.agent.live import LiveMap
from eplb.agent.offers import unmended_slot
from eplb.agent.wire import LiveRecord, decode_live, encode_live
from eplb.errors import PlanStale
from eplb.migration import Actuator, Desired, State, make_plan, observe

BEFORE = start_map()
LAYER, SLOT = 1, 7


def moved():
    """The slot of rank 2 gets another expert in this layer, and so does one slot in the layer before."""
    rows = BEFORE.copy()
    for layer in (0, LAYER):
        held = set(rows[layer, 6:9].tolist())
        spare = [e for e in range(FACTS.experts) if e not in held]
        copies = np.bincount(rows[layer], minlength=FACTS.experts)
        slot = next(s for s in (7, 6, 8) if copies[rows[layer, s]] > 1 or layer == LAYER)
        rows[layer, slot] = spare[0]
    return rows


AFTER = moved()
BACK = make_plan(FACTS, AFTER, BEFORE, created_ms=9)
NOW_MS = 5000


def record(rank, rows=AFTER, broken=(), **fields):
    gaps = rows.copy()
    for layer, slot in broken:
        gaps[layer, slot] = -1
    first = rank == 0
    given = {"state": "stuck" if broken else "switched", "offer": "p/0@1", "broken": tuple(broken), **fields}
    return LiveRecord(
        FACTS.pool, rank, rank, 7, 1, 0, 40, digests=tuple(layer_map_digests(FACTS.model_layers, gaps).tolist()),
        map_rows=tuple(tuple(row) for row in rows.tolist()) if first else None, facts=FACTS if first else None, **given,
    )  # fmt: skip


def live(broken):
    """Records of a group of which these ranks were left with broken slots."""
    return {rank: record(rank, broken=broken.get(rank, ())) for rank in range(FACTS.ranks)}


def offered(records, plan=BACK, staging_slots=None):
    written = {}
    actuator = Actuator(
        FACTS, lambda term, fields: written.update(fields), offer_expires_s=30.0, staging_slots=staging_slots
    )
    return actuator.begin(plan, Desired(), records, term=1, now_ms=NOW_MS)


@pytest.mark.parametrize("rank", [0, 2], ids=["the rank that tells the map", "another rank"])
def test_the_way_back_is_offered_although_a_rank_reports_a_gap_and_its_wave_begins_with_the_broken_layer(
    rank,
):
    place = (LAYER, int(np.flatnonzero(AFTER[LAYER] != BEFORE[LAYER])[0])) if rank == 2 else (LAYER, 0)
    before = BEFORE.copy()
    if rank == 0:
        before[LAYER, 0], before[LAYER, 3] = before[LAYER, 3], before[LAYER, 0]
    back = make_plan(FACTS, AFTER, before, created_ms=9)
    records = live({rank: (place,)})
    desired = offered(records, back)
    assert [change.layer for change in desired.offer.changes] == [LAYER]
    assert observe(FACTS, desired, records, NOW_MS).state is State.MOVING


def test_an_offer_that_leaves_the_broken_slot_as_it_is_stays_unverified():
    records = live({2: ((LAYER, 6),)})
    desired = offered(records)
    assert desired.offer.changes[0].target[6] == AFTER[LAYER, 6]
    assert observe(FACTS, desired, records, NOW_MS).state is State.UNVERIFIED


def test_a_mending_that_was_read_back_wrong_too_is_unverified():
    place = (LAYER, int(np.flatnonzero(AFTER[LAYER] != BEFORE[LAYER])[0]))
    desired = offered(live({2: (place,)}))
    again = live({2: (place,)})
    again[2] = replace(again[2], offer=desired.offer.key)
    assert observe(FACTS, desired, again, NOW_MS).state is State.UNVERIFIED


def test_a_gap_that_no_broken_slot_explains_is_another_map():
    records = live({})
    records[2] = replace(record(2, broken=((LAYER, 7),)), broken=())
    with pytest.raises(PlanStale, match="another map than rank 0"):
        offered(records)


def test_a_rank_that_is_not_stuck_makes_no_wave_larger_whatever_it_names():
    records = live({})
    sizes = {len(offered(records, staging_slots=1).offer.changes)}
    records[2] = replace(records[2], broken=tuple((layer, 6) for layer in range(FACTS.layers)))
    sizes.add(len(offered(records, staging_slots=1).offer.changes))
    assert sizes == {1}


def test_places_that_the_pool_does_not_have_explain_nothing():
    records = live({})
    records[2] = replace(records[2], state="stuck", broken=((99, 0), (LAYER, 99), (-1, -1)))
    assert decode_live(encode_live(records[2])) == records[2]
    assert observe(FACTS, offered(records), records, NOW_MS).state is State.UNVERIFIED


def test_a_rank_says_which_of_its_broken_slots_an_offer_leaves():
    (change,) = [change for change in BACK.changes if change.layer == LAYER]
    slot = int(np.flatnonzero(AFTER[LAYER] != BEFORE[LAYER])[0])
    for broken, refused in ((((LAYER, slot),), False), (((LAYER, 6),), True), (((2, 0),), True), ((), False)):
        served = LiveMap(FACTS, AFTER, None, 0)
        served.broken = broken
        assert (unmended_slot(served, (change,)) is not None) == refused
