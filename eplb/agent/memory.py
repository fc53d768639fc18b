"""The engine's expert weights as the agent sees them: raw bytes by layer, slot and tensor name."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from eplb.errors import MigrationError

if TYPE_CHECKING:
    from collectors.facts import PoolFacts

PROBE_VALUES_MAX = 1024

Tensors = Mapping[str, NDArray[np.uint8]]
"""All tensors of one expert by name (weights, scales, biases), each uint8 [bytes]."""


class ExpertMemory(Protocol):
    """Storage of this rank's experts; the same storage for ever, so that captured graphs keep their pointers."""

    def names(self) -> tuple[str, ...]:
        """Names of all tensors that belong to one expert and travel with it."""
        ...

    def tensors(self, layer: int, slot: int) -> Tensors:
        """Writable views, uint8 [bytes], contiguous, of the live storage.

        ``layer`` is the position of the layer's row, ``slot`` the group-wide slot id, one of this rank's own.
        """
        ...


@runtime_checkable
class Probed(Protocol):
    """An ``ExpertMemory`` that can also run an expert on a fixed vector."""

    def probe(self, layer: int, tensors: Tensors) -> NDArray[Any]:
        """Output of the expert given as raw bytes on the engine's fixed probe vector, at most 1024 numbers."""
        ...


def own_slots(facts: PoolFacts, rank: int) -> range:
    """Group-wide ids of one rank's slots."""
    return range(rank * facts.slots_per_rank, (rank + 1) * facts.slots_per_rank)


def check_memory(facts: PoolFacts, rank: int, memory: ExpertMemory) -> int:
    """Check every tensor of this rank and return a 63-bit digest of the layout, equal on all ranks of a sound group.

    Raises:
        MigrationError: a tensor is missing or not named, not raw bytes, not contiguous or read-only; a slot's size differs.
    """
    names = memory.names()
    layout = blake2b(digest_size=8)
    for layer in range(facts.layers):
        sizes: dict[str, int] = {}
        for slot in own_slots(facts, rank):
            tensors = memory.tensors(layer, slot)
            unknown = sorted(set(tensors).difference(names))
            if unknown:
                raise MigrationError(
                    f"rank {rank} layer {layer} slot {slot} tensor {unknown[0]!r}: tensors() gives it, names() does not list it, so that "
                    "it would stay behind when its expert moves; name every tensor of an expert"
                )
            for name in names:
                place = f"rank {rank} layer {layer} slot {slot} tensor {name!r}"
                size = _check_tensor(tensors.get(name), place)
                if sizes.setdefault(name, size) != size:
                    raise MigrationError(f"{place}: {size} bytes, the first slot has {sizes[name]}")
        layout.update(repr((layer, [(name, sizes[name]) for name in names])).encode())
    return int.from_bytes(layout.digest(), "little") >> 1


def _check_tensor(tensor: NDArray[np.uint8] | None, place: str) -> int:
    if tensor is None:
        raise MigrationError(f"{place}: names() lists it, tensors() does not give it")
    if tensor.dtype != np.uint8 or tensor.ndim != 1 or not tensor.flags.c_contiguous:
        raise MigrationError(
            f"{place}: {tensor.dtype} {tensor.shape}; give a contiguous uint8 [bytes] view of the storage, without a cast"
        )
    if not tensor.flags.writeable:
        raise MigrationError(f"{place}: the view is read-only; the switch writes into this storage")
    return int(tensor.nbytes)
