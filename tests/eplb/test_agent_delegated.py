"""Rules of an engine that moves experts by itself: one vote, layers committed one by one, and only what is read back is live."""

from copy import deepcopy

import numpy as np
import pytest
from agent_crew import FACTS, GATE_STEPS, offer, rotated, start_map
from hypothesis import example, given, settings
from hypothesis import strategies as st
from moving_engine import MODEL_DIGEST, DelegatedCrew, Faults

from collectors.digests import layer_map_digest, layer_map_digests
from eplb.agent import Agent, ThreadGroup
from eplb.errors import MigrationError
from eplb.migration import Actuator, State, make_plan, observe, read_desired
from eplb.migration.put_back import put_back_plan

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])
OTHER = np.roll(TARGET[1], 1)
NOW_MS = 5000


def asked(base=BASE, target=TARGET, **fields):
    return offer(FACTS, base, target, **{"model_digest": MODEL_DIGEST, **fields})


def faulty(engine, faults):
    """The engine goes wrong in this way, once."""
    for name, value in deepcopy(faults).items():
        setattr(engine.faults, name, value)


def run(crew, **faults_of_rank):
    """Offer the target with faults on some ranks, and go on until every rank is done with it."""
    for rank, faults in faults_of_rank.items():
        faulty(crew.engines[int(rank[1:])], faults)
    crew.offer(asked())
    crew.settle()
    return crew


class Daemon:
    """Actuator and observation over the crew's records, with a shelf in place of the store."""

    def __init__(self, crew):
        self.crew, self.fields = crew, {}
        self.actuator = Actuator(FACTS, self.write, offer_expires_s=30.0)

    def write(self, term, fields):
        self.fields = {**self.fields, **fields, "term": str(term).encode()}
        desired = read_desired(self.fields)
        self.crew.offer(desired.offer, term)

    @property
    def live(self):
        return dict(self.crew.link.records)

    def status(self):
        return observe(FACTS, read_desired(self.fields), self.live, NOW_MS)

    def begin(self, plan):
        self.actuator.begin(plan, read_desired(self.fields), self.live, term=1, now_ms=NOW_MS)

    def way_back(self, before=BASE):
        return put_back_plan(FACTS, before, None, self.live[0], self.live, created_ms=NOW_MS)


def test_one_vote_and_then_the_engine_goes_live_on_all_ranks():
    crew = run(DelegatedCrew())
    assert crew.states() == ["switched"] * 4
    assert set(crew.maps()) == set(crew.routed()) == {TARGET.tobytes()}
    assert crew.weights_are_right()
    assert [agent.map_version for agent in crew.agents] == [1] * 4
    assert [engine.begun for engine in crew.engines] == [1] * 4


def test_each_layer_is_handed_over_when_it_is_committed_and_counts_between_two_maps_are_dropped():
    crew = run(DelegatedCrew())
    for switched, recorder in zip(crew.switched, crew.recorders, strict=True):
        assert [change.layers for _, change in switched] == [(0,), (1,), (2,)]
        assert all(np.array_equal(change.rows[0], TARGET[change.layers[0]]) for _, change in switched)
        assert len({step for step, _ in switched}) == 3
        digests = [layer_map_digest(FACTS.model_layers[layer], TARGET[layer]) for layer in range(3)]
        assert recorder.calls == [
            ("begin", (0, 1, 2)),
            ("switch", {0: digests[0]}), ("end", (0,)),
            ("switch", {1: digests[1]}), ("end", (1,)),
            ("switch", {2: digests[2]}), ("end", (2,)),
        ]  # fmt: skip


def test_a_rank_that_says_no_means_that_no_engine_begins():
    crew = DelegatedCrew(step_offset={2: 1})
    crew.offer(asked())
    crew.settle()
    assert crew.states() == ["refused"] * 4
    assert [engine.begun for engine in crew.engines] == [0] * 4
    assert {code for _, code, _ in crew.agents[0].refusals} == {"step_differs"}


def test_what_was_begun_goes_on_when_the_offer_is_withdrawn_or_its_time_is_over():
    crew = DelegatedCrew()
    for engine in crew.engines:
        engine.faults.forwards_per_layer = 2 * GATE_STEPS
    crew.offer(asked())
    crew.gates(1)
    crew.offer(None, term=1)
    for clock in crew.clocks:
        clock.ahead_s += 1000.0
    crew.until(lambda agent: agent.state != "committing")
    assert crew.states() == ["switched"] * 4
    assert set(crew.routed()) == {TARGET.tobytes()}


