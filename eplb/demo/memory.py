"""The expert weights that one rank holds: one storage for all its life."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.model import TENSOR_NAMES, Floats, ModelSpec, expert_weights, swiglu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


class SlotMemory:
    """Tensors of a rank's slots, float32; a switch writes into the same storage.

    Slots are named by their group-wide ids ``first_slot`` .. ``first_slot + slots_per_rank - 1``.
    """

    def __init__(self, spec: ModelSpec, first_slot: int, slots_per_rank: int) -> None:
        self._spec = spec
        self._first_slot = first_slot
        self._storage = {
            name: np.zeros((spec.layers, slots_per_rank, *shape), dtype=np.float32)
            for name, shape in spec.shapes().items()
        }
        probe = np.random.default_rng([spec.seed, 5]).standard_normal((1, spec.hidden), dtype=np.float32)
        self._probe = probe

    def load(self, layer: int, slot: int, expert: int) -> None:
        """Put one logical expert into a slot of this rank."""
        for name, tensor in expert_weights(self._spec, layer, expert).items():
            self._storage[name][layer, slot - self._first_slot] = tensor

    def names(self) -> tuple[str, ...]:
        """Names of an expert's tensors, in a fixed order."""
        return TENSOR_NAMES

    def tensors(self, layer: int, slot: int) -> dict[str, NDArray[np.uint8]]:
        """Live bytes of one slot by tensor name: uint8 views of the storage."""
        place = slot - self._first_slot
        return {name: self._storage[name][layer, place].reshape(-1).view(np.uint8) for name in TENSOR_NAMES}

    def probe(self, layer: int, tensors: Mapping[str, NDArray[np.uint8]]) -> Floats:
        """Run a fixed vector through an expert given as bytes: float32 [hidden]."""
        del layer  # all layers have one shape
        shapes = self._spec.shapes()
        gate, up, down = (tensors[name].view(np.float32).reshape(shapes[name]) for name in TENSOR_NAMES)
        return np.asarray(swiglu(self._probe, gate, up, down)[0])

    def run(self, layer: int, slot: int, x: Floats) -> Floats:
        """One slot's expert on its rows: float32 [rows, hidden] -> float32 [rows, hidden]."""
        gate, up, down = (self._storage[name][layer, slot - self._first_slot] for name in TENSOR_NAMES)
        return swiglu(x, gate, up, down)
