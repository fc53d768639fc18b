"""Digests of weights: every byte of every tensor counts, and so does its place."""

import threading

import numpy as np
import pytest
from agent_crew import FACTS, NAMES, CrewMemory, ProbedMemory, start_map
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.agent.digests import DigestTable, _mix, expert_digest, tensor_checksum
from eplb.agent.group import ThreadGroup
from eplb.agent.memory import check_memory
from eplb.errors import MigrationError

raw_bytes = st.binary(min_size=1, max_size=200)


def as_array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, dtype=np.uint8)


@given(raw_bytes, st.data())
def test_any_changed_byte_changes_the_checksum(raw, data):
    place = data.draw(st.integers(min_value=0, max_value=len(raw) - 1))
    changed = bytearray(raw)
    changed[place] ^= data.draw(st.integers(min_value=1, max_value=255))
    assert tensor_checksum(as_array(raw)) != tensor_checksum(as_array(bytes(changed)))


def changed_elements(words: int, width: int) -> st.SearchStrategy[tuple[np.ndarray, list[int]]]:
    """Bytes of so many words, dense or all alike, and at least two places of elements of ``width`` bytes in them."""
    count = words * 8 // width
    dense = st.binary(min_size=words * 8, max_size=words * 8).map(as_array)
    alike = st.binary(min_size=width, max_size=width).map(lambda element: as_array(element * count))
    places = st.lists(st.integers(0, count - 1), min_size=2, max_size=min(count, 12), unique=True)
    return st.tuples(st.one_of(dense, alike), places)


@settings(max_examples=300)
@given(st.integers(1, 40).flatmap(lambda n: st.sampled_from([2, 4, 8]).flatmap(
    lambda width: st.tuples(st.just(width), changed_elements(n + 1, width)))))  # fmt: skip
def test_any_number_of_flipped_signs_changes_the_checksum(case):
    """Of bfloat16, float32 and float64; of any 64-bit words, two flipped top bits among them."""
    width, (data, places) = case
    flipped = data.copy()
    flipped[[place * width + width - 1 for place in places]] ^= 0x80
    assert tensor_checksum(data) != tensor_checksum(flipped)


def test_no_pair_of_flipped_top_bits_cancels():
    """All 32640 pairs of 256 words: with odd multipliers alone, every one of them would."""
    data = np.random.default_rng(1).integers(0, 1 << 63, 256, dtype=np.uint64)
    plain = tensor_checksum(data.view(np.uint8))
    deltas = []
    for word in range(data.size):
        changed = data.copy()
        changed[word] ^= np.uint64(1 << 63)
        deltas.append(tensor_checksum(changed.view(np.uint8)) - plain)
    sums = {(a + b) % (1 << 64) for i, a in enumerate(deltas) for b in deltas[:i]}
    assert 0 not in sums


@settings(max_examples=300)
@given(st.sampled_from([2, 4, 8]), st.integers(2, 30), st.data())
def test_elements_in_another_order_change_the_checksum(width, words, data):
    element = st.one_of(st.binary(min_size=width, max_size=width), st.sampled_from(
        [bytes(width), bytes(width - 1) + b"\x80", bytes(width - 1) + b"\x40"]))  # fmt: skip
    count = words * 8 // width
    elements = data.draw(st.lists(element, min_size=count, max_size=count))
    moved = data.draw(st.permutations(elements))
    same = tensor_checksum(as_array(b"".join(elements))) == tensor_checksum(as_array(b"".join(moved)))
    assert same == (list(moved) == elements)


@given(st.integers(0, (1 << 64) - 1), st.lists(st.booleans(), min_size=2, max_size=30), st.randoms())
def test_words_that_differ_in_a_sign_only_change_the_checksum_when_they_change_places(word, signs, random):
    moved = random.sample(signs, len(signs))
    before, after = (
        tensor_checksum(np.array([word ^ sign << 63 for sign in some], dtype=np.uint64).view(np.uint8))
        for some in (signs, moved)
    )
    assert (before == after) == (signs == moved)


@pytest.mark.slow
def test_wrapping_int64_in_torch_gives_the_same_checksum_where_the_tensor_lives():
    import torch

    from eplb.agent.digests import _FACTOR, _multipliers

    data = np.random.default_rng(5).integers(0, 256, 8 * 3000, dtype=np.uint8)
    words = torch.from_numpy(data).view(torch.int64)
    factor = int(_FACTOR.view(np.int64))
    mixed = words ^ ((words >> 32) & 0xFFFFFFFF)
    mixed = mixed * factor
    mixed = mixed ^ ((mixed >> 32) & 0xFFFFFFFF)
    odd = torch.from_numpy(_multipliers()[: words.numel()].view(np.int64))
    total = int((mixed * odd).sum()) * (_mix(0) | 1)
    assert total % (1 << 64) == tensor_checksum(data)


@given(raw_bytes)
def test_the_checksum_is_the_sum_over_words_of_what_each_gives_at_its_place(raw):
    starts = range(0, len(raw), 8)
    alone = [
        tensor_checksum(as_array(bytes(i) + raw[i : i + 8] + bytes(max(0, len(raw) - i - 8)))) for i in starts
    ]
    assert tensor_checksum(as_array(raw)) == sum(alone) % (1 << 64)