@pytest.mark.parametrize(
    ("faults", "real"),
    [
        ({"keeps_row": {1}}, BASE[1]),
        ({"other_row": {1: OTHER}}, OTHER),
        ({"weights_lost": {1}}, np.where(np.isin(np.arange(12), (3, 4, 5)), -1, TARGET[1])),
    ],
)
def test_a_layer_that_reads_back_otherwise_is_reported_as_what_is_really_routed(faults, real):
    """MIG-12: nothing is called live because it was asked for."""
    crew = run(DelegatedCrew(), r1=faults)
    assert crew.states() == ["switched", "stuck", "switched", "switched"]
    record = crew.link.records[1]
    assert (
        record.digests[1] == layer_map_digest(FACTS.model_layers[1], real) != crew.link.records[0].digests[1]
    )
    assert np.array_equal(crew.agents[1].live[1], real)
    assert [code for _, code, _ in record.refusals] == ["apply_unverified"]
    assert crew.agents[1].map_version == 0
    assert ("end", (1,)) not in crew.recorders[1].calls


def test_an_engine_that_does_not_begin_or_cannot_be_read_is_not_taken_at_its_word():
    """It serves what it served, and an unreadable layer serves nothing that anyone takes for live."""
    crew = run(DelegatedCrew(), r2={"will_not_begin": True}, r3={"unreadable": {0}})
    assert crew.states() == ["switched", "switched", "stuck", "stuck"]
    assert np.array_equal(crew.agents[2].live, BASE)
    assert "no memory for the move" in crew.link.records[2].refusals[0][2]
    assert not {layer_map_digest(3, BASE[0]), layer_map_digest(3, TARGET[0])} & {
        crew.link.records[3].digests[0]
    }


def test_the_daemon_sees_layers_come_one_by_one_and_is_in_doubt_until_all_have():
    crew = DelegatedCrew()
    daemon = Daemon(crew)
    for engine in crew.engines:
        engine.faults.forwards_per_layer = GATE_STEPS
    crew.gates(1)
    daemon.actuator = Actuator(FACTS, daemon.write, offer_expires_s=30.0, staging_slots=9)
    daemon.begin(make_plan(FACTS, BASE, TARGET, created_ms=1))
    seen = []
    while daemon.status().state is not State.ALL_LIVE and len(seen) < 40:
        crew.gates(1)
        status = daemon.status()
        seen.append((str(status.state), status.layers_live, status.layers_in_flight))
    states = list(dict.fromkeys(seen))
    assert ("in_doubt", (), (0, 1, 2)) in states
    assert [len(live) for _, live, _ in states] == sorted(len(live) for _, live, _ in states)
    assert any(0 < len(live) < 3 for _, live, _ in states)
    assert states[-1] == ("all_live", (0, 1, 2), ())


@pytest.mark.parametrize("broken_rank", [0, 1])
@pytest.mark.parametrize(
    "faults", [{"keeps_row": {1}}, {"other_row": {1: OTHER}}, {"weights_lost": {1}}, {"will_not_begin": True}]
)
def test_a_failed_read_back_is_answered_by_a_plan_back_that_stuck_ranks_take(broken_rank, faults):
    """Whatever each rank serves, and whichever it is that failed."""
    crew = DelegatedCrew()
    daemon = Daemon(crew)
    daemon.actuator = Actuator(FACTS, daemon.write, offer_expires_s=30.0, staging_slots=9)
    crew.gates(1)
    faulty(crew.engines[broken_rank], faults)
    daemon.begin(make_plan(FACTS, BASE, TARGET, created_ms=1))
    crew.settle()
    assert daemon.status().code == "apply_unverified"
    daemon.begin(daemon.way_back())
    assert daemon.status().state is State.MOVING
    crew.gates(2)
    crew.settle()
    assert daemon.status().state is State.ALL_LIVE
    assert crew.states() == ["switched"] * 4
    assert set(crew.maps()) == set(crew.routed()) == {BASE.tobytes()}
    assert crew.weights_are_right()
    assert crew.recorders[broken_rank].calls[-1][0] == "end"


def test_a_stuck_rank_takes_no_offer_that_leaves_a_broken_layer_as_it_is():
    crew = run(DelegatedCrew(), r1={"keeps_row": {1}})
    crew.offer(asked(TARGET, BASE, layers=[0], plan_id="p2", map_version=2))
    crew.gates(2)
    assert crew.states()[1] == "stuck"
    assert [engine.begun for engine in crew.engines] == [1] * 4
    assert {code for _, code, _ in crew.agents[0].refusals} == {"stuck"}


