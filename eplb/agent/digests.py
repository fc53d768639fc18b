"""Digests of expert weights: an order-sensitive integer checksum over all tensors, and the table made after load."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from eplb.agent.membership import by_slot
from eplb.agent.memory import PROBE_VALUES_MAX, ExpertMemory, Probed, Tensors, own_slots
from eplb.agent.refusal import Code, Refusal, decode_refusals, encode_refusal
from eplb.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from collectors.facts import PoolFacts
    from eplb.agent.group import Group

_MASK = (1 << 64) - 1
_CHUNK_WORDS = 1 << 15
"""256 KiB: the words of a chunk, their scratch and their multipliers stay in the cache."""
_FACTOR, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)

PROBE_RTOL = 1e-4
"""Kernels may sum in another order when memory is aligned differently; a wrong expert is off by far more."""


def _mix(value: int) -> int:
    # Finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@cache
def _multipliers() -> NDArray[np.uint64]:
    odd = [_mix((i + 1) * 0x9E3779B97F4A7C15) | 1 for i in range(_CHUNK_WORDS)]
    return np.array(odd, dtype=np.uint64)


def tensor_checksum(data: NDArray[np.uint8]) -> int:
    """Checksum of raw bytes, uint8 [n] -> unsigned 64-bit.

    Each 64-bit word is mixed by w ^= w >> 32, w *= C, w ^= w >> 32, multiplied by the odd number of its position, and
    summed, all modulo 2^64. Mixing and multiplying are bijections, so a change within one word always changes the sum.
    Changes of several words, such as flipped signs or words that change places, cancel only by accident, in the order of
    1 in 2^57, because the mixing depends on all bits of a word: without it, two flipped top bits would always cancel. No
    protection against someone who looks for a collision. Wrapping int64 gives the same bits, so that torch can do this
    where the tensor lives, if it masks ``(w >> 32) & 0xFFFFFFFF``: its shift copies the sign.
    """
    whole = data.size // 8
    words = data[: whole * 8].view("<u8")
    scratch = np.empty((2, min(whole, _CHUNK_WORDS)), dtype=np.uint64)
    multipliers = _multipliers()
    total = 0
    for chunk, start in enumerate(range(0, whole, _CHUNK_WORDS)):
        mixed = _mixed_words(words[start : start + _CHUNK_WORDS], scratch)
        total += int(np.dot(mixed, multipliers[: mixed.size])) * (_mix(chunk) | 1)
    if data.size % 8:
        padded = data[whole * 8 :].tobytes().ljust(8, b"\0")
        tail = _mixed_words(np.frombuffer(padded, dtype="<u8"), np.empty((2, 1), dtype=np.uint64))
        total += int(tail[0]) * (_mix(~whole) | 1)
    return total & _MASK


def _mixed_words(words: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed, shifted = scratch[0, : words.size], scratch[1, : words.size]
    np.right_shift(words, _HALF, out=shifted)
    np.bitwise_xor(words, shifted, out=mixed)
    np.multiply(mixed, _FACTOR, out=mixed)
    np.right_shift(mixed, _HALF, out=shifted)
    np.bitwise_xor(mixed, shifted, out=mixed)
    return mixed


def expert_digest(names: Sequence[str], tensors: Tensors) -> int:
    """Digest of one expert over all its tensors, unsigned 64-bit, never 0."""
    digest = 0
    for name in names:
        tensor = tensors[name]
        label = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        for part in (label, tensor.size, tensor_checksum(tensor)):
            digest = _mix(digest * 3 + part + 1)
    return digest or 1


@dataclass(frozen=True)
class DigestTable:
    """What every expert's weights must be.

    ``digests``: uint64 [layers, experts]. ``probes``: float64 [layers, experts, values], outputs on the probe vector, or
    None for a memory without a probe.
    """

    digests: NDArray[np.uint64]
    probes: NDArray[np.float64] | None

    @classmethod
    def build(
        cls,
        facts: PoolFacts,
        group: Group,
        memory: ExpertMemory,
        physical_to_logical: NDArray[np.int32],
        members: Sequence[int] | None = None,
    ) -> DigestTable:
        """Digest every slot where it lives, gather, and cross-check the replicas; every rank calls it after load.

        ``members`` pool ranks by place in the group, None = all of the pool.

        Raises:
            MigrationError: on all ranks alike, when a rank cannot read its weights, replicas of an expert differ, or an
                expert has no slot.
        """
        members = range(facts.ranks) if members is None else members
        own, refusal = _read_slots(facts, members[group.rank], memory, physical_to_logical)
        refusals = decode_refusals(group.gather(encode_refusal(refusal)), members)
        if refusals:
            raise MigrationError("; ".join(f"rank {rank}: {sentence}" for rank, _, sentence in refusals))
        everywhere = by_slot(facts, group.gather(own[0].view(np.int64)).view(np.uint64), members)
        digests = _cross_check(facts, everywhere, physical_to_logical)
        if not isinstance(memory, Probed):
            return cls(digests, None)
        outputs = by_slot(facts, group.gather(own[1]), members)
        return cls(digests, _first_copies(facts, outputs, physical_to_logical))

    @cached_property
    def model_digest(self) -> int:
        """Digest of the whole table, 63 bits: the state of the model that is loaded."""
        return (
            int.from_bytes(blake2b(self.digests.astype("<u8").tobytes(), digest_size=8).digest(), "little")
            >> 1
        )

    def check(self, memory: ExpertMemory, layer: int, expert: int, tensors: Tensors) -> Refusal | None:
        """Compare one expert's bytes, and its output on the probe vector, with the table."""
        return self.check_bytes(memory, layer, expert, tensors) or self.check_probe(
            memory, layer, expert, tensors
        )

    def check_bytes(self, memory: ExpertMemory, layer: int, expert: int, tensors: Tensors) -> Refusal | None:
        """Compare one expert's bytes with the table."""
        found, expected = expert_digest(memory.names(), tensors), int(self.digests[layer, expert])
        if found == expected:
            return None
        sentence = f"layer {layer} expert {expert}: weights have digest {found:016x}, not {expected:016x}"
        return Refusal(Code.WEIGHTS_DIFFER, sentence)

    def check_probe(self, memory: ExpertMemory, layer: int, expert: int, tensors: Tensors) -> Refusal | None:
        """Compare one expert's output on the probe vector with the table, if the memory has a probe."""
        if self.probes is None or not isinstance(memory, Probed):
            return None
        wanted = self.probes[layer, expert]
        output = np.asarray(memory.probe(layer, tensors), dtype=np.float64).reshape(-1)
        scale = PROBE_RTOL * float(np.abs(wanted).max(initial=0.0))
        if output.shape == wanted.shape and bool(np.all(np.abs(output - wanted) <= scale)):
            return None
        sentence = f"layer {layer} expert {expert}: output on the probe vector is not the one after load"
        return Refusal(Code.PROBE_DIFFERS, sentence)


