"""The model's formulas, which the ranks and the reference share, against float64 ones written apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eplb.demo.model import ModelSpec, embed, expert_weights, gate_weights, norm, router_weights, swiglu
from eplb.demo.reference import Reference

SPEC = ModelSpec(layers=2, experts=6, top_k=3, seed=5, hidden=8, inter=12)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def x() -> np.ndarray:
    """Rows of different lengths, one of them far from 1."""
    rows = np.random.default_rng(0).standard_normal((5, SPEC.hidden), dtype=np.float32)
    rows[1] *= 30
    return rows


def exact_norm(row) -> list[float]:
    """x / sqrt(mean(x^2) + 1e-6)."""
    size = math.sqrt(sum(float(v) ** 2 for v in row) / len(row) + 1e-6)
    return [float(v) / size for v in row]


def exact_swiglu(row, gate, up, down) -> list[float]:
    """down @ (silu(gate @ y) * (up @ y)), silu(a) = a / (1 + exp(-a))."""
    dot = lambda left, right: math.fsum(float(a) * float(b) for a, b in zip(left, right, strict=True))  # noqa: E731
    opened = [dot(g, row) for g in gate]
    middle = [a / (1 + math.exp(-a)) * dot(u, row) for a, u in zip(opened, up, strict=True)]
    return [dot(d, middle) for d in down]


def exact_gate(router, row, picks) -> list[float]:
    """exp(logit) over the sum of the picked experts' exp(logit)."""
    logits = [math.fsum(float(a) * float(b) for a, b in zip(router[e], row, strict=True)) for e in picks]
    powers = [math.exp(logit) for logit in logits]
    return [power / math.fsum(powers) for power in powers]


def exact_embed(sequence: int, position: int) -> list[float]:
    """(T[s mod 4096, i] + T[(7 p + 3) mod 4096, i - 1]) / sqrt(2), T the seeded table."""
    table = np.random.default_rng([SPEC.seed, 3]).standard_normal((4096, SPEC.hidden), dtype=np.float32)
    first, second = table[sequence % 4096], table[(7 * position + 3) % 4096]
    return [(float(first[i]) + float(second[i - 1])) / math.sqrt(2) for i in range(SPEC.hidden)]


def test_norm_divides_by_the_root_mean_square(x):
    """Every row by its own."""
    np.testing.assert_allclose(norm(x), [exact_norm(row) for row in x], **CLOSE)


def test_an_expert_is_a_swiglu_block(x):
    """Gate, up and down in their places, the gate through silu."""
    weights = expert_weights(SPEC, 1, 4)
    rows = norm(x)
    np.testing.assert_allclose(
        swiglu(rows, **weights), [exact_swiglu(row, **weights) for row in rows], **CLOSE
    )


def test_gate_weights_are_a_softmax_over_the_picked_experts_only(x):
    """In the order of the picks, summing to 1."""
    router, rows = router_weights(SPEC, 1), norm(x)
    picks = np.array([[0, 1, 2], [5, 3, 1], [4, 0, 5], [2, 1, 0], [3, 4, 5]], dtype=np.uint8)
    got = gate_weights(router, rows, picks)
    np.testing.assert_allclose(
        got, [exact_gate(router, row, p) for row, p in zip(rows, picks, strict=True)], **CLOSE
    )
    np.testing.assert_allclose(got.sum(axis=1), 1.0, **CLOSE)


def test_an_embedding_names_its_sequence_and_its_position():
    """A row for the sequence plus a shifted one for the position; tokens do not share one."""
    sequences = np.array([0, 3, 3, 7, 4099], dtype=np.int32)
    positions = np.array([0, 0, 1, 500, 1], dtype=np.int32)
    got = embed(SPEC, sequences, positions)
    exact = [exact_embed(int(s), int(p)) for s, p in zip(sequences, positions, strict=True)]
    np.testing.assert_allclose(got, exact, **CLOSE)
    assert len(np.unique(got[:4], axis=0)) == 4


def test_the_reference_is_the_whole_formula():
    """x[l+1] = x[l] + sum of g_i expert_i(norm(x[l])), token by token in float64."""
    sequences, positions = np.array([2, 9], dtype=np.int32), np.array([4, 0], dtype=np.int32)
    picks = np.array([[[0, 2, 4], [1, 5, 3]], [[4, 1, 0], [5, 2, 0]]], dtype=np.uint8)
    got = Reference(SPEC).states(sequences, positions, picks)
    for token in range(2):
        state = exact_embed(int(sequences[token]), int(positions[token]))
        for layer in range(SPEC.layers):
            y = exact_norm(state)
            chosen = picks[token, layer].tolist()
            weights = exact_gate(router_weights(SPEC, layer), y, chosen)
            for weight, expert in zip(weights, chosen, strict=True):
                update = exact_swiglu(y, **expert_weights(SPEC, layer, expert))
                state = [value + weight * part for value, part in zip(state, update, strict=True)]
            np.testing.assert_allclose(got[layer, token], state, rtol=1e-4, atol=1e-5)