def test_a_way_back_that_a_rank_says_no_to_leaves_stuck_ranks_stuck():
    crew = run(DelegatedCrew(), r1={"keeps_row": {1}})
    crew.gates(1)
    daemon = Daemon(crew)
    plan = daemon.way_back()
    crew.step_offset[3] = 1
    daemon.begin(plan)
    crew.gates(2)
    assert crew.states() == ["refused", "stuck", "refused", "refused"]
    assert [engine.begun for engine in crew.engines] == [1] * 4


def test_where_every_rank_still_serves_the_map_before_there_is_nothing_to_put_back():
    """MIG-12: neither map nor weights were updated, on no rank."""
    every = {f"r{rank}": {"will_not_begin": True} for rank in range(4)}
    crew = run(DelegatedCrew(), **every)
    crew.gates(1)
    daemon = Daemon(crew)
    assert crew.states() == ["stuck"] * 4
    assert {record.digests for record in daemon.live.values()} == {
        tuple(layer_map_digests(FACTS.model_layers, BASE).tolist())
    }
    assert daemon.way_back() is None


def test_a_rank_that_does_not_hear_the_one_vote_is_in_doubt():
    """The others' engines have begun, so its engine must form its group anew."""
    crew = DelegatedCrew()
    heard = crew.groups[1].min

    def unheard(value):
        heard(value)
        raise MigrationError("the answer did not come in time")

    crew.groups[1].min = unheard
    for engine in crew.engines:
        engine.forward = lambda: None  # they would wait for the one that has not begun
    crew.offer(asked())
    crew.gates(1)
    assert crew.states() == ["committing", "stuck", "committing", "committing"]
    assert [agent.in_doubt for agent in crew.agents] == [False, True, False, False]


WRONGS = st.fixed_dictionaries(
    {},
    optional={
        "keeps_row": st.sets(st.integers(0, 2), min_size=1),
        "other_row": st.dictionaries(st.integers(0, 2), st.just(OTHER), min_size=1),
        "unreadable": st.sets(st.integers(0, 2), min_size=1),
    },
)


@settings(max_examples=20, deadline=None)
@example([{}, {}, {"keeps_row": {0}}, {"keeps_row": {0}}], {0, 1})
@given(st.lists(WRONGS, min_size=4, max_size=4), st.sets(st.integers(0, 1)))
def test_whatever_engines_do_wrong_nothing_false_is_reported_and_the_way_back_ends_on_the_map_before(
    wrongs, idle
):
    """Reported is what routers read, or a row that no offer asks for where one cannot be read; ranks 0 and 1 may be ``idle`` without a loss."""
    crew = DelegatedCrew()
    daemon = Daemon(crew)
    daemon.actuator = Actuator(FACTS, daemon.write, offer_expires_s=30.0, staging_slots=9)
    crew.gates(1)
    for engine, faults in zip(crew.engines, wrongs, strict=True):
        faulty(engine, faults)
        engine.faults.will_not_begin = engine.rank in idle
    daemon.begin(make_plan(FACTS, BASE, TARGET, created_ms=1))
    crew.settle()
    for rank, record in daemon.live.items():
        real = layer_map_digests(FACTS.model_layers, crew.engines[rank].rows).tolist()
        same = [told == served for told, served in zip(record.digests, real, strict=True)]
        assert all(same[layer] or layer in wrongs[rank].get("unreadable", ()) for layer in range(3))
    stuck = [state == "stuck" for state in crew.states()]
    assert stuck == [bool(faults) or rank in idle for rank, faults in enumerate(wrongs)]
    assert daemon.status().code == ("apply_unverified" if any(stuck) else "applied")
    plan = daemon.way_back()
    if not any(stuck) or plan is None:
        return
    for engine in crew.engines:
        engine.faults = Faults()
    daemon.begin(plan)
    crew.gates(2)
    crew.settle()
    assert daemon.status().state is State.ALL_LIVE
    assert set(crew.maps()) == set(crew.routed()) == {BASE.tobytes()}
    assert crew.weights_are_right()


def test_an_agent_has_memory_and_transport_or_a_mover():
    with pytest.raises(MigrationError, match="mover"):
        Agent(FACTS, ThreadGroup.create(4, 1.0)[0], None, None, BASE, run_id=1, incarnation=1)