def _read_slots(
    facts: PoolFacts, rank: int, memory: ExpertMemory, physical_to_logical: NDArray[np.int32]
) -> tuple[tuple[NDArray[np.uint64], NDArray[np.float64]], Refusal | None]:
    digests = np.zeros((facts.layers, facts.slots_per_rank), dtype=np.uint64)
    outputs: list[NDArray[np.float64]] = []
    try:
        for layer in range(facts.layers):
            for place, slot in enumerate(own_slots(facts, rank)):
                tensors = memory.tensors(layer, slot)
                if physical_to_logical[layer, slot] >= 0:
                    digests[layer, place] = expert_digest(memory.names(), tensors)
                if isinstance(memory, Probed):
                    outputs.append(_run_probe(memory, layer, tensors))
        values = outputs[0].size if outputs else 0
        shaped = np.array(outputs, dtype=np.float64).reshape(facts.layers, facts.slots_per_rank, values)
    except Exception as error:  # noqa: BLE001 - the other ranks wait in the gather, so this one must come to it too
        return (digests, np.zeros((0, 0, 0))), Refusal.of(Code.INTERNAL, error)
    return (digests, shaped), None


def _run_probe(memory: Probed, layer: int, tensors: Tensors) -> NDArray[np.float64]:
    output = np.asarray(memory.probe(layer, tensors), dtype=np.float64).reshape(-1)
    if output.size > PROBE_VALUES_MAX:
        raise MigrationError(
            f"probe gives {output.size} numbers, the limit is {PROBE_VALUES_MAX}; give fewer"
        )
    return output


def _cross_check(
    facts: PoolFacts, everywhere: NDArray[np.uint64], physical_to_logical: NDArray[np.int32]
) -> NDArray[np.uint64]:
    table = np.zeros((facts.layers, facts.experts), dtype=np.uint64)
    for layer, row in enumerate(physical_to_logical):
        for slot, expert in enumerate(row):
            if expert < 0:
                continue
            known, found = table[layer, expert], everywhere[layer, slot]
            if known and known != found:
                first = int(np.flatnonzero(row == expert)[0])
                raise MigrationError(
                    f"layer {layer} expert {expert}: slots {first} and {slot} hold different weights; load the model again"
                )
            table[layer, expert] = found
    missing = np.argwhere(table == 0)
    if missing.size:
        layer, expert = (int(x) for x in missing[0])
        raise MigrationError(
            f"layer {layer} expert {expert}: no slot holds it; start with a map that covers all experts"
        )
    return table


def _first_copies(
    facts: PoolFacts, outputs: NDArray[np.float64], physical_to_logical: NDArray[np.int32]
) -> NDArray[np.float64]:
    table = np.zeros((facts.layers, facts.experts, outputs.shape[2]))
    for layer, row in enumerate(physical_to_logical):
        experts, slots = np.unique(row, return_index=True)
        held = experts >= 0
        table[layer, experts[held]] = outputs[layer, slots[held]]
    return table
