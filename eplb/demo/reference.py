"""The single-process reference: the same model with all its original experts, no placement, no replicas, no exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.model import (
    Floats,
    ModelSpec,
    embed,
    expert_weights,
    gate_weights,
    norm,
    router_weights,
    swiglu,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Reference:
    """Recomputes tokens layer by layer; holds every logical expert of every layer once."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._routers = [router_weights(spec, layer) for layer in range(spec.layers)]
        self._experts = [
            [expert_weights(spec, layer, expert) for expert in range(spec.experts)]
            for layer in range(spec.layers)
        ]

    def states(
        self, sequences: NDArray[np.int32], positions: NDArray[np.int32], picks: NDArray[np.uint8]
    ) -> NDArray[np.float32]:
        """Hidden states after every layer: int32 [tokens] twice, picks [tokens, layers, k] -> float32 [layers, tokens, hidden]."""
        x = embed(self._spec, sequences, positions)
        result = np.empty((self._spec.layers, *x.shape), dtype=np.float32)
        for layer in range(self._spec.layers):
            x = x + self._moe(layer, norm(x), picks[:, layer, :])
            result[layer] = x
        return result

    def _moe(self, layer: int, y: Floats, picks: NDArray[np.uint8]) -> Floats:
        weights = gate_weights(self._routers[layer], y, picks)
        update = np.zeros_like(y)
        for expert in np.unique(picks):
            tokens, place = np.nonzero(picks == expert)
            rows = swiglu(y[tokens], **self._experts[layer][expert])
            update[tokens] += rows * weights[tokens, place][:, None]
        return update
