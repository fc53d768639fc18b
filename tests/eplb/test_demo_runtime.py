"""One rank's forward, in a group of one, against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from eplb.demo.batch import BatchTokens
from eplb.demo.dispatch import RULES, Dispatcher, Source
from eplb.demo.faults import overwrite_slot
from eplb.demo.memory import SlotMemory
from eplb.demo.model import ModelSpec, expert_weights
from eplb.demo.reference import Reference
from eplb.demo.routing import Routing

if TYPE_CHECKING:
    from eplb.demo.facts import StepTimes

dist = pytest.importorskip("torch.distributed")

EXPERTS, SLOTS, LAYERS, TOP_K = 8, 11, 3, 3
SPEC = ModelSpec(LAYERS, EXPERTS, TOP_K, seed=2, hidden=16, inter=24)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A gloo group of this process alone."""
    rendezvous = tmp_path_factory.mktemp("group") / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def routing() -> Routing:
    """Four sequences of twelve tokens, random distinct picks."""
    picks = np.argsort(np.random.default_rng(1).random((48, LAYERS, EXPERTS)), axis=2)[..., :TOP_K].astype(
        np.uint8
    )
    return Routing(
        "test", picks, np.arange(0, 49, 12), np.zeros(4, dtype=np.int8), ("a", "b"), (0, 1, 2), EXPERTS
    )


def forward(world, routing, rule="weighted"):
    """A rank that holds all experts, some of them twice, in shuffled slots."""
    from eplb.demo.runtime import Forward, Group

    random = np.random.default_rng(3)
    rows = np.stack([random.permutation(np.arange(SLOTS) % EXPERTS) for _ in range(LAYERS)]).astype(np.int32)
    memory = SlotMemory(SPEC, 0, SLOTS)
    dispatcher = Dispatcher(rule, Source(0, 1, 1, SLOTS), EXPERTS, LAYERS)
    for layer, row in enumerate(rows):
        dispatcher.rebuild(layer, row)
        for slot, expert in enumerate(row):
            memory.load(layer, slot, int(expert))
    return Forward(SPEC, routing, Group(0, 1, SLOTS, world), memory, dispatcher), rows


TOKENS = BatchTokens(np.array([0, 1, 2, 3, 0], dtype=np.int32), np.array([0, 3, 5, 11, 4], dtype=np.int32))


@pytest.mark.parametrize("rule", RULES)
def test_outputs_do_not_depend_on_placement_or_dispatch(world, routing, rule):
    """Replicas, shuffled slots and any rule give the reference's output after every layer."""
    made, _ = forward(world, routing, rule)
    result = made.step(TOKENS)
    truth = Reference(SPEC).states(
        TOKENS.sequences, TOKENS.positions, routing.picks_of(TOKENS.sequences, TOKENS.positions)
    )
    np.testing.assert_allclose(result.states, truth, rtol=1e-5, atol=1e-5)


def test_counters_at_the_destination_count_every_row_once(world, routing):
    """Rows received by slots = tokens x k in every layer = sent = combined."""
    made, _ = forward(world, routing)
    result = made.step(TOKENS)
    assert result.received.sum(axis=1).tolist() == [5 * TOP_K] * LAYERS
    assert result.sent == result.combined == 5 * TOP_K * LAYERS


def test_a_slot_counts_the_tokens_of_the_expert_it_holds(world, routing):
    """Summed over replicas, the counters are the picks."""
    made, rows = forward(world, routing)
    result = made.step(TOKENS)
    picks = routing.picks_of(TOKENS.sequences, TOKENS.positions)
    for layer in range(LAYERS):
        by_expert = np.bincount(rows[layer], weights=result.received[layer], minlength=EXPERTS)
        assert by_expert.tolist() == np.bincount(picks[:, layer].ravel(), minlength=EXPERTS).tolist()


def test_an_overwritten_slot_changes_outputs_of_its_expert_only(world, routing):
    """The injected fault is a real one: tokens that did not use the slot's expert in that layer stay right there."""
    made, rows = forward(world, routing, "nearest")
    before = made.step(TOKENS)
    overwrite_slot(made.memory, rows, before.received, 0)
    after = made.step(TOKENS)
    layer, slot = (int(x) for x in np.unravel_index(before.received.argmax(), before.received.shape))
    hit = (routing.picks_of(TOKENS.sequences, TOKENS.positions)[:, layer] == rows[layer, slot]).any(axis=1)
    moved = np.abs(after.states[layer] - before.states[layer]).max(axis=1) > 1e-3
    assert moved.tolist() == hit.tolist()
    assert after.sent == after.combined


def test_times_are_parts_of_the_step(world, routing):
    """Dispatch, expert compute and combine lie within the step, and the wait within the combine."""
    made, _ = forward(world, routing)
    times: StepTimes = [made.step(TOKENS) for _ in range(3)][-1].times
    assert times.dispatch_us + times.expert_us + times.combine_us <= times.step_us
    assert 0 <= times.wait_us <= times.combine_us


def test_memory_keeps_one_storage_and_gives_writable_bytes_of_it():
    """A switch writes through the views that were given, and the expert runs on what was written."""
    memory = SlotMemory(SPEC, 5, 2)
    memory.load(1, 6, 3)
    view = memory.tensors(1, 6)
    x = np.ones((1, 16), dtype=np.float32)
    before = memory.run(1, 6, x)
    for name, tensor in expert_weights(SPEC, 1, 4).items():
        view[name][:] = tensor.reshape(-1).view(np.uint8)
    other = SlotMemory(SPEC, 0, 1)
    other.load(1, 0, 4)
    assert np.array_equal(memory.run(1, 6, x), other.run(1, 0, x))
    assert not np.array_equal(memory.run(1, 6, x), before)
    assert np.array_equal(memory.probe(1, view), other.probe(1, other.tensors(1, 0)))
    assert sum(tensor.nbytes for tensor in view.values()) == SPEC.bytes_per_expert
