"""A new version of the model: slots are filled by the map that is served, and nothing of the old model comes after."""

import threading

import numpy as np
import pytest
from agent_crew import FACTS, SIZES, expert_bytes, offer
from life_crew import Checkpoint, LifeCrew

from collectors.facts import PoolFacts
from eplb.agent.memory import own_slots
from eplb.agent.reload import reload_model
from eplb.errors import ExpertLost, MigrationError


def newer(layer, expert, name):
    return expert_bytes(layer, expert, name) ^ np.uint8(0x5A)


def mig_09(layer, expert, name):
    """The case's checkpoint: expert e is worth 11 * (e + 1)."""
    return np.full(SIZES[name], 11 * (expert + 1), dtype=np.uint8)


def swap(rows, first, second):
    after = rows.copy()
    after[:, [first, second]] = rows[:, [second, first]]
    return after


def reload_everywhere(crew, saved, loaders=None, **given):
    """What each rank got, and each rank's error."""
    found = {}
    members = tuple(crew.agents)
    loaders = loaders or {rank: Checkpoint(saved=saved, **given) for rank in members}

    def load(rank):
        found[rank] = reload_model(
            crew.agents[rank], crew._groups[rank], crew.memories[rank], loaders[rank], transfer_wait_s=2.0
        )

    return found, crew._run(members, load, catch=True)


def first_bytes(crew, layer):
    """The first byte of every slot of a layer: which expert of the case stands there."""
    return [
        int(crew.memories[rank].tensors(layer, slot)["w2"][0])
        for rank in sorted(crew.memories)
        for slot in own_slots(FACTS, rank)
    ]


def test_mig_09_slots_hold_what_the_live_map_says_and_a_pending_transfer_writes_nothing_later():
    crew = LifeCrew()
    base = crew.rows()
    moved = swap(base, 1, 6)
    crew.offer(offer(FACTS, base, moved))
    crew.settle()
    held = threading.Event()
    whole = crew.transports[2].exchange
    crew.transports[2].exchange = lambda sends, receives: (held.wait(5.0), whole(sends, receives))
    crew.offer(offer(FACTS, moved, base, plan_id="pending"))
    crew.until(lambda agent: agent.state == "staging")
    release = threading.Timer(0.2, held.set)
    release.start()
    found, errors = reload_everywhere(crew, mig_09)
    release.join()
    assert errors == {}
    for layer in range(FACTS.layers):
        assert first_bytes(crew, layer) == [11 * (expert + 1) for expert in moved[layer].tolist()]
    assert {made.run_id for made in found.values()} == {78}


def test_mig_08_a_rank_loads_what_its_slots_hold_redundant_copies_too():
    """MIG-08: the second of two ranks, slots 5, 6, 7, 0, 1, needs experts 0, 1, 5, 6, 7; no slot stays as it was."""
    facts = PoolFacts("p", ranks=2, nodes=1, slots_per_rank=5, experts=8, top_k=2, model_layers=(3,))
    crew, loaders = LifeCrew(facts), {rank: Checkpoint(saved=newer) for rank in range(2)}
    _, errors = reload_everywhere(crew, newer, loaders)
    assert errors == {}
    assert sorted({expert for _, expert in loaders[1].loads}) == [0, 1, 5, 6, 7]
    for rank, memory in crew.memories.items():
        for slot in own_slots(facts, rank):
            for name, tensor in memory.tensors(0, slot).items():
                assert np.array_equal(tensor, newer(0, slot % 8, name))


def test_the_new_table_is_of_the_new_model_and_the_same_on_all_ranks():
    crew = LifeCrew()
    before = {agent.table.model_digest for agent in crew.agents.values()}
    found, errors = reload_everywhere(crew, newer)
    after = {made.table.model_digest for made in found.values()}
    assert (errors, len(before), len(after)) == ({}, 1, 1)
    assert before != after
    assert all(np.array_equal(made.rows, crew.rows()) for made in found.values())


def test_a_transfer_that_does_not_end_stops_the_reload_on_all_ranks():
    crew = LifeCrew()
    held = threading.Event()
    crew.transports[2].exchange = lambda sends, receives: held.wait(30.0)
    base = crew.rows()
    crew.offer(offer(FACTS, base, swap(base, 1, 6)))
    crew.until(lambda agent: agent.state == "staging")
    _, errors = reload_everywhere(crew, newer)
    held.set()
    assert {type(error) for error in errors.values()} == {MigrationError}
    assert all("rank 2: a transfer of the old model" in str(error) for error in errors.values())
    assert crew.weights_are_right(), "nothing of the new model was written"


@pytest.mark.parametrize("missing", [[(1, 5)]])
def test_an_expert_that_the_new_checkpoint_lacks_is_named_on_all_ranks(missing):
    crew = LifeCrew()
    _, errors = reload_everywhere(crew, newer, missing=missing)
    assert {type(error) for error in errors.values()} == {ExpertLost}
    assert all("layer 1 expert 5" in str(error) for error in errors.values())