@pytest.mark.parametrize("size", [8 * 32768 - 1, 8 * 32768, 8 * 32768 + 1, 3 * 8 * 32768 + 24])
def test_words_that_change_places_across_chunks_change_the_checksum(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    swapped = data.copy()
    last = (size // 8 - 1) * 8
    swapped[:8], swapped[last : last + 8] = data[last : last + 8], data[:8]
    assert tensor_checksum(data) != tensor_checksum(swapped)


def test_a_byte_moved_from_one_tensor_to_the_next_changes_the_digest():
    one = {"a": as_array(b"\1\2"), "b": as_array(b"\3")}
    other = {"a": as_array(b"\1"), "b": as_array(b"\2\3")}
    assert expert_digest(("a", "b"), one) != expert_digest(("a", "b"), other)
    assert expert_digest(("a", "b"), one) != expert_digest(("b", "a"), one)


def test_MIG_07_bytes_of_an_exponent_type_are_taken_as_they_are():  # noqa: N802 - the case's id
    """The digest of 2^-7, 2^0, 2^3 as float8_e8m0fnu is that of the bytes 120, 127, 130; a cast value is another."""
    scales = {"s": np.array([120, 127, 130], dtype=np.uint8)}
    cast = {"s": np.array([0, 1, 8], dtype=np.uint8)}
    assert expert_digest(("s",), scales) != expert_digest(("s",), cast)


def build_everywhere(memories, rows):
    outcomes: list[object] = [None] * FACTS.ranks

    def run(rank, group):
        try:
            outcomes[rank] = DigestTable.build(FACTS, group, memories[rank], rows)
        except MigrationError as error:
            outcomes[rank] = str(error)

    threads = [threading.Thread(target=run, args=(g.rank, g)) for g in ThreadGroup.create(FACTS.ranks, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("memory_type", [CrewMemory, ProbedMemory])
def test_all_ranks_build_the_same_table_and_every_slot_passes_it(memory_type):
    rows = start_map()
    memories = [memory_type(FACTS, rank, rows) for rank in range(FACTS.ranks)]
    tables = build_everywhere(memories, rows)
    assert all(np.array_equal(table.digests, tables[0].digests) for table in tables)
    assert (tables[0].probes is None) == (memory_type is CrewMemory)
    for slot in range(FACTS.slots):
        memory = memories[slot // FACTS.slots_per_rank]
        assert tables[0].check_bytes(memory, 1, int(rows[1, slot]), memory.tensors(1, slot)) is None


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(NAMES), st.integers(min_value=0, max_value=FACTS.layers - 1))
def test_replicas_with_different_bytes_in_any_tensor_stop_the_start_on_all_ranks(name, layer):
    rows = start_map()
    memories = [CrewMemory(FACTS, rank, rows) for rank in range(FACTS.ranks)]
    memories[3].tensors(layer, 9)[name][0] ^= 1  # slot 9 is the second copy of expert 1
    outcomes = build_everywhere(memories, rows)
    assert (
        outcomes
        == [f"layer {layer} expert 1: slots 1 and 9 hold different weights; load the model again"] * 4
    )


def test_an_expert_without_a_slot_stops_the_start_on_all_ranks():
    rows = start_map()
    rows[1, 5] = -1
    outcomes = build_everywhere([CrewMemory(FACTS, rank, rows) for rank in range(FACTS.ranks)], rows)
    assert all("layer 1 expert 5: no slot holds it" in outcome for outcome in outcomes)


def test_a_wrong_output_on_the_probe_vector_is_refused_though_the_bytes_are_right():
    rows = start_map()
    memories = [ProbedMemory(FACTS, rank, rows) for rank in range(FACTS.ranks)]
    table = build_everywhere(memories, rows)[0]
    memories[0].probe = lambda layer, tensors: np.array([1.0, 2.0, 3.0])
    refusal = table.check_probe(memories[0], 0, 0, memories[0].tensors(0, 0))
    assert refusal is not None
    assert refusal.code == "probe_differs"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda data: data.astype(np.float32), "without a cast"),
        (lambda data: data[::2], "contiguous"),
        (lambda data: data.reshape(1, -1), r"uint8 \[bytes\] view"),
    ],
)
def test_MIG_06_07_tensors_that_cannot_travel_are_found_before_the_first_forward(broken, why):  # noqa: N802
    memory = CrewMemory(FACTS, 1, start_map())
    views = memory.tensors
    memory.tensors = lambda layer, slot: {name: broken(data) for name, data in views(layer, slot).items()}
    with pytest.raises(MigrationError, match=why):
        check_memory(FACTS, 1, memory)


def test_MIG_10_a_tensor_that_names_lists_and_tensors_does_not_give_is_named():  # noqa: N802
    memory = CrewMemory(FACTS, 0, start_map())
    memory.names = lambda: (*NAMES, "expert_mask")
    with pytest.raises(MigrationError, match="expert_mask"):
        check_memory(FACTS, 0, memory)


def test_a_tensor_that_the_memory_gives_and_does_not_list_would_stay_behind_and_is_named():
    memory = CrewMemory(FACTS, 0, start_map())
    memory.names = lambda: NAMES[:-1]
    with pytest.raises(MigrationError, match=NAMES[-1]):
        check_memory(FACTS, 0, memory)
