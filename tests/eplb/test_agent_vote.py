"""All ranks switch between the same two forwards, or nobody does: real agents, one thread a rank."""

import threading
from dataclasses import replace

import numpy as np
from agent_crew import (
    FACTS,
    NAMES,
    Crew,
    CrewMemory,
    ProbedMemory,
    change,
    offer,
    rotated,
)
from agent_faults import (
    BASE,
    BEFORE,
    GOOD,
    TARGET,
    WHILE_PREPARED,
    UnreadableMemory,
    assert_nobody_switched,
    no_memory,
    ranks,
    sent_by,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.digests import layer_map_digest, layer_map_digests
from collectors.facts import Kind
from collectors.recorder import Recorder
from collectors.shares import even_shares
from eplb.agent.transport import ThreadTransport
from eplb.errors import MigrationError


def test_PLN_08_all_ranks_switch_between_the_same_two_forwards():  # noqa: N802
    """Weights, maps and digests are right on every rank afterwards, and the recorder is told in order."""
    crew = Crew(memory_type=ProbedMemory)
    crew.offer(GOOD)
    crew.settle()
    steps = {tuple(step for step, _ in switched) for switched in crew.switched}
    assert len(steps) == 1
    assert len(next(iter(steps))) == 1
    assert crew.states() == ["switched"] * FACTS.ranks
    assert crew.maps() == [TARGET.tobytes()] * FACTS.ranks
    assert crew.weights_are_right()
    assert [agent.map_version for agent in crew.agents] == [1] * FACTS.ranks
    digests = layer_map_digests(FACTS.model_layers, TARGET)
    wanted = {layer: int(digests[layer]) for layer in range(FACTS.layers)}
    for recorder in crew.recorders:
        assert recorder.calls == [("begin", (0, 1, 2)), ("switch", wanted), ("end", (0, 1, 2))]
    record = crew.link.records[3]
    assert record.digests == tuple(wanted.values())
    assert np.array_equal(crew.link.records[0].physical_to_logical(), TARGET)


def test_a_switch_writes_into_the_same_storage():
    crew = Crew()
    before = [{name: memory.storage[name].ctypes.data for name in NAMES} for memory in crew.memories]
    crew.offer(GOOD)
    crew.settle()
    assert [{name: memory.storage[name].ctypes.data for name in NAMES} for memory in crew.memories] == before
    assert crew.agents[0].staging_bytes == 0


@settings(max_examples=30, deadline=None)
@given(ranks, st.sampled_from(sorted(BEFORE)))
def test_one_rank_that_refuses_before_it_is_prepared_keeps_everybody_on_the_old_map(rank, code):
    crew = Crew(
        timeout_s=0.5 if code == "transfer_failed" else 10.0,
        memory_type=UnreadableMemory if code == "internal" else CrewMemory,
    )
    BEFORE[code](crew, rank)
    crew.offer(GOOD)
    crew.settle()
    assert_nobody_switched(crew)
    assert crew.states() == ["refused"] * FACTS.ranks
    # A group of which rank 0 has seen a newer term, or counts other steps, refuses as a whole.
    codes = {(found_rank, found) for found_rank, found, _ in crew.agents[0].refusals}
    if code == "weights_differ":
        assert (sent_by(rank).destination // FACTS.slots_per_rank, code) in codes
    elif code == "transfer_failed":
        assert (rank, code) in codes
    elif rank == 0 and code in {"old_term", "step_differs"}:
        assert code in {found for _, found in codes}
    else:
        assert codes == {(rank, code)}
    assert crew.link.records[0].refusals == crew.agents[0].refusals
    assert crew.link.records[0].offer == "p1/0@1"


@settings(max_examples=30, deadline=None)
@given(ranks, st.sampled_from(sorted(WHILE_PREPARED)))
def test_one_rank_that_refuses_after_all_are_prepared_keeps_everybody_on_the_old_map(rank, code):
    crew = Crew()
    crew.stage(GOOD)
    assert min(agent.staging_bytes for agent in crew.agents) > 0
    WHILE_PREPARED[code](crew, rank)
    crew.link.away = False
    crew.settle()
    assert_nobody_switched(crew)
    assert crew.states() == ["refused"] * FACTS.ranks
    assert crew.link.records[0].state == "refused"
    assert crew.weights_are_right()


@settings(max_examples=5, deadline=None)
@given(ranks)
def test_a_group_that_refused_takes_the_next_offer(rank):
    crew = Crew()
    no_memory(crew, rank)
    crew.offer(GOOD)
    crew.settle()
    assert crew.agents[0].refusals[0][:2] == (rank, "no_memory")
    crew.agents[rank]._side = replace(crew.agents[rank]._side, staging_bytes_max=None)
    crew.gates(3)
    assert_nobody_switched(crew)  # the refused offer still stands in the store and is not tried again
    crew.offer(replace(GOOD, plan_id="p2"))
    crew.until(lambda agent: agent.state == "switched")
    assert crew.maps() == [TARGET.tobytes()] * FACTS.ranks
    assert crew.weights_are_right()


def test_MIG_03_MIG_06_waves_after_each_other_leave_every_tensor_right():  # noqa: N802
    """Three rounds of one-layer waves; after each, all tensors of every slot are those of a never-moved copy."""
    crew = Crew(memory_type=ProbedMemory)
    rows = BASE
    for plan in (1, 2, 3):
        target = np.stack([rotated(row) for row in rows])
        for wave in range(FACTS.layers):
            asked = offer(
                FACTS, rows, target, [wave], plan_id=f"p{plan}", wave=wave, waves=3, map_version=plan
            )
            crew.offer(asked)
            crew.until(
                lambda agent, asked=asked: (
                    agent.state == "switched" and agent._standing.offer_key == asked.key
                )
            )
            assert crew.weights_are_right()
            assert {agent.map_version for agent in crew.agents} == {plan if wave == 2 else plan - 1}
        rows = target
    assert crew.maps() == [rows.tobytes()] * FACTS.ranks


class HeldTransport(ThreadTransport):
    """A wire on which nothing moves before ``go``."""

    go: threading.Event

    def exchange(self, sends, receives) -> None:
        self.go.wait(20)
        super().exchange(sends, receives)


def held(go):
    def hold(made):
        made.__class__ = HeldTransport
        made.go = go
        return made

    return hold


def test_MIG_13_an_unfinished_rank_keeps_all_on_the_old_map_and_its_staging_is_freed_at_the_end():  # noqa: N802
    """The switch is sent only at 4 of 4; until then forwards go on; when time is up all let go."""
    gate = threading.Event()
    crew = Crew(timeout_s=20.0, transports={2: held(gate)})
    crew.offer(GOOD)
    crew.gates(5)
    assert crew.states() == ["staging"] * FACTS.ranks
    assert crew.maps() == [BASE.tobytes()] * FACTS.ranks
    held_bytes = [agent.staging_bytes for agent in crew.agents]
    for clock in crew.clocks:
        clock.ahead_s = 31.0
    crew.gates(2)
    assert crew.states() == ["refused"] * FACTS.ranks
    assert {code for _, code, _ in crew.agents[0].refusals} == {"expired"}
    assert [agent.staging_bytes for agent in crew.agents] == held_bytes  # parcels are still to come into it
    gate.set()
    crew.until(lambda agent: not agent._standing.leaving)
    assert_nobody_switched(crew)
    crew.offer(replace(GOOD, plan_id="p2"))
    crew.until(lambda agent: agent.state == "switched")
    assert crew.weights_are_right()


def test_an_agent_that_is_closed_in_mid_transfer_frees_its_staging_when_the_parcels_have_come():
    go = threading.Event()
    crew = Crew(timeout_s=20.0, transports={2: held(go)})
    crew.offer(GOOD)
    crew.gates(2)
    transfers = [agent._standing.hand.transfer for agent in crew.agents]
    crew.close()
    assert min(agent.staging_bytes for agent in crew.agents) > 0
    go.set()
    assert all(transfer.wait(20.0) for transfer in transfers)
    assert [transfer.refusals for transfer in transfers] == [()] * FACTS.ranks
    assert_nobody_switched(crew)


def test_an_expert_that_the_live_map_does_not_hold_is_refused_by_all_before_a_parcel_moves():
    crew = Crew()
    for agent in crew.agents:
        agent._live.rows[0, 5] = -1  # what is served, and what its digest says, no longer agree
    crew.offer(GOOD)
    crew.settle()
    assert crew.switched == [[]] * FACTS.ranks
    assert {(rank, code) for rank, code, _ in crew.agents[3].refusals} == {(r, "no_source") for r in range(4)}


def test_MIG_12_a_slot_that_reads_back_wrong_is_reported_and_never_claimed():  # noqa: N802
    """One rank's storage takes no writes: the group has switched, this rank says stuck and not the target's digest."""

    class DeafMemory(CrewMemory):
        def tensors(self, layer, slot):
            views = super().tensors(layer, slot)
            return {name: data.copy() for name, data in views.items()} if self.deaf else views

        deaf = False

    crew = Crew(memory_type=DeafMemory)
    crew.stage(GOOD)
    crew.memories[2].deaf = True
    crew.link.away = False
    crew.settle()
    assert crew.states() == ["switched", "switched", "stuck", "switched"]
    assert crew.maps() == [TARGET.tobytes()] * FACTS.ranks  # routing stays one map on all ranks
    wanted = layer_map_digests(FACTS.model_layers, TARGET)
    assert not np.any(crew.agents[2].layer_digests == wanted)
    assert np.array_equal(crew.agents[1].layer_digests, wanted)
    assert [agent.map_version for agent in crew.agents] == [1, 1, 0, 1]
    ((_, switched),) = crew.switched[2]
    assert set(switched.broken) == {(layer, slot) for layer in range(3) for slot in (6, 7, 8)}
    assert crew.link.records[2].refusals[0][:2] == (2, "weights_differ")
    crew.offer(replace(offer(FACTS, TARGET, BASE), plan_id="p2"))
    crew.gates(3)
    assert {len(done) for done in crew.switched} == {1}
    assert ("stuck" in {code for _, code, _ in crew.agents[0].refusals}) or crew.agents[0].refusals[0][0] == 2


def test_a_rank_that_leaves_the_group_keeps_everybody_on_the_old_map_and_nothing_raises():
    crew = Crew()
    crew.stage(GOOD)
    crew.link.away = False
    crew.groups[1].abort()
    crew.settle()
    assert_nobody_switched(crew)
    assert crew.states() == ["stuck"] * FACTS.ranks
    assert {agent.refusals[0][1] for agent in crew.agents} == {"group_failed"}
    assert crew.agents[0].before_forward(10**6) is None


def test_a_rank_that_does_not_hear_the_vote_on_a_switch_says_that_it_is_in_doubt():
    """The others have switched: if it served on, the group would serve two maps."""
    crew = Crew()
    crew.stage(GOOD)
    heard = crew.groups[1].min

    def unheard(value):
        heard(value)
        raise MigrationError("the answer did not come in time")

    crew.groups[1].min = unheard
    crew.link.away = False
    crew.settle()
    assert crew.states() == ["switched", "stuck", "switched", "switched"]
    assert [agent.in_doubt for agent in crew.agents] == [False, True, False, False]


def test_a_rank_that_said_no_is_not_in_doubt_whatever_becomes_of_the_vote():
    crew = Crew()
    crew.stage(GOOD)
    crew.clocks[1].ahead_s = 1e6
    heard = crew.groups[1].min

    def unheard(value):
        assert heard(value) == 0
        crew.groups[1].abort()
        raise MigrationError("the answer did not come in time")

    crew.groups[1].min = unheard
    crew.link.away = False
    crew.until(lambda agent: agent.state == "stuck")
    assert_nobody_switched(crew)
    assert not crew.agents[1].in_doubt


def test_shares_can_change_without_a_move():
    shares = even_shares(BASE[1])
    shares[[0, 8]] = (0.75, 0.25)
    crew = Crew()
    crew.offer(replace(GOOD, changes=(change(FACTS, 1, BASE[1], BASE[1], tuple(shares)),)))
    crew.settle()
    assert crew.maps() == [BASE.tobytes()] * FACTS.ranks
    for agent, switched, recorder in zip(crew.agents, crew.switched, crew.recorders, strict=True):
        assert np.array_equal(agent.shares[1], shares)
        assert np.array_equal(agent.shares[0], even_shares(BASE[0]))
        assert switched[0][1].layers == (1,)
        assert np.array_equal(switched[0][1].shares[0], shares)
        named = {1: int(agent.layer_digests[1])}
        assert recorder.calls == [("begin", (1,)), ("switch", named), ("end", (1,))]
        assert named[1] == layer_map_digest(4, BASE[1], shares) != layer_map_digest(4, BASE[1])


def test_an_expert_can_change_slots_within_a_rank_while_its_old_slot_is_overwritten():
    target = BASE.copy()
    target[:, 0:3] = BASE[:, [1, 2, 0]]
    crew = Crew()
    crew.offer(offer(FACTS, BASE, target))
    crew.settle()
    assert crew.maps() == [target.tobytes()] * FACTS.ranks
    assert crew.weights_are_right()


def test_a_slot_can_become_empty_and_be_filled_again():
    target = BASE.copy()
    target[:, 8] = -1
    crew = Crew()
    crew.offer(offer(FACTS, BASE, target))
    crew.settle()
    crew.offer(offer(FACTS, target, BASE, plan_id="p2"))
    crew.until(lambda agent: agent._standing.offer_key == "p2/0@1" and agent.state == "switched")
    assert crew.maps() == [BASE.tobytes()] * FACTS.ranks
    assert crew.weights_are_right()


def test_a_closed_agent_takes_no_further_part():
    crew = Crew()
    crew.close()
    crew.offer(GOOD)
    assert [agent.before_forward(0) for agent in crew.agents] == [None] * FACTS.ranks
    assert_nobody_switched(crew)


def test_the_real_recorder_counts_under_the_new_map_from_the_switch_on():
    crew = Crew()
    recorders = [
        Recorder(FACTS, rank, Kind.RECEIVED_SLOTS, incarnation=rank + 1) for rank in range(FACTS.ranks)
    ]
    for agent, recorder in zip(crew.agents, recorders, strict=True):
        recorder.register(agent.run_id, 0, agent.layer_digests)
        agent._recorder = recorder
    crew.offer(GOOD)
    crew.settle()
    wanted = layer_map_digests(FACTS.model_layers, TARGET)
    for agent, recorder in zip(crew.agents, recorders, strict=True):
        frame = recorder.snapshot(agent.term_seen)
        assert np.array_equal(frame.layer_digests, wanted)
        assert frame.header.layers_in_flight == ()
        assert (frame.header.run_id, frame.header.term_seen) == (77, 1)
        assert agent.stats["errors"] == 0
