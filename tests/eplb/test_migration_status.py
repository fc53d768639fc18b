"""Where a migration stands is computed from desired and live alone, at any moment, by any leader."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, Crew, rotated, start_map
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.digests import layer_map_digests
from collectors.facts import PoolFacts
from eplb.agent.wire import LiveRecord, encode_live, encode_offer
from eplb.errors import PlanError, PlanStale
from eplb.migration import Actuator, Desired, State, make_plan, observe, read_desired, read_records
from eplb.migration.align import aligned
from eplb.protocol.wave import STATES

BASE = start_map()
TARGET, _ = aligned(FACTS, BASE, np.stack([rotated(row) for row in BASE]))
PLAN = make_plan(FACTS, BASE, TARGET, created_ms=1000)
NOW_MS = 5000
LATE_MS = NOW_MS + 1_000_000


class Shelf:
    """What a store keeps of the desired map: the fields that were written last."""

    def __init__(self):
        self.fields: dict[str, bytes] = {}

    def write(self, term, fields):
        self.fields = {**self.fields, **fields, "term": str(term).encode()}

    def desired(self) -> Desired:
        return read_desired(self.fields)


def record(rank, rows=BASE, *, facts=FACTS, state="serving", offer="", version=0, run_id=7, refusals=()):
    return LiveRecord(
        facts.pool, rank, rank, run_id, 1, version, 40, state, offer,
        tuple(layer_map_digests(facts.model_layers, rows).tolist()), refusals=refusals,
        map_rows=tuple(tuple(row) for row in rows.tolist()) if rank == 0 else None, facts=facts if rank == 0 else None,
    )  # fmt: skip


def everywhere(rows=BASE, **fields):
    return {rank: record(rank, rows, **fields) for rank in range(FACTS.ranks)}


def begun():
    shelf = Shelf()
    actuator = Actuator(FACTS, shelf.write, offer_expires_s=30.0)
    actuator.begin(PLAN, shelf.desired(), everywhere(), term=1, now_ms=NOW_MS)
    return shelf, actuator


def rows_after(waves):
    rows = BASE.copy()
    rows[:waves] = TARGET[:waves]
    return rows


def state_of(shelf, live, now_ms=NOW_MS):
    return observe(FACTS, shelf.desired(), live, now_ms)


def test_without_an_offer_it_is_idle():
    assert observe(FACTS, Desired(), everywhere(), NOW_MS).state is State.IDLE


def test_the_table_ends_with_a_row_that_always_holds_and_names_every_state():
    assert {row.state for row in STATES} == set(State)
    assert STATES[-1].state is State.MOVING


def test_an_offer_on_which_nobody_acted_is_moving_and_blocks_other_plans():
    shelf, actuator = begun()
    status = state_of(shelf, everywhere())
    assert (status.state, status.waiting, status.layers_in_flight) == (State.MOVING, (0, 1, 2, 3), (0,))
    with pytest.raises(PlanError, match="one wave at a time"):
        actuator.begin(PLAN, shelf.desired(), everywhere(), term=1, now_ms=NOW_MS)


def test_live_digests_of_all_ranks_make_a_wave_live_and_the_next_is_offered():
    shelf, actuator = begun()
    live = everywhere(rows_after(1))
    status = state_of(shelf, live)
    assert (status.state, status.layers_live, status.layers_in_flight) == (State.WAVE_LIVE, (0,), ())
    desired = actuator.offer_next(shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert (desired.offer.wave, desired.offer.waves, desired.offer.changes[0].layer) == (1, 3, 1)
    assert state_of(shelf, live).state is State.MOVING


def test_the_plan_is_live_when_all_ranks_serve_its_last_layer():
    shelf, actuator = begun()
    for wave in (1, 2):
        actuator.offer_next(shelf.desired(), everywhere(rows_after(wave)), term=1, now_ms=NOW_MS)
    status = state_of(shelf, everywhere(TARGET, version=1))
    assert (status.state, status.map_version, status.layers_live) == (State.ALL_LIVE, 1, (0, 1, 2))
    actuator.close(shelf.desired(), everywhere(TARGET), term=1, now_ms=NOW_MS)
    assert state_of(shelf, everywhere(TARGET)).state is State.IDLE
    assert shelf.desired().plan == PLAN


def test_MIG_13_nothing_is_live_before_every_rank_says_so():  # noqa: N802
    shelf, actuator = begun()
    live = everywhere(rows_after(1))
    live[2] = record(2)
    assert state_of(shelf, live).state is State.IN_DOUBT
    with pytest.raises(PlanError, match="not_live"):
        actuator.offer_next(shelf.desired(), live, term=1, now_ms=NOW_MS)
    del live[2]
    assert state_of(shelf, live).state is State.IN_DOUBT


def test_PLN_05_after_the_vote_a_silent_rank_leaves_it_in_doubt_and_is_named():  # noqa: N802
    """Ranks 0 to 14 switched, rank 15 never answers: stalled names it, and there is no retry however late it is."""
    facts = PoolFacts("p", 16, 2, 1, 16, 2, (0,))
    base = np.arange(16, dtype=np.int32)[None, :]
    target = np.roll(base, 1, axis=1)
    shelf = Shelf()
    actuator = Actuator(facts, shelf.write, offer_expires_s=30.0)
    live = {rank: record(rank, base, facts=facts) for rank in range(16)}
    plan = make_plan(facts, base, target, created_ms=1)
    actuator.begin(plan, shelf.desired(), live, term=1, now_ms=NOW_MS)
    live = {rank: record(rank, target, facts=facts, version=1) for rank in range(15)}
    early, late = (observe(facts, shelf.desired(), live, now) for now in (NOW_MS, LATE_MS))
    assert (early.state, early.code, early.waiting) == (State.IN_DOUBT, "in_doubt", (15,))
    assert (late.state, late.code, late.waiting) == (State.IN_DOUBT, "stalled", (15,))
    assert "rank 15" in late.sentence
    with pytest.raises(PlanError, match="one wave at a time"):
        actuator.begin(plan, shelf.desired(), live, term=1, now_ms=LATE_MS)
    live[15] = record(15, target, facts=facts, version=1)
    assert observe(facts, shelf.desired(), live, LATE_MS).state is State.ALL_LIVE


def test_a_refusal_says_who_and_why_and_frees_the_way_for_a_new_plan():
    shelf, actuator = begun()
    key = shelf.desired().offer.key
    live = everywhere(state="refused", offer=key)
    live[0] = replace(live[0], refusals=((3, "no_memory", "only 1 byte is allowed"),))
    status = state_of(shelf, live)
    assert (status.state, status.refusals) == (State.REFUSED, ((3, "no_memory", "only 1 byte is allowed"),))
    assert "rank 3 (no_memory): only 1 byte" in status.sentence
    actuator.withdraw(shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert state_of(shelf, live).state is State.IDLE
    actuator.begin(make_plan(FACTS, BASE, TARGET, created_ms=9), shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert state_of(shelf, live).state is State.MOVING


def test_a_refusal_of_an_earlier_offer_says_nothing_about_this_one():
    shelf, _ = begun()
    live = everywhere(state="refused", offer="p0/0", refusals=((3, "no_memory", "x"),))
    assert state_of(shelf, live).state is State.MOVING


def test_an_offer_that_nobody_voted_on_expires():
    shelf, _ = begun()
    assert state_of(shelf, everywhere(), NOW_MS + 30_000).state is State.MOVING
    assert state_of(shelf, everywhere(), LATE_MS).state is State.EXPIRED
    key = shelf.desired().offer.key
    told = everywhere(state="refused", offer=key, refusals=((0, "expired", "no gate came"),))
    assert state_of(shelf, told).state is State.EXPIRED


def test_a_rank_that_still_holds_an_overdue_offer_leaves_it_in_doubt():
    shelf, _ = begun()
    live = everywhere()
    live[1] = record(1, state="prepared", offer=shelf.desired().offer.key)
    status = state_of(shelf, live, LATE_MS)
    assert (status.state, status.code) == (State.IN_DOUBT, "stalled")
    assert "rank 1" in status.sentence


def test_MIG_12_a_switch_without_the_targets_digest_read_back_is_never_applied():  # noqa: N802
    shelf, _ = begun()
    live = everywhere(rows_after(1), state="switched", offer=shelf.desired().offer.key)
    live[2] = record(2, state="stuck", offer=shelf.desired().offer.key)
    status = state_of(shelf, live)
    assert (status.state, status.code) == (State.UNVERIFIED, "apply_unverified")
    assert "rank 2" in status.sentence
    old = everywhere(state="switched", offer=shelf.desired().offer.key)
    assert state_of(shelf, old).state is State.MOVING


def test_a_rank_that_serves_another_map_makes_the_offer_pointless():
    shelf, _ = begun()
    live = everywhere()
    live[1] = record(1, np.stack([np.roll(row, 6) for row in BASE]))
    assert (state_of(shelf, live).state, state_of(shelf, live).code) == (State.REFUSED, "base_lost")


def test_records_of_an_earlier_life_of_the_group_do_not_count():
    shelf, _ = begun()
    live = everywhere(rows_after(1))
    live[3] = record(3, rows_after(1), run_id=6)
    assert (state_of(shelf, live).state, state_of(shelf, live).waiting) == (State.IN_DOUBT, (3,))


def test_a_plan_is_checked_against_the_live_map_when_it_is_offered():
    shelf = Shelf()
    actuator = Actuator(FACTS, shelf.write)
    with pytest.raises(PlanStale, match="no longer its base"):
        actuator.begin(PLAN, shelf.desired(), everywhere(TARGET), term=1, now_ms=NOW_MS)
    some = everywhere()
    del some[2]
    with pytest.raises(PlanStale, match="2"):
        actuator.begin(PLAN, shelf.desired(), some, term=1, now_ms=NOW_MS)
    split = everywhere()
    split[1] = record(1, TARGET)
    with pytest.raises(PlanStale, match="another map than rank 0"):
        actuator.begin(PLAN, shelf.desired(), split, term=1, now_ms=NOW_MS)
    assert shelf.fields == {}


def test_what_cannot_be_read_is_named_and_counts_as_absent():
    shelf, _ = begun()
    shelf.fields["offer"] = shelf.fields["offer"][:-9]
    desired = shelf.desired()
    assert (desired.offer, desired.damaged) == (None, ("offer",))
    assert "offer" in observe(FACTS, desired, everywhere(), NOW_MS).sentence
    good, bad = encode_live(record(1)), encode_live(record(2))[:-5]
    records, damaged = read_records({1: good, 2: bad, 3: good})
    assert records == {1: record(1)}
    assert set(damaged) == {2, 3}


def test_map_versions_grow_past_everything_that_was_seen():
    shelf = Shelf()
    shelf.write(1, Desired(map_version=4).fields())
    desired = Actuator(FACTS, shelf.write).begin(
        PLAN, shelf.desired(), everywhere(version=6), term=2, now_ms=NOW_MS
    )
    assert (desired.map_version, desired.offer.map_version, desired.offer.term) == (7, 7, 2)


class Daemon:
    """One life of a daemon, which knows only what the store and the ranks say; ``term`` tells its lives apart."""

    def __init__(self, crew, shelf, term):
        self.crew, self.shelf, self.term = crew, shelf, term
        self.actuator = Actuator(FACTS, shelf.write, offer_expires_s=30.0)

    def status(self):
        return observe(FACTS, self.shelf.desired(), dict(self.crew.link.records), NOW_MS)

    def act(self):
        """Take the one step that the state asks for, and let rank 0 see what is on offer then."""
        desired, live, state = self.shelf.desired(), dict(self.crew.link.records), self.status().state
        when = {"term": self.term, "now_ms": NOW_MS}
        if state is State.IDLE and not self.done():
            plan = make_plan(FACTS, live[0].physical_to_logical(), TARGET, created_ms=NOW_MS + self.term)
            self.actuator.begin(plan, desired, live, **when)
        elif state is State.WAVE_LIVE:
            self.actuator.offer_next(desired, live, **when)
        elif state is State.ALL_LIVE:
            self.actuator.close(desired, live, **when)
        elif state in (State.REFUSED, State.EXPIRED):
            self.actuator.withdraw(desired, live, **when)
        asked = self.shelf.desired().offer
        self.crew.link.offer(None if asked is None else encode_offer(asked), self.term)

    def done(self):
        return self.crew.maps() == [TARGET.tobytes()] * FACTS.ranks and self.shelf.desired().offer is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["act", "act", "gates", "restart"]), max_size=30))
def test_PLN_12_from_every_interruption_point_the_next_daemon_finds_the_way(events):  # noqa: N802
    """Real agents; the daemon may die between any two actions, and the next one knows only desired and live."""
    daemon = Daemon(Crew(), Shelf(), 1)
    for number, event in enumerate([*events, *["act", "gates"] * 300]):
        if number >= len(events) and daemon.done():
            break
        if event == "act":
            daemon.act()
        elif event == "restart":
            daemon = Daemon(daemon.crew, daemon.shelf, daemon.term + 1)
        else:
            daemon.crew.gates(2)
        assert daemon.status().state not in (State.UNVERIFIED, State.EXPIRED)
        assert len(set(daemon.crew.maps())) == 1
        live = daemon.crew.agents[0].live
        assert all((live == BASE).all(axis=1) | (live == TARGET).all(axis=1))
    assert daemon.done()
    assert daemon.status().state is State.IDLE
    assert daemon.crew.weights_are_right()
