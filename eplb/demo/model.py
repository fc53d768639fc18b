"""A small mixture-of-experts model whose every number follows from a seed.

One step maps a token through ``layers`` MoE layers, ``x[l+1] = x[l] + sum_i g_i * expert_{e_i}(norm(x[l]))`` with ``norm`` the division by
the root mean square. An expert is a SwiGLU block, ``down @ (silu(gate @ y) * (up @ y))``. The picks ``e_i`` come from a trace; the gate weights ``g`` are a softmax over the picked experts'
router logits, as in gpt-oss.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TENSOR_NAMES = ("gate", "up", "down")
_EXPERT, _ROUTER, _EMBEDDING = 1, 2, 3
_EMBEDDING_ROWS = 4096


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of the model and the seed of all its weights."""

    layers: int
    experts: int
    top_k: int
    seed: int
    hidden: int = 64
    inter: int = 96

    @property
    def bytes_per_expert(self) -> int:
        """Bytes of all tensors of one expert of one layer (float32)."""
        return 3 * self.hidden * self.inter * 4

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Tensor shapes of one expert by name."""
        wide, narrow = (self.inter, self.hidden), (self.hidden, self.inter)
        return {"gate": wide, "up": wide, "down": narrow}


def expert_weights(spec: ModelSpec, layer: int, expert: int) -> dict[str, Floats]:
    """Tensors of one logical expert: ``gate`` and ``up`` float32 [inter, hidden], ``down`` float32 [hidden, inter]."""
    random = np.random.default_rng([spec.seed, _EXPERT, layer, expert])
    return {
        name: random.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[1]))
        for name, shape in spec.shapes().items()
    }


def router_weights(spec: ModelSpec, layer: int) -> Floats:
    """Router matrix of one layer: float32 [experts, hidden]."""
    random = np.random.default_rng([spec.seed, _ROUTER, layer])
    return random.standard_normal((spec.experts, spec.hidden), dtype=np.float32) / np.float32(
        np.sqrt(spec.hidden)
    )


@lru_cache(maxsize=4)
def _embedding_rows(seed: int, hidden: int) -> Floats:
    random = np.random.default_rng([seed, _EMBEDDING])
    return random.standard_normal((_EMBEDDING_ROWS, hidden), dtype=np.float32)


def embed(spec: ModelSpec, sequences: NDArray[np.int32], positions: NDArray[np.int32]) -> Floats:
    """Embedding of tokens named by (sequence, position), int32 [tokens] each -> float32 [tokens, hidden].

    A row of a seeded table for the sequence plus a shifted one for the position, so that two tokens of a run never share one.
    """
    table = _embedding_rows(spec.seed, spec.hidden)
    first = table[sequences % _EMBEDDING_ROWS]
    second = np.roll(table, 1, axis=1)[(positions * 7 + 3) % _EMBEDDING_ROWS]
    return ((first + second) * np.float32(np.sqrt(0.5))).astype(np.float32)


def norm(x: Floats) -> Floats:
    """Rows divided by their root mean square: float32 [rows, hidden] -> float32 [rows, hidden]."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(1e-6)), dtype=np.float32)


def swiglu(x: Floats, gate: Floats, up: Floats, down: Floats) -> Floats:
    """One expert on rows: float32 [rows, hidden] -> float32 [rows, hidden]."""
    opened = x @ gate.T
    opened /= 1.0 + np.exp(-opened)
    opened *= x @ up.T
    return np.asarray(opened @ down.T, dtype=np.float32)


def gate_weights(router: Floats, y: Floats, picks: NDArray[np.integer]) -> Floats:
    """Softmax over the picked experts' logits: y [tokens, hidden], picks [tokens, k] -> float32 [tokens, k]."""
    logits = np.take_along_axis(y @ router.T, picks.astype(np.int64), axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return np.asarray(logits, dtype=np.float32)
